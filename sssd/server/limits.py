"""How much a key may ask for at once and a minute. Owns the counters; knows no HTTP.

Used on one thread, the event loop's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from sssd.server.keys import ApiKey


class Refusal(NamedTuple):
    """Why a request may not start now, and when another try makes sense."""

    why: str  # for the client
    retry_after: int  # seconds, at least 1


class Limits:
    """Counts every key's requests.

    A minute's requests are a bucket that holds as many as the limit says and fills evenly, so that a client may burst
    up to its limit and then goes on at its rate.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._running: dict[str, int] = {}
        self._buckets: dict[str, tuple[float, float]] = {}  # (requests left, when that was)

    def enter(self, key: ApiKey) -> Refusal | None:
        """Count a request in, or say why not; every request that came in must `leave`."""
        running = self._running.get(key.name, 0)
        if key.requests_at_once is not None and running >= key.requests_at_once:
            return Refusal(f"key {key.name} may run {key.requests_at_once} requests at once", 1)
        if key.requests_per_minute is not None:
            left = self._left(key.name, key.requests_per_minute)
            if left < 1:
                seconds = math.ceil((1 - left) * 60 / key.requests_per_minute)
                return Refusal(f"key {key.name} may start {key.requests_per_minute} requests a minute", seconds)
            self._buckets[key.name] = (left - 1, self._clock())
        self._running[key.name] = running + 1
        return None

    def leave(self, key: ApiKey) -> None:
        """A request that came in is over."""
        self._running[key.name] -= 1
        assert self._running[key.name] >= 0, "left more often than entered"

    def _left(self, name: str, per_minute: int) -> float:
        now = self._clock()
        left, since = self._buckets.get(name, (float(per_minute), now))
        return min(float(per_minute), left + (now - since) * per_minute / 60)
