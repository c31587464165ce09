"""Steps without an engine: plans, trees and verdicts made by hand, on a machine whose costs are a curve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from sssd.runtime.budget import Budget
from sssd.runtime.costs import CostCurve
from sssd.types import DraftTree, NodeScores, Row, StepPlan, Verdict, VerifyBatch

OWN_SECONDS = 0.0002


def _never(node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
    raise AssertionError("nothing is chosen here")


def plan_of(forced: Sequence[int], *, past_len: int = 100, samples: Sequence[bool] | None = None) -> StepPlan:
    """Rows of so many forced columns each."""
    return StepPlan(
        tuple(
            Row(
                request_id=i,
                slot=i,
                past_len=past_len,
                forced=np.arange(f, dtype=np.int32),
                budget=64,
                samples=samples is None or samples[i],
                choose=_never,
                needs_scores=False,
                n_logprobs=None,
                stop_ids=frozenset(),
                room=1000,
            )
            for i, f in enumerate(forced)
        )
    )


def chain(scores: Sequence[float]) -> DraftTree:
    """A chain with these scores."""
    n = len(scores)
    return DraftTree(
        np.arange(n, dtype=np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.array(scores, np.float32),
        np.zeros(n, np.uint8),
    )


def random_tree(random: np.random.Generator, n: int) -> DraftTree:
    """A tree of n nodes whose scores fall from parent to child."""
    parents = [int(random.integers(-1, i)) for i in range(n)]
    scores: list[float] = []
    for parent in parents:
        scores.append((scores[parent] if parent >= 0 else 1.0) * float(random.uniform(0.2, 0.95)))
    return DraftTree(
        np.arange(n, dtype=np.int32), np.array(parents, np.int32), np.array(scores, np.float32), np.zeros(n, np.uint8)
    )


@cache
def powers(rate: float, n: int) -> DraftTree:
    """A chain whose tokens each have the chance `rate` after the one before."""
    return chain(np.cumprod(np.full(n, rate)).tolist())


@cache
def batch_of(rows: int, width: int) -> VerifyBatch:
    """A batch of chains of `width` columns that are all scored, behind 100 tokens."""
    columns = np.tile(np.arange(width), (rows, 1))
    return VerifyBatch(
        first_slot=0,
        input_ids=columns,
        position_ids=columns + 100,
        past_lens=np.full(rows, 100, np.int64),
        tree_mask=np.tile(np.tri(width, dtype=bool), (rows, 1, 1)),
        logit_rows=columns,
        parents=(columns - 1).astype(np.int32),
        n_forced=np.ones(rows, np.int32),
        n_nodes=np.full(rows, width, np.int32),
        needs_scores=False,
    )


class Machine:
    """Runs steps against a budget: forwards cost what `curve` says, chain tokens are accepted as `rates` says.

    `rates` are the true chances of a row's next draft tokens; drafts claim `claim` times as much.
    """

    def __init__(self, curve: CostCurve, *, rows: int, seed: int = 0) -> None:
        self.curve = curve
        self.rows = rows
        self.plan = plan_of([1] * rows)
        self.claim = 1.0
        self.slower = 1.0
        self.random = np.random.default_rng(seed)
        self.tokens = 0.0  # expected ones, so that luck does not count
        self.seconds = 0.0
        self.widths: list[int] = []

    def step(self, budget: Budget, rates: Sequence[float], *, min_width: int = 1, drafted: int = 15) -> None:
        """One step of every row."""
        each = [rates[i % len(rates)] for i in range(self.rows)]
        kept = budget.trim(self.plan, [self._claimed(rate, drafted) for rate in each])
        width = max(min_width, *(1 + len(t) for t in kept))
        accepted = [self._accepted(rate, len(t)) for rate, t in zip(each, kept, strict=True)]
        verdicts = [Verdict(np.arange(1 + n, dtype=np.int32), tuple(range(1, n + 1)), (0,) * (n + 1)) for n in accepted]
        seconds = self.curve.seconds(self.rows, width, 100) * self.slower
        batch = batch_of(self.rows, width)
        budget.observe(batch, verdicts, forward_seconds=seconds, own_seconds=OWN_SECONDS)
        self.tokens += sum(sum(rate**i for i in range(len(t) + 1)) for rate, t in zip(each, kept, strict=True))
        self.seconds += seconds + OWN_SECONDS
        self.widths.append(width)

    def run(self, budget: Budget, rates: Sequence[float], steps: int, **options: int) -> float:
        """Expected tokens per second over so many steps."""
        tokens, seconds = self.tokens, self.seconds
        for _ in range(steps):
            self.step(budget, rates, **options)
        return (self.tokens - tokens) / (self.seconds - seconds)

    def _claimed(self, rate: float, drafted: int) -> DraftTree:
        return powers(min(rate * self.claim, 0.99), drafted)

    def _accepted(self, rate: float, n: int) -> int:
        failed = np.flatnonzero(self.random.random(n) >= rate)
        return int(failed[0]) if len(failed) else n


def best_fixed(curve: CostCurve, rates: Sequence[float], *, rows: int, min_width: int, most: int) -> float:
    """Tokens per second of the best fixed width, by arithmetic."""
    each = [rates[i % len(rates)] for i in range(rows)]

    def rate(width: int) -> float:
        tokens = sum(sum(r**i for i in range(width)) for r in each)
        return tokens / (curve.seconds(rows, width, 100) + OWN_SECONDS)

    return max(rate(width) for width in range(min_width, most + 1))
