"""A benchmark as a value, as JSON and as a table on the terminal. Owns how figures are written for people.

Knows no engine; what the figures are is `summary`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from sssd.bench.machine import Machine
from sssd.bench.modes import BASELINE
from sssd.bench.summary import Record

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class About:
    """Everything that a figure has to be read with."""

    command: str
    sssd: str  # version
    model: str
    weights: str
    machine: Machine
    device: str
    threads: int  # 0 = one a physical core
    max_tokens: int
    stops_at_eos: bool  # False: every answer has max_tokens tokens, past the model's own end too
    temperature: float
    max_draft_tokens: int
    fixed_width: int | None
    chat: bool
    repeat: int
    seconds: float  # that the whole benchmark took
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A finished benchmark."""

    about: About
    records: tuple[Record, ...]


def records_json(report: Report) -> bytes:
    """A list of records, each with what it has to be read with under `about`."""
    about = msgspec.to_builtins(report.about, str_keys=True)
    rows: list[dict[str, Any]] = [
        msgspec.to_builtins(record, str_keys=True) | {"about": about} for record in report.records
    ]
    return msgspec.json.format(msgspec.json.encode(rows), indent=1)


def facts(about: About) -> tuple[tuple[str, str], ...]:
    """What stands above every table, name by name."""
    ends = "where the model ends it" if about.stops_at_eos else "always (the model's own end is passed over)"
    how = "greedy" if about.temperature == 0 else f"temperature {about.temperature:g}"
    shape = "" if about.fixed_width is None else f", every step {about.fixed_width} columns wide"
    threads = "one thread a physical core" if about.threads == 0 else f"{about.threads} threads"
    load = "" if about.machine.load is None else f", load {about.machine.load:.1f} before the start"
    return (
        ("command", about.command),
        ("model", f"{about.model}, {about.weights}, on {about.device} with {threads}"),
        ("machine", f"{about.machine.cpu}, {about.machine.cores} cores, {about.machine.system}{load}"),
        ("answers", f"{about.max_tokens} tokens, {ends}; {how}; {'chat template' if about.chat else 'plain prompts'}"),
        ("drafts", f"at most {about.max_draft_tokens} tokens a step{shape}"),
        ("took", f"{about.seconds:.0f} s; sssd {about.sssd}; everything run {_times(about.repeat)}"),
    )


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


HEADS = (
    "mode",
    "batch",
    "task",
    "tokens/s",
    "speed-up",
    "(95 %)",
    "decoding",
    "tokens/step",
    "SWI",
    "first ms",
    "between ms",
    "99 %",
    "differ",
)
LOAD_HEADS = (
    "mode",
    "slots",
    "requests/s",
    "tokens/s",
    "speed-up",
    "(95 %)",
    "tokens/step",
    "first ms",
    "99 %",
    "answer ms",
    "99 %",
    "differ",
)


def row(r: Record) -> tuple[str, ...]:
    """An offline record under HEADS."""
    return (
        r.mode,
        str(r.batch),
        r.task,
        f"{r.tokens_per_s:.1f}",
        *_speedup(r),
        "" if r.mode == BASELINE else f"{r.decode_speedup:.2f}",
        f"{r.tokens_per_step:.2f}",
        r.swi.text(),
        f"{r.first_token_ms.p50:.0f}",
        f"{r.inter_token_ms.p50:.1f}",
        f"{r.inter_token_ms.p99:.1f}",
        "" if r.mode == BASELINE else str(r.differing),
    )


def load_row(r: Record) -> tuple[str, ...]:
    """A record of arrivals under LOAD_HEADS."""
    return (
        r.mode,
        str(r.batch),
        f"{r.rate:g}",
        f"{r.tokens_per_s:.1f}",
        *_speedup(r),
        f"{r.tokens_per_step:.2f}",
        f"{r.first_token_ms.p50:.0f}",
        f"{r.first_token_ms.p99:.0f}",
        f"{r.latency_ms.p50:.0f}",
        f"{r.latency_ms.p99:.0f}",
        "" if r.mode == BASELINE else str(r.differing),
    )


def _speedup(r: Record) -> tuple[str, str]:
    if r.mode == BASELINE:
        return ("1", "")
    return (f"{r.speedup:.2f}", f"{r.speedup_low:.2f}-{r.speedup_high:.2f}")


def tables(report: Report) -> list[Table]:
    """One table for what ran offline, one for what ran under load; none for what did not run."""
    offline = [r for r in report.records if r.rate is None]
    load = [r for r in report.records if r.rate is not None]
    found = []
    if offline:
        title = (
            "Offline (speed-up of reading and decoding, and of decoding alone, against null; standardized walltime "
            "improvement by size / by published costs / by measured costs)"
        )
        found.append(_table(title, HEADS, n_names=3, records=offline, rows=[row(r) for r in offline]))
    if load:
        title = "Under load (speed-up of a request's time from arrival to end, against null)"
        found.append(_table(title, LOAD_HEADS, n_names=1, records=load, rows=[load_row(r) for r in load]))
    return found


def _table(
    title: str, heads: Sequence[str], *, n_names: int, records: Sequence[Record], rows: Sequence[tuple[str, ...]]
) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, box=SIMPLE, title_justify="left")
    for i, head in enumerate(heads):
        made.add_column(head, justify="left" if i < n_names else "right", no_wrap=True)
    for i, cells in enumerate(rows):
        last = i + 1 == len(rows) or _group(records[i]) != _group(records[i + 1])
        made.add_row(*(Text(cell) for cell in cells), end_section=last)
    return made


def _group(r: Record) -> tuple[int, str, float | None]:
    return (r.batch, r.task, r.rate)


def print_report(report: Report, console: Console) -> None:
    """Facts and tables; warnings are for the caller to say where talk goes."""
    for name, text in facts(report.about):
        console.print(f"{name + ':':10}{text}", markup=False, highlight=False, soft_wrap=True)
    for made in tables(report):
        console.print(made)
