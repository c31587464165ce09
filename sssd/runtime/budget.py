"""How much of the drafted trees a step verifies: the width with the most expected tokens per second.

Knows costs as numbers and trees by their scores; neither engines nor where drafts come from.

A batch is rectangular: at width T each row may carry T columns whatever the others carry. So a width is chosen, not a
share for each row, and inside of it a row keeps its best nodes, likely or not: nothing in there can fail to pay, for it
costs nothing.

    0 ........ base ............ T ........... widest
    forced     these columns     paid for      trimmed
    columns    run in any case
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sssd import tree
from sssd.runtime.costs import Float64, OnlineCosts
from sssd.types import DraftTree, StepPlan, Verdict, VerifyBatch


@dataclass(frozen=True, slots=True)
class BudgetStats:
    """What a budget has done so far. Steps in which no row chooses a token are not counted."""

    n_speculating: int  # steps wider than they had to be
    n_plain: int  # steps as narrow as the engine allows; what fits in there was verified for nothing
    n_switches: int  # times speculation went on or off
    n_probes: int  # steps that did what seemed second best, to keep up to date
    trust: float  # accepted draft tokens over promised ones, lately; scales what scores promise
    widths: tuple[tuple[int, int], ...]  # (width, steps), ascending


class Budget(Protocol):
    """Stands between the drafter and the packing of a batch."""

    def trim(self, plan: StepPlan, trees: Sequence[DraftTree]) -> list[DraftTree]:
        """What of each tree to verify in this step."""

    def observe(
        self, batch: VerifyBatch, verdicts: Sequence[Verdict], *, forward_seconds: float, own_seconds: float
    ) -> None:
        """How the step went: `forward_seconds` in the engine, `own_seconds` in the loop."""

    def stats(self) -> BudgetStats:
        """Counters since the start."""


class FixedBudget:
    """Every node, always: for engines with one width, and to compare with."""

    def __init__(self, *, min_width: int = 1) -> None:
        self._min_width = min_width
        self._widths: Counter[int] = Counter()
        self._n_plain = 0

    def trim(self, plan: StepPlan, trees: Sequence[DraftTree]) -> list[DraftTree]:
        """The trees as they are."""
        shape = _shape(plan, trees, self._min_width)
        if shape.n_choosing:
            self._widths[max(shape.widest, shape.base)] += 1
            self._n_plain += shape.widest <= shape.base
        return list(trees)

    def observe(
        self, batch: VerifyBatch, verdicts: Sequence[Verdict], *, forward_seconds: float, own_seconds: float
    ) -> None:
        """Nothing to learn."""

    def stats(self) -> BudgetStats:
        """Counters since the start."""
        n = self._widths.total()
        return BudgetStats(n - self._n_plain, self._n_plain, 0, 0, 1.0, tuple(sorted(self._widths.items())))


class MeasuredBudget:
    """The width that maximizes expected tokens over time, by what forwards cost and what scores are worth.

    expected tokens at width T = choosing rows + trust * (sum of the scores of the nodes kept at T)
    time at width T            = forward's seconds at T + the loop's own seconds

    Scores are a drafter's estimates. `trust` is what was accepted over what was promised, over the last promises of
    about 40 tokens, so that a drafter which promises too much is corrected within some tens of steps; without new
    evidence it returns to 1 over some thousand steps.
    Now and then a step takes the other side (plain while speculation pays, the best wider step while it does not), so
    that costs and confidences stay current and speculation comes back by itself. The steps between such probes double
    from 16 to 512, and are more where a probe would cost more than `PROBE_COST` of them.
    Used from one thread. Cost: some 50 us for 8 rows, under 300 us for 64.
    """

    PROBE_COST = 0.004
    FIRST_PROBE, LAST_PROBE = 16, 512  # steps

    def __init__(self, costs: OnlineCosts, *, min_width: int = 1) -> None:
        assert min_width >= 1, "a step has a column"
        self._costs = costs
        self._min_width = min_width
        self._trust = _Trust()
        self._own_seconds: float | None = None
        self._speculating: bool | None = None  # the last decision that was one
        self._interval = self.FIRST_PROBE
        self._since_probe = 0
        self._n_switches = self._n_probes = self._n_plain = 0
        self._widths: Counter[int] = Counter()
        self._promised = 0.0  # by the scores of the trees trimmed last

    def trim(self, plan: StepPlan, trees: Sequence[DraftTree]) -> list[DraftTree]:
        """The trees, cut to the best nodes that the chosen width has columns for."""
        shape = _shape(plan, trees, self._min_width)
        self._promised = 0.0
        if not shape.n_choosing:
            return list(trees)
        if shape.widest <= shape.base:
            self._count(shape.base, shape.base)
            self._promised = float(sum(t.scores.sum() for t in trees))
            if self._speculating:
                self._since_probe = 0  # a plain step has come by itself
            return list(trees)
        ranked = _rank(trees, shape)
        worth = Worth(
            shape.n_choosing + self._trust.value * ranked.gains[shape.base :],
            self._costs.by_width(len(plan.rows), shape.widest, shape.context)[shape.base - 1 :]
            + (self._own_seconds or 0.0),
        )
        width = shape.base + self._choose(worth)
        self._count(width, shape.base)
        self._promised = float(ranked.gains[width])
        return [
            _best(t, width - int(f), is_sorted=bool(s))
            for t, f, s in zip(trees, shape.n_forced, ranked.is_sorted, strict=True)
        ]

    def observe(
        self, batch: VerifyBatch, verdicts: Sequence[Verdict], *, forward_seconds: float, own_seconds: float
    ) -> None:
        """Learn what the forward and the loop took and how much of the promise was kept."""
        rows, width = batch.input_ids.shape
        if 2 * batch.logit_rows.shape[1] > width:  # a piece of a prompt scores few of its columns: it is cheaper
            self._costs.observe(rows, width, int(batch.past_lens.max()), forward_seconds)
        own = own_seconds if self._own_seconds is None else self._own_seconds
        self._own_seconds = own + 0.05 * (min(own_seconds, 4 * own) - own)
        accepted = sum(len(v.tokens) - 1 for v in verdicts if v.tokens)
        self._trust.learn(self._promised, accepted)

    def stats(self) -> BudgetStats:
        """Counters since the start."""
        return BudgetStats(
            n_speculating=self._widths.total() - self._n_plain,
            n_plain=self._n_plain,
            n_switches=self._n_switches,
            n_probes=self._n_probes,
            trust=self._trust.value,
            widths=tuple(sorted(self._widths.items())),
        )

    def _choose(self, worth: Worth) -> int:
        """Columns beyond the base: the best number, or the best of the other side when a probe is due."""
        rates = worth.rates()
        best = int(rates.argmax())
        if self._speculating is not None and self._speculating != (best > 0):
            self._n_switches += 1
            self._interval, self._since_probe = self.FIRST_PROBE, 0
        self._speculating = best > 0
        other = 0 if best else 1 + int(rates[1:].argmax())
        self._since_probe += 1
        if self._since_probe <= max(self._interval, worth.lost(best, other) / self.PROBE_COST):
            return best
        self._since_probe, self._interval = 0, min(2 * self._interval, self.LAST_PROBE)
        self._n_probes += 1
        return other

    def _count(self, width: int, base: int) -> None:
        self._widths[width] += 1
        self._n_plain += width == base


class Worth(NamedTuple):
    """What each width would bring and take; index 0 is the base width."""

    tokens: Float64  # float64 [n] expected
    seconds: Float64  # float64 [n]

    def rates(self) -> Float64:
        """Tokens per second. Where they tie, argmax takes the narrower."""
        rates: Float64 = self.tokens / self.seconds
        return rates

    def lost(self, best: int, other: int) -> float:
        """How many steps at `best` one at `other` would throw away."""
        instead = self.seconds[other] * self.tokens[best] / self.seconds[best]
        return float((instead - self.tokens[other]) / self.tokens[best])


class _Trust:
    """Accepted over promised tokens, within LEAST and MOST; old evidence fades."""

    MEMORY = 40.0  # promised tokens
    FADES = 2000.0  # steps, when nothing is promised
    PRIOR = 4.0  # tokens that are taken as promised and kept
    LEAST, MOST = 0.3, 1.2

    def __init__(self) -> None:
        self._promised = self._accepted = 0.0

    @property
    def value(self) -> float:
        ratio = (self._accepted + self.PRIOR) / (self._promised + self.PRIOR)
        return min(max(ratio, self.LEAST), self.MOST)

    def learn(self, promised: float, accepted: int) -> None:
        fade = math.exp(-promised / self.MEMORY - 1 / self.FADES)
        self._promised = self._promised * fade + promised
        self._accepted = self._accepted * fade + accepted


class _Shape(NamedTuple):
    n_forced: list[int]  # of each row
    n_nodes: list[int]  # of each row
    n_choosing: int  # rows that choose a token in this step
    base: int  # columns that run in any case
    widest: int  # columns of the row with the most
    context: int  # committed tokens of the longest row


def _shape(plan: StepPlan, trees: Sequence[DraftTree], min_width: int) -> _Shape:
    forced = [len(row.forced) for row in plan.rows]
    nodes = [len(t) for t in trees]
    assert len(forced) == len(nodes) > 0, "one tree a row"
    return _Shape(
        forced,
        nodes,
        sum(row.samples for row in plan.rows),
        max(min_width, *forced),
        max(f + n for f, n in zip(forced, nodes, strict=True)),
        max(row.past_len for row in plan.rows),
    )


class _Ranked(NamedTuple):
    gains: Float64  # float64 [widest + 1]; sum of all rows' scores that fit in so many columns
    is_sorted: list[bool]  # of each row: its nodes stand best first


def _rank(trees: Sequence[DraftTree], shape: _Shape) -> _Ranked:
    """One pass over all scores: a row's k-th best node needs a width of its forced columns plus k."""
    lens = np.array(shape.n_nodes)
    ranks = np.arange(lens.max())
    scores = np.zeros((len(trees), len(ranks)), np.float32)
    scores[ranks < lens[:, None]] = np.concatenate([t.scores for t in trees])
    is_sorted: list[bool] = np.logical_and.reduce(scores[:, 1:] <= scores[:, :-1], axis=1).tolist()
    scores.sort(axis=1)
    needs = np.array(shape.n_forced)[:, None] + 1 + ranks
    gains = np.bincount(needs.ravel(), weights=scores[:, ::-1].ravel())
    return _Ranked(gains.cumsum()[: shape.widest + 1], is_sorted)


def _best(draft: DraftTree, n: int, *, is_sorted: bool) -> DraftTree:
    if len(draft) <= n:
        return draft
    if is_sorted:  # its best nodes are its first ones, and parents stand before them
        return DraftTree(draft.tokens[:n], draft.parents[:n], draft.scores[:n], draft.source[:n])
    return tree.trim(draft, n)
