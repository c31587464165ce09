"""Exact search in segments: where a sequence of tokens stands. Owns the binary search.

Slow and simple (Python, one query at a time): for people and tests; drafting has its own, native search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sssd.drafting.segments import SEPARATOR, Segment
from sssd.types import Int32, Int64


class Interval(NamedTuple):
    """A run of a suffix array: the suffixes that begin with the query."""

    first: int
    stop: int


def matching_interval(segment: Segment, query: Int32) -> Interval:
    """Where `query` (int32 [q], q >= 1, no separators) stands in the suffix array. O(q log n)."""
    wanted = query.tolist()
    tokens, suffixes = segment.tokens, segment.suffixes

    def boundary(past_equal: bool) -> int:
        low, high = 0, len(suffixes)
        while low < high:
            middle = (low + high) // 2
            at = int(suffixes[middle])
            head = tokens[at : at + len(wanted)].tolist()
            if head < wanted or (past_equal and head == wanted):
                low = middle + 1
            else:
                high = middle
        return low

    return Interval(boundary(False), boundary(True))


def matching_positions(segment: Segment, query: Int32) -> Int64:
    """Positions where `query` begins in documents that are not dead, ascending: int64 [m]."""
    first, stop = matching_interval(segment, query)
    positions = np.sort(segment.suffixes[first:stop]).astype(np.int64)
    inside = np.searchsorted(segment.dead.reshape(-1), positions, side="right") % 2 == 1
    alive: Int64 = positions[~inside]
    return alive


def document_tail(segment: Segment, position: int, length: int) -> Int32:
    """At most `length` tokens from `position` on, up to the document's end: int32 [<= length]."""
    piece = segment.tokens[position : position + length]
    ends = np.flatnonzero(piece == SEPARATOR)
    return piece[: ends[0]] if len(ends) else piece
