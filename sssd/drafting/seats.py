"""Which request's text stands in which slot of a draft model. Owns the slots' bookkeeping; computes and moves nothing.

A slot keeps its text when its request ends, until another one needs it: a later request with the same beginning starts
from there. What stands behind the text that a slot is said to hold is garbage.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sssd.types import Int32

_LEAST = 16  # tokens from which copying a beginning is worth its trouble


@dataclass(slots=True)
class Seat:
    """One slot."""

    slot: int
    owner: int | None = None  # request; None = free
    tokens: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))  # int32 [n]; these have KV
    used: int = 0  # when it was asked for last


class Taken(NamedTuple):
    """A request's slot, and a beginning to copy there first."""

    seat: Seat
    src: int  # slot
    n: int  # tokens; 0 = nothing to copy


class Seats:
    """`n` slots; a request keeps its own until it ends or one that is drafted for needs it more."""

    def __init__(self, n: int) -> None:
        self._seats = [Seat(slot) for slot in range(n)]
        self._of: dict[int, Seat] = {}
        self._clock = 0

    def __getitem__(self, slot: int) -> Seat:
        return self._seats[slot]

    def take(self, request_id: int, text: Int32, busy: Collection[int]) -> Taken | None:
        """The request's slot; None when every slot belongs to a request in `busy` (those of the same call)."""
        self._clock += 1
        seat = self._of.get(request_id)
        if seat is not None:
            seat.used = self._clock
            return Taken(seat, seat.slot, 0)
        best = max(self._seats, key=lambda s: shared(s.tokens, text))
        n = min(shared(best.tokens, text), len(text) - 1)
        if n < _LEAST:
            n = 0
        if n and best.owner is None:
            seat = best
        else:
            open_to = [s for s in self._seats if s.owner is None or s.owner not in busy]
            if not open_to:
                return None
            seat = min(open_to, key=lambda s: (s.owner is not None, s.used))
        if seat is best:
            n = 0  # it stands there already
        if n:
            seat.tokens = best.tokens[:n].copy()
        if seat.owner is not None:
            del self._of[seat.owner]
        seat.owner, seat.used = request_id, self._clock
        self._of[request_id] = seat
        return Taken(seat, best.slot, n)

    def end(self, request_id: int) -> None:
        """The request is over; its text stays for reuse. One that never had a slot is no error."""
        seat = self._of.pop(request_id, None)
        if seat is not None:
            seat.owner = None

    def forget(self) -> None:
        """Nothing in any slot is to be trusted."""
        for seat in self._seats:
            seat.tokens = seat.tokens[:0]

    def check(self) -> list[str]:
        """Slots and owners that do not agree."""
        held = {seat.owner: seat.slot for seat in self._seats if seat.owner is not None}
        known = {request_id: seat.slot for request_id, seat in self._of.items()}
        return [] if held == known else [f"slots say {held}, requests say {known}"]


def shared(a: Int32, b: Int32) -> int:
    """Length of the longest common beginning of two int32 arrays."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n
