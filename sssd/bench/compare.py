"""A benchmark against an older one. Owns the matching of records and the verdict; knows no engine.

Speed-ups decide, since both are ratios to a baseline of their own run; tokens a second say something on one machine
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from sssd.bench.modes import BASELINE
from sssd.bench.summary import Record
from sssd.errors import SssdError

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["faster", "slower", "same", "baseline"]


class OldRecord(msgspec.Struct, frozen=True):
    """What is read of an older benchmark's JSON; whatever else a record holds is its own affair."""

    mode: str
    weights: str
    batch: int
    task: str
    tokens_per_s: float
    speedup: float
    tokens_per_step: float
    rate: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A record and the one of the same place in the older benchmark."""

    old: OldRecord
    new: Record

    @property
    def rate_ratio(self) -> float:
        """Tokens a second, new over old; also what another machine would change."""
        return self.new.tokens_per_s / self.old.tokens_per_s

    @property
    def verdict(self) -> Verdict:
        """Faster or slower where the intervals of the speed-ups do not meet."""
        if self.new.mode == BASELINE:
            return "baseline"
        low = self.old.speedup if self.old.speedup_low is None else self.old.speedup_low
        high = self.old.speedup if self.old.speedup_high is None else self.old.speedup_high
        if self.new.speedup_low > high:
            return "faster"
        return "slower" if self.new.speedup_high < low else "same"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two benchmarks side by side."""

    changes: tuple[Change, ...]
    only_old: tuple[str, ...]  # what has no counterpart, in words
    only_new: tuple[str, ...]


class _Place(NamedTuple):
    mode: str
    weights: str
    batch: int
    task: str
    rate: float | None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:g} requests/s"
        return f"{self.mode}, {self.weights}, batch {self.batch}, {self.task}{rate}"


def read_old(path: Path) -> list[OldRecord]:
    """The records of a file that `sssd bench --json` wrote. Raises SssdError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[OldRecord])
    except OSError as e:
        raise SssdError(f"cannot read {path}: {e.strerror}; give --compare what `sssd bench --json` wrote") from None
    except msgspec.DecodeError as e:
        raise SssdError(f"{path} is no benchmark: {e}; give --compare what `sssd bench --json` wrote") from None


def compare(old: Sequence[OldRecord], new: Sequence[Record]) -> Comparison:
    """Match by mode, weights, batch, task and rate."""
    before = {_place(r): r for r in old}
    after = {_place(r): r for r in new}
    return Comparison(
        tuple(Change(before[p], r) for p, r in after.items() if p in before),
        tuple(str(p) for p in before if p not in after),
        tuple(str(p) for p in after if p not in before),
    )


def _place(r: OldRecord | Record) -> _Place:
    return _Place(r.mode, r.weights, r.batch, r.task, r.rate)


def comparison_table(comparison: Comparison) -> Table:
    """Old and new, place by place."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    made = Table(title="Against the older benchmark", box=SIMPLE, title_justify="left")
    for head in ("place", "tokens/s old", "new", "ratio", "speed-up old", "new", "verdict"):
        made.add_column(head, justify="left" if head in ("place", "verdict") else "right", no_wrap=True)
    for c in comparison.changes:
        cells = (
            str(_place(c.new)),
            f"{c.old.tokens_per_s:.1f}",
            f"{c.new.tokens_per_s:.1f}",
            f"{c.rate_ratio:.2f}",
            f"{c.old.speedup:.2f}",
            f"{c.new.speedup:.2f}",
            c.verdict,
        )
        made.add_row(*(Text(cell) for cell in cells))
    return made
