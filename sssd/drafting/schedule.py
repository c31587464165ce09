"""Which levels of a cascade take part in a step: those with which the most tokens come a second. Owns the figures.

Knows levels by their numbers; what they cost and bring is what whole steps took and gave, the target's time included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Lineup = tuple[int, ...]  # levels that take part, largest first; none = the bottom drafter alone


@dataclass(slots=True)
class _Seen:
    """Steps of one lineup at one batch size; old ones fade."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    longest: float = math.inf  # clips the next step: twice the mean so far

    MEMORY = 0.99  # of a step, at every later one

    def add(self, tokens: int, seconds: float) -> None:
        seconds = min(seconds, self.longest)
        self.tokens = self.tokens * self.MEMORY + tokens
        self.seconds = self.seconds * self.MEMORY + seconds
        self.steps += 1
        if self.steps >= Schedule.BURST:
            self.longest = 4 * self.seconds / self._weight()

    def _weight(self) -> float:
        return (1 - self.MEMORY**self.steps) / (1 - self.MEMORY)

    def rate(self) -> float:
        return self.tokens / self.seconds

    def lost(self, best: _Seen) -> float:
        """Steps of the best lineup that one of this one throws away."""
        mine = self.seconds / self._weight()
        return max(0.0, mine * best.rate() - self.tokens / self._weight()) / (best.tokens / best._weight())


class Schedule:
    """The lineup of each step.

    Every lineup is tried for `BURST` steps, the cheapest first, one more step before it not counted, in which its
    levels read what they have missed. Then the best one runs, and now and then the others have a burst again in turns:
    after 64, 128, ... 2048 steps, or more where their last burst threw away more than `PROBE_COST` of those. Lineups
    are judged apart at each batch size (to the power of two). Used from one thread.
    """

    BURST = 4  # steps
    FIRST_PROBE, LAST_PROBE = 64, 2048  # steps
    PROBE_COST = 0.01

    def __init__(self, n_levels: int) -> None:
        self._lineups: list[Lineup] = [
            members for n in range(n_levels + 1) for members in reversed(list(combinations(range(n_levels), n)))
        ]
        self._seen: dict[tuple[int, Lineup], _Seen] = {}
        self._burst: Lineup | None = None
        self._left = 0  # steps of the burst
        self._warming = False  # this step's lineup has just come in
        self._last: Lineup | None = None
        self._since = 0
        self._interval = self.FIRST_PROBE
        self._n_probes = 0

    def exclude(self, level: int) -> None:
        """A level is gone for good."""
        self._lineups = [lineup for lineup in self._lineups if level not in lineup]
        if self._burst is not None and level in self._burst:
            self._burst = None

    def choose(self, rows: int) -> Lineup:
        """The lineup of the next step."""
        chosen = self._next(rows.bit_length())
        self._warming = chosen != self._last and chosen != ()
        self._last = chosen
        return chosen

    def observe(self, lineup: Lineup, rows: int, tokens: int, seconds: float) -> None:
        """What a step with `lineup` gave and took; asked for after each `choose` whose step went as steps do."""
        if self._warming:
            return
        self._seen.setdefault((rows.bit_length(), lineup), _Seen()).add(tokens, seconds)
        if self._burst == lineup:
            self._left -= 1
            if self._left <= 0:
                self._burst = None

    def _next(self, size: int) -> Lineup:
        if self._burst is not None:
            return self._burst
        for lineup in self._lineups:
            if (size, lineup) not in self._seen or self._seen[size, lineup].steps < self.BURST:
                return lineup
        ranked = sorted(self._lineups, key=lambda lineup: -self._seen[size, lineup].rate())
        best = ranked[0]
        self._since += 1
        other = self._other(ranked, size)
        if other is None:
            return best
        self._burst, self._left = other, self.BURST
        self._since, self._interval = 0, min(2 * self._interval, self.LAST_PROBE)
        self._n_probes += 1
        return other

    def _other(self, ranked: Sequence[Lineup], size: int) -> Lineup | None:
        """The lineup whose turn it is to be tried again, if that may be now."""
        if len(ranked) < 2:
            return None
        other = ranked[1 + self._n_probes % (len(ranked) - 1)]
        lost = self._seen[size, other].lost(self._seen[size, ranked[0]]) * (self.BURST + 1)
        return other if self._since > max(self._interval, lost / self.PROBE_COST) else None
