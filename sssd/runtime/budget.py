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

from sssd.runtime.columns import cut, rank, shape_of
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
        shape = shape_of(plan, trees, self._min_width)
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
    Now and then a step probes what seems second best, so that costs and confidences stay current and speculation comes
    back by itself: while it is off the best wider step, while it is on in turns a plain step and one twice as wide. The
    steps between probes double from 16 to 512, begin anew when a probe took a time that nobody expected, and are more
    where a probe would cost more than `PROBE_COST` of them. While costs are not known yet, every fourth step tries a
    width that has not been seen, unless that seems to throw away more than `CURIOUS` steps.
    Used from one thread. Cost of both calls together: some 100 us a step for 8 rows, 300 us for 64.
    """

    PROBE_COST = 0.004
    FIRST_PROBE, LAST_PROBE = 16, 512  # steps
    SURPRISE = 0.2  # a logarithm
    CURIOUS = 3.0  # steps

    def __init__(self, costs: OnlineCosts, *, min_width: int = 1) -> None:
        assert min_width >= 1, "a step has a column"
        self._costs = costs
        self._min_width = min_width
        self._trust = _Trust()
        self._own_seconds: float | None = None
        self._speculating: bool | None = None  # the last decision that was one
        self._interval = self.FIRST_PROBE
        self._since_probe = 0
        self._is_probe = False
        self._n_choices = 0
        self._n_switches = self._n_probes = self._n_plain = 0
        self._widths: Counter[int] = Counter()
        self._promised = 0.0  # by the scores of the trees trimmed last

    def trim(self, plan: StepPlan, trees: Sequence[DraftTree]) -> list[DraftTree]:
        """The trees, cut to the best nodes that the chosen width has columns for."""
        shape = shape_of(plan, trees, self._min_width)
        self._promised, self._is_probe = 0.0, False
        if not shape.n_choosing:
            return list(trees)
        if shape.widest <= shape.base:
            self._count(shape.base, shape.base)
            self._promised = float(sum(t.scores.sum() for t in trees))
            if self._speculating:
                self._since_probe = 0  # a plain step has come by itself
            return list(trees)
        ranked = rank(trees, shape)
        worth = Worth(
            shape.n_choosing + self._trust.value * ranked.gains[shape.base :],
            self._costs.by_width(len(plan.rows), shape.widest, shape.context)[shape.base - 1 :]
            + (self._own_seconds or 0.0),
        )
        width = shape.base + self._choose(worth, len(plan.rows), shape.base)
        self._count(width, shape.base)
        self._promised = float(ranked.gains[width])
        return list(trees) if width == shape.widest else cut(trees, ranked, width)

    def observe(
        self, batch: VerifyBatch, verdicts: Sequence[Verdict], *, forward_seconds: float, own_seconds: float
    ) -> None:
        """Learn what the forward and the loop took and how much of the promise was kept."""
        rows, width = batch.input_ids.shape
        if 2 * batch.logit_rows.shape[1] > width:  # a piece of a prompt scores few of its columns: it is cheaper
            off = self._costs.observe(rows, width, int(batch.past_lens.max()), forward_seconds)
            if self._is_probe and abs(off) > self.SURPRISE:
                self._interval = self.FIRST_PROBE
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

    def _choose(self, worth: Worth, rows: int, base: int) -> int:
        """Columns beyond the base: the best number, or another one where something is to be learned."""
        rates = worth.rates()
        best = int(rates.argmax())
        if self._speculating is not None and self._speculating != (best > 0):
            self._n_switches += 1
            self._interval, self._since_probe = self.FIRST_PROBE, 0
        self._speculating = best > 0
        self._n_choices += 1
        self._since_probe += 1
        other = self._unseen(worth, best, rows, base) if self._n_choices % 4 == 0 else None
        if other is None:
            other = self._second_best(rates, best, base)
            if self._since_probe <= max(self._interval, worth.lost(best, other) / self.PROBE_COST):
                return best
            self._since_probe, self._interval = 0, min(2 * self._interval, self.LAST_PROBE)
        self._is_probe = True
        self._n_probes += 1
        return other

    def _second_best(self, rates: Float64, best: int, base: int) -> int:
        """The number of columns beyond the base to probe next."""
        if best == 0:
            return 1 + int(rates[1:].argmax())
        wider = min(best + base + best, len(rates) - 1)
        return wider if self._n_probes % 2 and wider > best else 0

    def _unseen(self, worth: Worth, best: int, rows: int, base: int) -> int | None:
        """The narrowest number of columns beyond the base whose cost is not known yet and not far too high."""
        beyond = [width - base for width in self._costs.unknown_widths(rows)]
        tried = [x for x in beyond if 0 <= x < len(worth.tokens) and worth.lost(best, x) < self.CURIOUS]
        return tried[0] if tried else None

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
