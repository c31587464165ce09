"""How commands show things: JSON on stdout, progress and remarks on stderr. Knows no subject."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

DEVICE = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "cuda-graphs", "tensorrt"]),
    help="Where the graph runs; where the bundle is made for otherwise.",
)
Progress = Callable[[str, int, int], None]  # (what is being done, done so far, in all)


def as_json(value: Any) -> None:
    """Print a dataclass (or a list of them) as indented JSON on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def remark(text: str) -> None:
    """Say something on stderr."""
    click.echo(text, err=True)


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar on stderr; one line a stage where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    tasks: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
                if not console.is_terminal:
                    remark(f"{stage} ...")
            bar.update(tasks[stage], completed=done, total=total)

        yield report


@contextmanager
def counter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A count on stderr of work whose end is not known: (safe so far, seen so far)."""
    from rich.console import Console

    console = Console(file=sys.stderr)
    with console.status("") as status:

        def report(safe: int, seen: int) -> None:
            status.update(f"{seen:,} {what} read, {safe:,} stored")

        yield report


def size(n_bytes: int) -> str:
    """A file size for people."""
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
