"""Counts of what the server did. Owns the numbers and what they mean.

Knows neither HTTP nor how the numbers are shown. Plain integers, fed and read on one thread, the event loop's: a step's
counting costs a few microseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Literal

from sssd.types import FinishReason, Source, StepOutput

Cancelled = Literal["cancelled"]  # the client has gone
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Counts of values by upper bound; `bounds` ascend, what lies above the last is counted too."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one holds what no bound covers
        self.total = 0.0  # sum of all values

    def observe(self, value: float, n: int = 1) -> None:
        """Count `value` `n` times."""
        self.counts[bisect_left(self.bounds, value)] += n
        self.total += n * value

    @property
    def n(self) -> int:
        """How many values were counted."""
        return sum(self.counts)


class Meter:
    """Everything that is counted over requests and their steps. `clock` gives seconds; only differences count."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.n_active = 0  # requests that arrived and have not ended
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of them, copied from another slot instead of computed
        self.tokens = 0  # delivered
        self.finished: Counter[str] = Counter()  # by FinishReason or Cancelled
        self.refused: Counter[str] = Counter()  # HTTP requests answered with an error, by status
        self.n_steps = 0  # forward passes that emitted tokens, counted once a request
        self.n_drafts = 0  # of them, with a draft
        self.drafted = [0] * len(Source)
        self.accepted = [0] * len(Source)
        self.steps_with = [0] * len(Source)  # steps in which a source gave a node
        self.by_position: list[int] = []  # drafts whose node at that depth was accepted
        self.to_first_token = Histogram()
        self.between_tokens = Histogram()
        self.per_output_token = Histogram()
        self.end_to_end = Histogram()
        self.in_queue = Histogram()

    def arrived(self, at: float | None = None) -> RequestMeter:
        """A request has been taken in, which came `at` that time of the clock; None = now."""
        self.n_active += 1
        return RequestMeter(self, self.clock() if at is None else at)

    def _count(self, out: StepOutput) -> None:
        drafted, accepted = out.n_drafted, out.n_accepted
        self.n_steps += 1
        if not any(drafted):
            return
        self.n_drafts += 1
        for source, n in enumerate(drafted):
            self.drafted[source] += n
            self.accepted[source] += accepted[source]
            self.steps_with[source] += n > 0
        depth = sum(accepted)
        while len(self.by_position) < depth:
            self.by_position.append(0)
        for position in range(depth):
            self.by_position[position] += 1


class RequestMeter:
    """One request on its way; what it took goes to its meter."""

    __slots__ = ("_arrived", "_first", "_last", "_meter", "_n", "_n_first", "_over")

    def __init__(self, meter: Meter, arrived: float) -> None:
        self._meter = meter
        self._arrived = arrived
        self._first: float | None = None  # when the first tokens came
        self._last = arrived
        self._n = self._n_first = 0
        self._over = False

    def step(self, out: StepOutput, delivered: int) -> None:
        """A step's output, of which `delivered` tokens go to the client."""
        if not out.tokens:
            return
        meter = self._meter
        now = meter.clock()
        meter._count(out)
        meter.tokens += delivered
        self._n += delivered
        if self._first is None:
            self._first, self._n_first = now, delivered
            meter.to_first_token.observe(now - self._arrived)
        elif delivered:
            meter.between_tokens.observe((now - self._last) / delivered, delivered)
        self._last = now

    def ended(
        self, finish: FinishReason | Cancelled, *, prompt_tokens: int, cached_tokens: int, queue_seconds: float | None
    ) -> None:
        """The request is over; `queue_seconds` is None when it never got a slot. Counted once, however often called."""
        if self._over:
            return
        self._over = True
        meter = self._meter
        meter.n_active -= 1
        meter.finished[finish] += 1
        meter.prompt_tokens += prompt_tokens
        meter.cached_tokens += cached_tokens
        meter.end_to_end.observe(meter.clock() - self._arrived)
        if queue_seconds is not None:
            meter.in_queue.observe(queue_seconds)
        later = self._n - self._n_first
        if self._first is not None and later:
            meter.per_output_token.observe((self._last - self._first) / later)
