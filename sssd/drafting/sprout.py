"""One row's draft while it grows, and what its scores are worth. Owns the draft's nodes; knows no engine and no K.

A draft has a path, along which it grows, and side branches that hang off it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from sssd import tree
from sssd.drafting.level import Said
from sssd.types import DraftTree, Float32, Int32, Source


class Kind(IntEnum):
    """How a draft model came to a token: whose chances are judged together."""

    GREEDY = 0  # its own choice, or a draft that it let pass
    SAMPLED = 1  # drawn with the target's noise: right more often than its probability says
    OTHER = 2  # one of its next best


class Rates:
    """How often the target accepts a draft model's token whose parent it accepted, by the model's own probability.

    Bins of the probability p, each (hits + PRIOR * guess) / (trials + PRIOR); guess is p, halfway to 1 for a draw with
    the target's noise. Decays: a bin remembers about its last five hundred trials.
    """

    N_BINS = 10
    PRIOR = 8.0
    DECAY = 0.998

    def __init__(self) -> None:
        self._hits = np.zeros((len(Kind), self.N_BINS))
        self._trials = np.zeros((len(Kind), self.N_BINS))

    def rate(self, kind: Kind, p: float) -> float:
        """Estimated probability that the token is accepted."""
        b = self._bin(p)
        guess = (1 + p) / 2 if kind == Kind.SAMPLED else p
        return float((self._hits[kind, b] + self.PRIOR * guess) / (self._trials[kind, b] + self.PRIOR))

    def learn(self, kind: Kind, p: float, accepted: bool) -> None:
        """One verdict."""
        b = self._bin(p)
        self._hits[kind, b] = self._hits[kind, b] * self.DECAY + accepted
        self._trials[kind, b] = self._trials[kind, b] * self.DECAY + 1

    def _bin(self, p: float) -> int:
        return min(int(p * self.N_BINS), self.N_BINS - 1)


class _Belief(NamedTuple):
    """Where a node's score came from."""

    rates: Rates
    kind: Kind
    p: float


class Sprout:
    """A draft below the last token of `text`, int32 [n]; its path has at most `room` nodes."""

    def __init__(self, request_id: int, text: Int32, room: int) -> None:
        self.request_id = request_id
        self.room = room
        self._text = text
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._source: list[int] = []
        self._beliefs: list[_Belief | None] = []  # None: the bottom drafter's own affair
        self._path: list[int] = []

    @property
    def length(self) -> int:
        """Nodes of its path."""
        return len(self._path)

    def ahead(self) -> Int32:
        """The path's tokens, int32 [length]."""
        return np.array([self._tokens[i] for i in self._path], np.int32)

    def text(self) -> Int32:
        """The text with the path behind it."""
        return np.concatenate([self._text, self.ahead()])

    def say(self, said: tuple[Said, ...], rates: Rates, kind: Kind) -> None:
        """Grow by what a draft model said; its other tokens become side branches."""
        for one in said:
            tip = self._tip()
            self._path.append(self._add(one.token, tip, _Belief(rates, kind, one.chance), Source.MODEL))
            for token, p in one.others:
                self._add(token, tip, _Belief(rates, Kind.OTHER, p), Source.MODEL)

    def hang(self, found: DraftTree) -> None:
        """Grow by another drafter's tree; its first path becomes part of the path."""
        tip, offset = self._tip(), len(self._tokens)
        above = self._scores[tip] if tip >= 0 else 1.0
        self._tokens += found.tokens.tolist()
        self._parents += [tip if p < 0 else p + offset for p in found.parents.tolist()]
        self._scores += [above * score for score in found.scores.tolist()]
        self._source += found.source.tolist()
        self._beliefs += [None] * len(found)
        self._path += range(offset, offset + len(tree.first_path(found)))

    def tree(self) -> DraftTree:
        """All of it, parents first."""
        return DraftTree(
            np.array(self._tokens, np.int32),
            np.array(self._parents, np.int32),
            self._falling(),
            np.array(self._source, np.uint8),
        )

    def judge(self, committed: list[int]) -> None:
        """Learn from what came: every model's token whose parent came true and whose own place is known."""
        depth: list[int] = []  # of a node below the root; len(committed) where an ancestor is wrong or not known
        for token, parent, belief in zip(self._tokens, self._parents, self._beliefs, strict=True):
            at = 0 if parent < 0 else depth[parent]
            if at >= len(committed):
                depth.append(at)
                continue
            right = committed[at] == token
            if belief is not None:
                belief.rates.learn(belief.kind, belief.p, right)
            depth.append(at + 1 if right else len(committed))

    def _tip(self) -> int:
        return self._path[-1] if self._path else -1

    def _add(self, token: int, parent: int, belief: _Belief, source: Source) -> int:
        above = self._scores[parent] if parent >= 0 else 1.0
        self._tokens.append(token)
        self._parents.append(parent)
        self._scores.append(above * belief.rates.rate(belief.kind, belief.p))
        self._source.append(source)
        self._beliefs.append(belief)
        return len(self._tokens) - 1

    def _falling(self) -> Float32:
        """Scores as float32; rounding must not lift a child above its parent."""
        scores = np.array(self._scores, np.float32)
        for i, parent in enumerate(self._parents):
            if parent >= 0:
                scores[i] = min(scores[i], scores[parent])
        return scores
