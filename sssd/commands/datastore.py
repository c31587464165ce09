"""datastore: build, add, inspect, search, erase and compact files of remembered text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from sssd.commands import show
from sssd.drafting import datastore as store
from sssd.drafting.store_corpus import InputFormat, Turns
from sssd.spec import open_bundle
from sssd.text import Tokenizer


class _Bytes(click.ParamType[int]):
    """A number of bytes with a unit, such as 500M or 2G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+)([KMG]?)", value)
        if not found or not int(found[1]):
            self.fail(f"{value!r} is no size: give a number with K, M or G, such as 500M", param, ctx)
        unit: int = 1024 ** " KMG".index(found[2] or " ")
        return int(found[1]) * unit


_TOKENIZER = click.option(
    "--tokenizer", required=True, type=click.Path(path_type=Path), help="Bundle whose tokenizer the text is for."
)
_NAMESPACE = click.option("--namespace", default="default", show_default=True, help="Tenant or corpus the text is of.")
_TURNS = click.option(
    "--turns",
    type=click.Choice(get_args(Turns)),
    default="assistant",
    show_default=True,
    help="Which turns of a conversation are stored.",
)
_STDIN = click.option(
    "--stdin-format",
    type=click.Choice(get_args(InputFormat)),
    default="jsonl",
    show_default=True,
    help="What '-' carries.",
)
_MEMORY = click.option(
    "--memory",
    type=_Bytes(),
    default=store.BuildOptions.memory,
    show_default="1G",
    help="Bound of the memory taken, such as 500M.",
)
_WORKERS = click.option("--workers", type=click.IntRange(min=1), help="Processes that sort; one a core otherwise.")
_FILE = click.argument("file", type=click.Path(path_type=Path))
_INPUTS = click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")


@dataclass(frozen=True, slots=True)
class FoundText:
    """A match, as text."""

    namespace: str
    continuation: str


@click.group()
def datastore() -> None:
    """Build and keep files of text that drafts are found in.

    INPUTs are JSONL files (records with `text`, `messages` or `answer`), plain text files, directories of either, or -
    for stdin.
    """


@datastore.command()
@_TOKENIZER
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File to make.")
@_INPUTS
@_NAMESPACE
@_TURNS
@_STDIN
@_MEMORY
@_WORKERS
@click.option("--force", is_flag=True, help="Replace the file at --out.")
def build(
    tokenizer: Path,
    out: Path,
    inputs: tuple[str, ...],
    namespace: str,
    turns: Turns,
    stdin_format: InputFormat,
    memory: int,
    workers: int | None,
    force: bool,
) -> None:
    """Make a datastore of one or more INPUTs.

    \b
    Examples:
      sssd datastore build --tokenizer smol/ --out chat.store answers.jsonl docs/
      zcat answers.jsonl.gz | sssd datastore build --tokenizer smol/ --out chat.store -
    """
    codec = Tokenizer(open_bundle(tokenizer))
    with show.counter("tokens") as report:
        made = store.build(
            out,
            store.tokenize(store.read_corpus(inputs, turns=turns, stdin_format=stdin_format), codec.encode_all),
            tokenizer=codec.fingerprint(),
            vocab_size=open_bundle(tokenizer).spec.vocab_size,
            namespace=namespace,
            options=store.BuildOptions(memory, workers),
            force=force,
            progress=report,
        )
    _say_stored(made)


@datastore.command()
@_TOKENIZER
@_FILE
@_INPUTS
@_NAMESPACE
@_TURNS
@_STDIN
@_MEMORY
@_WORKERS
def add(
    tokenizer: Path,
    file: Path,
    inputs: tuple[str, ...],
    namespace: str,
    turns: Turns,
    stdin_format: InputFormat,
    memory: int,
    workers: int | None,
) -> None:
    """Add INPUTs to a datastore; what it holds stays readable meanwhile.

    \b
    Examples:
      sssd datastore add --tokenizer smol/ chat.store more.jsonl --namespace support
    """
    codec = Tokenizer(open_bundle(tokenizer))
    with show.counter("tokens") as report:
        made = store.add(
            file,
            store.tokenize(store.read_corpus(inputs, turns=turns, stdin_format=stdin_format), codec.encode_all),
            tokenizer=codec.fingerprint(),
            namespace=namespace,
            options=store.BuildOptions(memory, workers),
            progress=report,
        )
    _say_stored(made)


def _say_stored(made: store.BuildReport) -> None:
    rate = made.n_tokens / made.seconds / 1e6 if made.seconds else 0.0
    show.remark(f"{made.n_tokens:,} tokens of {made.n_documents:,} documents in {made.seconds:.1f} s ({rate:.1f} M/s)")
    if made.n_empty:
        show.remark(f"note: {made.n_empty:,} documents hold no tokens and are not stored")
    if made.n_cut:
        show.remark(f"note: {made.n_cut:,} documents are longer than a segment and were stored in pieces")
    click.echo(made.path)


@datastore.command()
@_FILE
@click.option("--verify", is_flag=True, help="Hold everything against its checksums; reads the whole file.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def inspect(file: Path, verify: bool, as_json: bool) -> None:
    """Show what a datastore holds, and whether it is sound.

    \b
    Examples:
      sssd datastore inspect chat.store --verify
    """
    report = store.inspect(file, verify=verify)
    if as_json:
        show.as_json(report)
    else:
        _show_report(report)
    if report.problems:
        raise click.ClickException(f"{file} is damaged: {'; '.join(report.problems)}")


def _show_report(report: store.StoreReport) -> None:
    rows = [
        ("tokens", f"{report.n_tokens:,} in {report.n_documents:,} documents ({report.n_dead:,} erased or expired)"),
        ("size", show.size(report.file_bytes)),
        ("tokenizer", report.tokenizer),
        ("commits", f"{report.sequence:,}"),
        ("namespaces", ", ".join(report.namespaces) or "none"),
        ("verified", "every checksum is right" if report.verified and not report.problems else "structure only"),
    ]
    rows += [
        (
            "segment",
            f"{s.namespace}: {s.n_tokens:,} tokens, {s.n_documents:,} documents{'' if s.indexed else ', journal'}",
        )
        for s in report.segments
    ]
    for name, value in rows:
        click.echo(f"{name + ':':12}{value}")


@datastore.command()
@_TOKENIZER
@_FILE
@click.argument("text")
@click.option("--namespace", help="Search this one only.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Most matches shown.")
@click.option("--json", "as_json", is_flag=True, help="Print the matches as JSON.")
def search(tokenizer: Path, file: Path, text: str, namespace: str | None, limit: int, as_json: bool) -> None:
    """Show where TEXT stands in a datastore, and how it goes on there.

    \b
    Examples:
      sssd datastore search --tokenizer smol/ chat.store "I am happy to"
    """
    codec = Tokenizer(open_bundle(tokenizer))
    with store.Datastore(file, tokenizer=codec.fingerprint()):
        pass  # refuses a datastore of another tokenizer
    result = store.search(file, codec.encode(text, special=False), namespace=namespace, limit=limit)
    found = [FoundText(m.namespace, codec.decode(m.continuation.tolist())) for m in result.matches]
    if as_json:
        show.as_json(found)
        return
    show.remark(f"{result.n_matches:,} matches")
    for match in found:
        click.echo(f"[{match.namespace}] {text}|{match.continuation}")


@datastore.command()
@_FILE
@click.argument("request_id", type=click.IntRange(min=0))
def erase(file: Path, request_id: int) -> None:
    """Erase what was remembered of a request: it is not found from now on, and gone after compact.

    \b
    Examples:
      sssd datastore erase chat.store 1234
    """
    n = store.erase(file, request_id)
    show.remark(f"{n} documents erased")


@datastore.command()
@_FILE
@_MEMORY
@_WORKERS
def compact(file: Path, memory: int, workers: int | None) -> None:
    """Write a datastore anew: large segments, nothing erased or expired left in it.

    \b
    Examples:
      sssd datastore compact chat.store
    """
    with show.counter("tokens") as report:
        done = store.compact(file, options=store.BuildOptions(memory, workers), progress=report)
    show.remark(f"{show.size(done.bytes_before)} before, {show.size(done.bytes_after)} after")
