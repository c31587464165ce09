"""Random token streams and segments for the drafting tests: plain, slow, seeded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from sssd.drafting.segments import Segment
from sssd.types import DraftTree, Int32, Source


def tokens(*values: int) -> Int32:
    return np.array(values, np.int32)


def random_tokens(draw: random.Random, n: int, vocab: int) -> Int32:
    return np.array([draw.randrange(vocab) for _ in range(n)], np.int32)


def segment(
    documents: Sequence[Int32], source: Source = Source.DATASTORE, dead: Sequence[tuple[int, int]] = ()
) -> Segment:
    """Documents as a segment; suffixes sorted by comparing lists."""
    text = np.concatenate([np.append(d, np.int32(-1)) for d in documents]).astype(np.int32)
    plain = text.tolist()
    suffixes = sorted((p for p, t in enumerate(plain) if t >= 0), key=lambda p: plain[p:])
    return Segment(text, np.array(suffixes, np.int32), np.array(dead, np.int64).reshape(-1, 2), source)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The path of every node, in the tree's order."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found
