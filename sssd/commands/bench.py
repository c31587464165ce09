"""bench: speed of every mode on real prompts, end to end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from sssd.commands import show
from sssd.commands.draft_options import draft_choice, draft_options
from sssd.config import LoopConfig, SamplingParams
from sssd.engines.choose import DeviceName

if TYPE_CHECKING:
    from rich.console import Console

    from sssd.bench.compare import Comparison
    from sssd.bench.report import Report

T = TypeVar("T", int, float, str)


class _List(click.ParamType[tuple[Any, ...]], Generic[T]):
    """Values with commas between them."""

    def __init__(self, kind: Callable[[str], T], name: str) -> None:
        self._kind: Callable[[str], T] = kind
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[T, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(part.strip()) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is no list of {self.name}: give them with commas between, such as 1,4", param, ctx)


_NAMES = _List(str, "names")


@click.command()
@click.option("--engine", required=True, type=click.Path(path_type=Path), help="Bundle directory, or a file in it.")
@click.option(
    "--data",
    multiple=True,
    type=click.Path(path_type=Path),
    help="JSONL file of prompts (`prompt`, `turns` or `messages`, and `task`); may be given several times.",
)
@click.option("--task", "tasks", type=_NAMES, default="", help="Only these tasks: names with commas between.")
@click.option("--limit", type=click.IntRange(min=1), help="Most prompts a task.")
@click.option(
    "--mode",
    "modes",
    type=_NAMES,
    help="Of null (the baseline, always run), maxgram, retrieval, retrieval+datastore, and with --draft also draft, "
    "cascade+maxgram, cascade+retrieval, cascade@adaptive; all that can run otherwise.",
)
@click.option("--datastore", type=click.Path(path_type=Path), help="File that retrieval+datastore drafts from.")
@draft_options
@click.option("--batch", "batches", type=_List(int, "sizes"), default="1", show_default=True, help="Batch sizes.")
@click.option(
    "--rate",
    "rates",
    type=_List(float, "rates"),
    default="",
    help="Also measure under load: Poisson arrivals a second, on as many slots as the largest batch.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Run everything N times.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Length of an answer.")
@click.option("--stop-at-eos", is_flag=True, help="End answers where the model does, not always at --max-tokens.")
@click.option("--temperature", type=float, default=SamplingParams.temperature, show_default=True, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of sampling and arrivals.")
@click.option("--chat/--no-chat", default=None, help="Use the chat template; the default where the bundle has one.")
@click.option(
    "--max-draft-tokens", type=int, default=LoopConfig.max_draft_tokens, show_default=True, help="Most drafts a step."
)
@click.option("--fixed-width", type=int, help="Run every step at exactly this many columns.")
@click.option("--fastest", is_flag=True, help="Add null@fastest: plain decoding without bit-stability.")
@show.DEVICE
@click.option("--threads", type=click.IntRange(min=0), default=0, help="0 takes one a physical core.")
@click.option("--json", "as_json", is_flag=True, help="Print records with raw samples as JSON instead of tables.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with plots to this file.")
@click.option(
    "--compare", "older", type=click.Path(path_type=Path), help="Show what changed since a file that --json made."
)
def bench(
    engine: Path,
    data: tuple[Path, ...],
    tasks: tuple[str, ...],
    limit: int | None,
    modes: tuple[str, ...] | None,
    datastore: Path | None,
    drafts: tuple[Path, ...],
    draft_k: str | None,
    lenience: float | None,
    draft_children: int,
    draft_always: bool,
    batches: tuple[int, ...],
    rates: tuple[float, ...],
    repeat: int,
    max_tokens: int,
    stop_at_eos: bool,
    temperature: float,
    seed: int,
    chat: bool | None,
    max_draft_tokens: int,
    fixed_width: int | None,
    fastest: bool,
    device: DeviceName | None,
    threads: int,
    as_json: bool,
    html: Path | None,
    older: Path | None,
) -> None:
    """Measure how fast each mode answers prompts, against plain decoding in the same run.

    All modes take turns on one engine. Figures go to stdout, warnings about them to stderr.

    \b
    Examples:
      sssd bench --engine smol/ --data specbench.jsonl --limit 20
      sssd bench --engine smol/ --data chat.jsonl --batch 1,4 --mode null,retrieval --json > new.json
      sssd bench --engine smol/ --data chat.jsonl --rate 0.5,1,2 --batch 4 --html report.html
      sssd bench --engine smol/ --data chat.jsonl --compare old.json
      sssd bench --engine smol/ --data chat.jsonl --draft smol-int4/ --draft-k "5,10;10"
    """
    from sssd.bench.benchmark import BenchOptions, benchmark
    from sssd.bench.compare import compare, read_old
    from sssd.bench.html import write_html
    from sssd.bench.report import records_json

    if draft_always:
        raise click.UsageError("--draft-always says nothing here: only the mode cascade@adaptive leaves models out")
    choice = draft_choice(drafts, draft_k, lenience, draft_children, draft_always)
    old = read_old(older) if older is not None else None
    options = BenchOptions(
        engine=engine,
        data=data,
        tasks=tasks,
        limit=limit,
        modes=modes,
        datastore=datastore,
        drafts=choice.paths,
        cascade=choice.config,
        batches=batches,
        rates=rates,
        repeat=repeat,
        max_tokens=max_tokens,
        stop_at_eos=stop_at_eos,
        temperature=temperature,
        seed=seed,
        chat=chat,
        max_draft_tokens=max_draft_tokens,
        fixed_width=fixed_width,
        fastest=fastest,
        device=device,
        threads=threads,
        command=shlex.join(["sssd", *sys.argv[1:]]),
    )
    with show.progress() as report:
        done = benchmark(options, progress=report)
    if as_json:
        click.echo(records_json(done).decode())
    else:
        _show(done)
    if old is not None:
        _show_comparison(compare(old, done.records), to_stderr=as_json)
    for warning in done.about.warnings:
        show.remark(f"warning: {warning}")
    if html is not None:  # last: a page that cannot be written must not cost the figures
        write_html(done, html)


def _show(done: Report) -> None:
    from sssd.bench.report import print_report

    print_report(done, _console(to_stderr=False))


def _show_comparison(found: Comparison, *, to_stderr: bool) -> None:
    from sssd.bench.compare import comparison_table

    _console(to_stderr=to_stderr).print(comparison_table(found))
    for where, places in (("the older benchmark", found.only_old), ("this one", found.only_new)):
        for place in places:
            show.remark(f"note: only in {where}: {place}")


def _console(*, to_stderr: bool) -> Console:
    """As wide as the terminal; where there is none, as wide as the tables."""
    from rich.console import Console

    file = sys.stderr if to_stderr else sys.stdout
    return Console(file=file, width=None if file.isatty() else 160)
