"""Which levels of a cascade take part in a step: those with which the most tokens come a second. Owns the figures.

Knows levels by their numbers; what they cost and bring is what whole steps took and gave, the target's time included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

Lineup = tuple[int, ...]  # levels that take part, largest first; none = the bottom drafter alone


@dataclass(slots=True)
class _Seen:
    """Steps of one lineup at one batch size; old ones fade."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    longest: float = math.inf  # clips the next step: four times the mean so far

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


class Schedule:
    """The lineup of each step.

    A lineup is tried for `BURST` steps, after one more in which its levels read what they have missed; the cheapest
    lineup comes first. Then the best one runs, and the others are tried again in turns, after 64, 128, ... 2048 steps.
    No try begins while all tries so far, reading included, have lost more than `MOST_LOST` of the time that has passed.
    Lineups are judged apart at each batch size (to the power of two). Used from one thread.
    """

    BURST = 4  # steps
    FIRST_PROBE, LAST_PROBE = 64, 2048  # steps
    MOST_LOST = 0.01

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
        self._elapsed = self._lost = 0.0  # seconds

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
        size = rows.bit_length()
        self._elapsed += seconds
        known = [seen for (at, _), seen in self._seen.items() if at == size]
        if self._burst == lineup and known:
            self._lost += max(0.0, seconds - tokens / max(seen.rate() for seen in known))
        if self._warming:
            return
        self._seen.setdefault((size, lineup), _Seen()).add(tokens, seconds)
        if self._burst == lineup:
            self._left -= 1
            if self._left <= 0:
                self._burst = None

    def _next(self, size: int) -> Lineup:
        if self._burst is not None:
            return self._burst
        known = [one for one in self._lineups if (size, one) in self._seen]
        if not known or self._seen[size, known[0]].steps < self.BURST:
            return self._lineups[0]
        ranked = sorted(known, key=lambda lineup: -self._seen[size, lineup].rate())
        unknown = [lineup for lineup in self._lineups if lineup not in known]
        self._since += 1
        if self._lost > self.MOST_LOST * self._elapsed:
            return ranked[0]
        if unknown:
            return self._try(unknown[0])
        if len(ranked) < 2 or self._since <= self._interval:
            return ranked[0]
        self._interval = min(2 * self._interval, self.LAST_PROBE)
        self._n_probes += 1
        return self._try(ranked[1 + self._n_probes % (len(ranked) - 1)])

    def _try(self, lineup: Lineup) -> Lineup:
        self._burst, self._left, self._since = lineup, self.BURST, 0
        return lineup
