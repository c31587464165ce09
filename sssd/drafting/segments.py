"""The segment: one searchable piece of remembered text, as the drafting core reads it. Owns its shape and its rules.

Knows neither files nor suffix sorting: whoever makes a segment keeps the rules stated here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sssd.types import Int32, Int64, Source

SEPARATOR = -1  # stands after every document; no token id is negative


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Documents laid end to end, each closed by SEPARATOR, with the order of their suffixes.

    Arrays are read-only and may be views of a mapped file; holding one keeps its mapping alive. A mapped file may
    have been damaged after it was written, so a reader must hold every entry of `suffixes` against `len(tokens)`
    before it follows it. Suffixes that agree up to their separators stand in no promised order.
    """

    tokens: Int32  # int32 [n]; ids >= 0, SEPARATOR after every document, the last element included
    suffixes: Int32  # int32 [m]; the m positions that hold tokens, sorted by what follows; SEPARATOR sorts below all
    dead: Int64  # int64 [k, 2]; sorted disjoint position ranges [start, stop) of erased or expired documents
    source: Source  # DATASTORE (a file) or LIVE (remembered requests)


def no_dead() -> Int64:
    """The dead ranges of a segment of which nothing was erased: int64 [0, 2]."""
    return np.zeros((0, 2), np.int64)


def segment_problems(segment: Segment) -> list[str]:
    """Every rule of `Segment` that this one breaks; linear in its size, with about 20 bytes a token of scratch.

    The order is proved by comparing neighbours only: their first tokens, then the places of what follows those.
    """
    tokens, suffixes = segment.tokens, segment.suffixes
    n = len(tokens)
    found: list[str] = []
    if n and tokens[-1] != SEPARATOR:
        found.append("the last document has no separator")
    if n and tokens.min() < SEPARATOR:
        found.append(f"token {int(tokens.min())} is negative")
    real = np.flatnonzero(tokens != SEPARATOR)
    if len(suffixes) != len(real) or not np.array_equal(np.sort(suffixes), real):
        return [*found, "suffixes are not the positions that hold tokens, each once"]
    if not found:
        place = np.zeros(n, np.int64)  # separators share place 0, below every token
        place[suffixes] = np.arange(1, len(suffixes) + 1)
        earlier, later = suffixes[:-1], suffixes[1:]
        same = tokens[earlier] == tokens[later]
        follow_earlier, follow_later = place[earlier + 1], place[later + 1]
        tied = same & ((follow_earlier < follow_later) | ((follow_earlier == 0) & (follow_later == 0)))
        if not np.all((tokens[earlier] < tokens[later]) | tied):
            found.append("suffixes are not in the order of what follows them")
    bounds = segment.dead.reshape(-1)
    if len(bounds) and (bounds[0] < 0 or bounds[-1] > n or np.any(np.diff(bounds) < 0)):
        found.append("dead ranges are not sorted, disjoint and inside the segment")
    return found
