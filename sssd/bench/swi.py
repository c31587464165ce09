"""Standardized walltime improvement: what a run would have gained if models cost what an assumption says.

Owns the assumptions and the ratio; measures nothing. From Cascade Speculative Drafting (arXiv 2312.11462): the cost of
a run is the sum over models of (reviews x cost of one), drafters without a model cost nothing, and

    SWI = tokens x target's cost / cost of the run
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sssd.drafting.base import Drafter
from sssd.drafting.level import LevelCosts

# of FLAN-T5: parameters, in those of the largest, and a run's measured time in its (Leviathan et al., arXiv 2211.17192)
_PUBLISHED = ((60 / 11300, 0.02), (220 / 11300, 0.04), (770 / 11300, 0.11), (1.0, 1.0))


@dataclass(frozen=True, slots=True)
class LevelUse:
    """What one draft model did in a run."""

    name: str
    n_bytes: int  # of its weights
    reviews: int  # rows of forwards
    seconds: float  # in forwards, rows of a batch sharing them


@dataclass(frozen=True, slots=True)
class Swi:
    """The same run under three assumptions about costs."""

    by_size: float  # a run of a model costs what it weighs
    published: float  # what previous work measured at that size
    measured: float | None  # what it took here; None where no run of the target was timed

    def text(self) -> str:
        """The three, for a table."""
        measured = "-" if self.measured is None else f"{self.measured:.2f}"
        return f"{self.by_size:.2f}/{self.published:.2f}/{measured}"


def swi(tokens: int, steps: int, uses: Sequence[LevelUse], *, target_bytes: int, target_seconds: float | None) -> Swi:
    """Of `tokens` from `steps` runs of the target; its weights take `target_bytes`, a plain run `target_seconds`."""
    assert steps > 0, "tokens come from steps"
    if not uses:
        return Swi(tokens / steps, tokens / steps, tokens / steps)
    assert target_bytes > 0, "a model weighs something"
    sizes = [use.n_bytes / target_bytes for use in uses]
    return Swi(
        tokens / (steps + sum(use.reviews * size for use, size in zip(uses, sizes, strict=True))),
        tokens / (steps + sum(use.reviews * published_cost(size) for use, size in zip(uses, sizes, strict=True))),
        tokens / (steps + sum(use.seconds for use in uses) / target_seconds) if target_seconds else None,
    )


def total(uses: Sequence[Sequence[LevelUse]]) -> tuple[LevelUse, ...]:
    """Uses of the same models in several runs, added."""
    return tuple(
        LevelUse(of[0].name, of[0].n_bytes, sum(u.reviews for u in of), sum(u.seconds for u in of))
        for of in zip(*uses, strict=True)
    )


def published_cost(size: float) -> float:
    """Cost of a model of relative `size`: a power of the size between two published points, and on beyond the last."""
    assert size > 0, "a model weighs something"
    sizes, costs = np.log(np.array(_PUBLISHED)).T
    i = int(np.clip(np.searchsorted(sizes, math.log(size)) - 1, 0, len(sizes) - 2))
    slope = (costs[i + 1] - costs[i]) / (sizes[i + 1] - sizes[i])
    return math.exp(costs[i] + slope * (math.log(size) - sizes[i]))


@runtime_checkable
class Costed(Protocol):
    """A drafter with models of its own."""

    def costs(self) -> tuple[LevelCosts, ...]:
        """What each has done and taken so far."""


def level_uses(drafter: Drafter) -> tuple[LevelUse, ...]:
    """What the drafter's models have done so far; nothing where it has none."""
    if not isinstance(drafter, Costed):
        return ()
    return tuple(LevelUse(c.name, c.n_bytes, c.reviews, c.seconds) for c in drafter.costs())


def since(before: Sequence[LevelUse], now: Sequence[LevelUse]) -> tuple[LevelUse, ...]:
    """What the same models did in between."""
    return tuple(
        LevelUse(b.name, b.n_bytes, b.reviews - a.reviews, b.seconds - a.seconds)
        for a, b in zip(before, now, strict=True)
    )
