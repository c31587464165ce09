"""Prompt beginnings that stand in the cache already. Owns the warm slots: finished requests' KV that is kept for reuse.

Knows tokens and slot numbers; it moves nothing itself, it says what to copy. Bit-stable engines give a token the same
KV whoever computed it, so a copied beginning changes nothing in the output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sssd.types import Int32

LEAST = 16  # tokens from which copying is worth its trouble


class Prefix(NamedTuple):
    """The first `n` tokens of what stands in slot `slot`."""

    slot: int
    n: int


@dataclass(slots=True)
class _Warm:
    tokens: Int32  # int32 [n], a copy
    used: int  # when it was kept or reused last


class WarmSlots:
    """`n` slots from `first` on that hold what finished requests have left. The least recently used one is given up."""

    def __init__(self, first: int, n: int) -> None:
        self._free = list(range(first + n - 1, first - 1, -1))
        self._kept: dict[int, _Warm] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, tokens: Int32) -> int | None:
        """The slot that KV of `tokens` (int32 [n]) should be copied to; None when it is not worth keeping.

        A kept beginning of the same text gives way to it; text that is kept in full already is not kept twice.
        """
        if len(tokens) < LEAST or not (self._free or self._kept):
            return None
        self._clock += 1
        for slot, warm in self._kept.items():
            n = common_prefix(warm.tokens, tokens)
            if n == len(tokens):
                warm.used = self._clock
                return None
            if n == len(warm.tokens):
                return self._put(slot, tokens)
        if self._free:
            return self._put(self._free.pop(), tokens)
        return self._put(min(self._kept, key=lambda s: self._kept[s].used), tokens)

    def _put(self, slot: int, tokens: Int32) -> int:
        self._kept[slot] = _Warm(tokens.copy(), self._clock)
        return slot

    def longest(self, tokens: Int32, running: Iterable[tuple[int, Int32]]) -> Prefix | None:
        """The longest beginning of `tokens` that stands in a warm slot or in `running` (slot, its cached tokens).

        Never all of `tokens`, whose last one has to be computed; None when none is worth copying.
        """
        best = Prefix(-1, LEAST - 1)
        for slot, cached in (*running, *((s, w.tokens) for s, w in self._kept.items())):
            n = min(common_prefix(cached, tokens), len(tokens) - 1)
            if n > best.n:
                best = Prefix(slot, n)
        if best.slot in self._kept:
            self._clock += 1
            self._kept[best.slot].used = self._clock
        return best if best.slot >= 0 else None


def common_prefix(a: Int32, b: Int32) -> int:
    """Length of the longest common beginning of two int32 arrays."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n
