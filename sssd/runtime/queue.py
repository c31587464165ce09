"""The waiting line: who is next, and how many may wait. Owns order and bound; knows no slots and no engine."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from sssd.errors import QueueFull
from sssd.runtime.request import Request


class WaitingLine:
    """Requests in the order in which they get a slot: by priority (lower first), then by arrival.

    A preempted request keeps its arrival and so stands in front of later ones. Cost: O(n) an operation, n waiting.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._line: list[Request] = []

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def join(self, request: Request, *, n_free: int = 0) -> None:
        """Take a place. Raises QueueFull when as many wait as may, beside those whom `n_free` free slots await."""
        if len(self._line) >= self.limit + n_free:
            raise QueueFull(f"{self.limit} requests are waiting already: try again later")
        self.rejoin(request)

    def rejoin(self, request: Request) -> None:
        """Take a place whatever the limit: a request that was admitted once is never turned away."""
        insort(self._line, request, key=lambda r: (r.priority, r.arrival))

    def first(self) -> Request | None:
        """Who is next; None when nobody waits."""
        return self._line[0] if self._line else None

    def leave(self, request: Request) -> None:
        """Give up the place."""
        self._line.remove(request)
