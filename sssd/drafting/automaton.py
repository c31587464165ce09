"""Where the end of a text occurred before: an online suffix automaton, and a text with guesses behind it.

Knows tokens only; what is made of a match is the drafters' affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload


class Match(NamedTuple):
    """A suffix found again: how long it is and where its earliest occurrence ends; (0, 0) = none."""

    length: int
    end: int


class SuffixAutomaton:
    """Online suffix automaton of one token sequence; answers the longest suffix seen before.

    Ties: of the occurrences of that suffix the earliest is reported. At most 2n states and 3n transitions;
    `extend` is amortised O(1), `longest_repeat` O(1). The live suffix itself is never an occurrence.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._len = [0]
        self._first_end = [0]
        self._last = 0

    def _add(self, transitions: dict[int, int], length: int, first_end: int) -> int:
        self._next.append(transitions)
        self._link.append(0)
        self._len.append(length)
        self._first_end.append(first_end)
        return len(self._len) - 1

    def extend(self, token: int) -> None:
        """Append one token."""
        length = self._len[self._last] + 1
        state = self._add({}, length, length)
        p = self._last
        while p != -1 and token not in self._next[p]:
            self._next[p][token] = state
            p = self._link[p]
        if p != -1:
            self._link[state] = self._split(p, token)
        self._last = state

    def _split(self, p: int, token: int) -> int:
        """The state of exactly p's longest string plus `token`; cloned out of a longer one where needed."""
        q = self._next[p][token]
        if self._len[q] == self._len[p] + 1:
            return q
        clone = self._add(dict(self._next[q]), self._len[p] + 1, self._first_end[q])
        self._link[clone] = self._link[q]
        self._link[q] = clone
        while p != -1 and self._next[p].get(token) == q:
            self._next[p][token] = clone
            p = self._link[p]
        return clone

    def longest_repeat(self) -> tuple[int, int]:
        """(length of the longest suffix that also ends earlier, its earliest end); (0, 0) when there is none."""
        link = self._link[self._last]
        return (self._len[link], self._first_end[link]) if link > 0 else (0, 0)

    def longest_match(self, ahead: Sequence[int]) -> Match:
        """The longest suffix of the text with `ahead` behind it that ends in the text, its own end aside.

        Cost: amortised O(1) a token of `ahead`.
        """
        if not ahead:
            return Match(*self.longest_repeat())
        state, length = self._last, self._len[self._last]
        for token in ahead:
            while state and token not in self._next[state]:
                state = self._link[state]
                length = self._len[state]
            if token in self._next[state]:
                state, length = self._next[state][token], length + 1
        return Match(length, self._first_end[state])


class Joined(Sequence[int]):
    """A text with guesses behind it, without copying the text."""

    def __init__(self, text: list[int], ahead: list[int]) -> None:
        self._text = text
        self._ahead = ahead

    def __len__(self) -> int:
        return len(self._text) + len(self._ahead)

    @overload
    def __getitem__(self, i: int) -> int: ...

    @overload
    def __getitem__(self, i: slice) -> list[int]: ...

    def __getitem__(self, i: int | slice) -> int | list[int]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self._text[i] if i < len(self._text) else self._ahead[i - len(self._text)]

    def agreeing(self, end: int) -> int:
        """How many tokens before `end` and before the whole's end agree."""
        n = 0
        while n < end and self[end - 1 - n] == self[len(self) - 1 - n]:
            n += 1
        return n
