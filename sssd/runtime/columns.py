"""Which nodes of a batch's trees fit in how many columns. Owns the order of nodes and the cutting of trees.

Knows scores as numbers to order and add up; neither what they promise nor what columns cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sssd.runtime.costs import Float64
from sssd.types import Bool, DraftTree, Int64, StepPlan


class Shape(NamedTuple):
    """What a step consists of."""

    n_forced: list[int]  # of each row
    n_nodes: list[int]  # of each row
    n_choosing: int  # rows that choose a token in this step
    base: int  # columns that run in any case
    widest: int  # columns of the row with the most
    context: int  # committed tokens of the longest row


def shape_of(plan: StepPlan, trees: Sequence[DraftTree], min_width: int) -> Shape:
    """Counts over the rows; there is one tree a row."""
    forced = [len(row.forced) for row in plan.rows]
    nodes = [len(t) for t in trees]
    assert len(forced) == len(nodes) > 0, "one tree a row"
    return Shape(
        forced,
        nodes,
        sum(row.samples for row in plan.rows),
        max(min_width, *forced),
        max(f + n for f, n in zip(forced, nodes, strict=True)),
        max(row.past_len for row in plan.rows),
    )


class Ranked(NamedTuple):
    """Nodes of all rows by the width from which they fit."""

    is_node: Bool  # bool [B, n]; row b's nodes come first, the rest is padding
    needs: Int64  # int64 [B, n]; a row's k-th best node needs its forced columns plus k; ties keep the earlier node
    gains: Float64  # float64 [widest + 1]; sum of all scores that fit in so many columns


def rank(trees: Sequence[DraftTree], shape: Shape) -> Ranked:
    """Order every row's nodes by score, all rows at once; there is a node."""
    lens = np.array(shape.n_nodes)
    is_node = np.arange(lens.max()) < lens[:, None]
    scores = np.zeros(is_node.shape, np.float32)
    scores[is_node] = np.concatenate([t.scores for t in trees])
    order = np.argsort(-scores, axis=1, kind="stable")
    needs = np.empty(is_node.shape, np.int64)
    np.put_along_axis(needs, order, np.array(shape.n_forced)[:, None] + np.arange(1, lens.max() + 1), axis=1)
    gains = np.bincount(needs.ravel(), weights=scores.ravel(), minlength=shape.widest + 1)
    return Ranked(is_node, needs, gains.cumsum()[: shape.widest + 1])


def cut(trees: Sequence[DraftTree], ranked: Ranked, width: int) -> list[DraftTree]:
    """`tree.trim` of every row to what fits, in one pass over all of them."""
    keep = (ranked.needs <= width) & ranked.is_node
    renumbered = keep.cumsum(axis=1, dtype=np.int32) - 1
    row_of = np.nonzero(ranked.is_node)[0]
    kept = keep[ranked.is_node]
    parents = np.concatenate([t.parents for t in trees])[kept]
    parents = np.where(parents < 0, np.int32(-1), renumbered[row_of[kept], parents])
    tokens = np.concatenate([t.tokens for t in trees])[kept]
    scores = np.concatenate([t.scores for t in trees])[kept]
    source = np.concatenate([t.source for t in trees])[kept]
    ends = keep.sum(axis=1).cumsum().tolist()
    return [
        DraftTree(tokens[a:b], parents[a:b], scores[a:b], source[a:b]) for a, b in zip([0, *ends], ends, strict=False)
    ]
