"""Geometry of draft trees: packing rows into a batch, ancestor masks, merging. Pure functions over types.py.

Knows no engine and no drafter. Region map of one row of T columns, f forced and n tree nodes:

    0 ........ f-1 | f ......... f+n-1 | f+n ..... T-1
    forced chain     tree nodes          padding: parent -1, sees itself only
    last one = root  parents inside      never scored
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.types import Bool, DraftTree, Float32, Int32, Int64, Row, StepPlan, Uint8, VerifyBatch


def pack(
    plan: StepPlan, trees: Sequence[DraftTree], *, min_width: int = 1, score_branches: bool = False
) -> VerifyBatch:
    """The batch that verifies `trees[b]` below the forced columns of `plan.rows[b]`.

    T and R are the widest row's, never below `min_width`; further columns are padding. An idle row (nothing forced)
    must have an empty tree. `score_branches` asks for scores when a tree is no chain, beside those that rows ask for.
    Cost: a few numpy calls a row and one a tree column.
    """
    rows = plan.rows
    assert len(rows) == len(trees) > 0, "a step has at least one row, and a tree for each"
    n_forced = np.array([len(row.forced) for row in rows], np.int32)
    n_tree = np.array([len(t) for t in trees], np.int32)
    assert not (n_tree[n_forced == 0]).any(), "a tree needs a root"
    n_nodes = n_forced + n_tree
    width = max(int(n_nodes.max()), min_width)
    ids = np.zeros((len(rows), width), np.int64)
    parents = np.full((len(rows), width), -1, np.int32)
    forced = _places(n_forced, np.zeros_like(n_forced))
    ids[forced] = np.concatenate([row.forced for row in rows])
    parents[forced] = forced.columns - 1
    nodes = _places(n_tree, n_forced)
    ids[nodes] = np.concatenate([t.tokens for t in trees])
    below, root = np.concatenate([t.parents for t in trees]), n_forced[nodes.rows]
    parents[nodes] = np.where(below < 0, root - 1, below + root)
    past = np.array([row.past_len for row in rows], np.int64)
    mask = ancestor_mask(parents)
    return VerifyBatch(
        first_slot=rows[0].slot,
        input_ids=ids,
        position_ids=past[:, None] + mask.sum(axis=2) - 1,
        past_lens=past,
        tree_mask=mask,
        logit_rows=_scored_columns(np.array([first_scored(row) for row in rows], np.int64), n_nodes, min_width),
        parents=parents,
        n_forced=n_forced,
        n_nodes=n_nodes,
        needs_scores=any(row.needs_scores for row in rows) or (score_branches and not all(map(is_chain, trees))),
    )


class _Places(NamedTuple):
    """Index of many columns of many rows, row after row."""

    rows: npt.NDArray[np.intp]
    columns: npt.NDArray[np.intp]


def _places(counts: Int32, starts: Int32) -> _Places:
    """The `counts[b]` columns of every row b from `starts[b]` on."""
    rows = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _Places(rows, within + starts[rows])


def is_chain(tree: DraftTree) -> bool:
    """Whether every node is the child of the one before it."""
    return bool((tree.parents == np.arange(-1, len(tree) - 1)).all())


def first_path(tree: DraftTree) -> DraftTree:
    """The path that the tree begins with: its likeliest one."""
    ends = np.flatnonzero(tree.parents != np.arange(-1, len(tree) - 1))
    n = int(ends[0]) if len(ends) else len(tree)
    return DraftTree(tree.tokens[:n], tree.parents[:n], tree.scores[:n], tree.source[:n])


def from_sources(tree: DraftTree, sources: Collection[int]) -> DraftTree:
    """The tree without the nodes of other sources, and without what hangs below them."""
    kept: list[int] = []
    place = {-1: -1}
    for i, (parent, source) in enumerate(zip(tree.parents.tolist(), tree.source.tolist(), strict=True)):
        if parent in place and source in sources:
            place[i] = len(kept)
            kept.append(i)
    parents = np.array([place[int(tree.parents[i])] for i in kept], np.int32)
    return DraftTree(tree.tokens[kept], parents, tree.scores[kept], tree.source[kept])


def ancestor_mask(parents: Int32) -> Bool:
    """mask[b, i, j]: column j is i or an ancestor of i. bool [B, T, T].

    `parents` is int32 [B, T] with parents[b, i] < i. Cost: the columns that are a chain in every row are free.
    """
    n_rows, width = parents.shape
    mask = np.zeros((n_rows, width + 1, width), bool)  # the last line is of parent -1, which sees nothing
    chained = (parents == np.arange(-1, width - 1)).all(axis=0)
    chain = width if chained.all() else int(chained.argmin())
    mask[:, :chain, :chain] = np.tri(chain, dtype=bool)
    rest = np.arange(chain, width)
    mask[:, rest, rest] = True
    every = np.arange(n_rows)
    for i, parent in zip(rest.tolist(), parents.T[chain:], strict=True):
        mask[:, i] |= mask[every, parent]
    return np.ascontiguousarray(mask[:, :width])


def first_scored(row: Row) -> int:
    """The first column whose scores are wanted: the root (last forced column), or column 0 for an echo."""
    return 0 if row.echo is not None else max(len(row.forced) - 1, 0)


def _scored_columns(first: Int64, n_nodes: Int32, min_width: int) -> Int64:
    """int64 [B, R]: every column of a row from `first[b]` on; short rows repeat their last column."""
    last = np.maximum(n_nodes - 1, 0).astype(np.int64)
    n_scored = max(int((last - first).max()) + 1, min_width)
    columns: Int64 = np.minimum(first[:, None] + np.arange(n_scored), last[:, None])
    return columns


def trim(tree: DraftTree, budget: int) -> DraftTree:
    """The tree's `budget` best nodes by score, in their old order; ties keep the earlier node.

    Needs scores that never rise from parent to child, as path probabilities do, so that what is kept is a tree.
    """
    if len(tree) <= budget:
        return tree
    kept = np.sort(np.argsort(-tree.scores, kind="stable")[:budget])
    renumbered = np.full(len(tree) + 1, -1, np.int32)  # the last entry serves parent -1
    renumbered[kept] = np.arange(len(kept), dtype=np.int32)
    return DraftTree(tree.tokens[kept], renumbered[tree.parents[kept]], tree.scores[kept], tree.source[kept])


def merge(trees: Sequence[DraftTree], budget: int) -> DraftTree:
    """One tree of at most `budget` nodes from several for the same root, best-first.

    Equal paths become one node that keeps the larger score and its source; ties go to the earlier tree. The result
    runs depth-first with the best-scored child first, so that the likeliest path stands in front.
    """
    union = _Union()
    for tree in trees:
        union.add(tree)
    return union.best(budget)


class _Union:
    """A trie of paths with the best score of each; node 0 is the root."""

    def __init__(self) -> None:
        self.tokens: list[int] = [-1]
        self.scores: list[float] = [1.0]
        self.sources: list[int] = [0]
        self.children: list[dict[int, int]] = [{}]

    def add(self, tree: DraftTree) -> None:
        nodes: list[int] = []
        for token, parent, score, source in zip(
            tree.tokens.tolist(), tree.parents.tolist(), tree.scores.tolist(), tree.source.tolist(), strict=True
        ):
            siblings = self.children[0 if parent < 0 else nodes[parent]]
            node = siblings.get(token)
            if node is None:
                node = siblings[token] = len(self.tokens)
                self.tokens.append(token)
                self.scores.append(score)
                self.sources.append(source)
                self.children.append({})
            elif score > self.scores[node]:
                self.scores[node], self.sources[node] = score, source
            nodes.append(node)

    def best(self, budget: int) -> DraftTree:
        kept = self._best_first(budget)
        order: list[int] = []
        parents: list[int] = []
        stack = [(0, -1)]
        while stack:
            node, parent = stack.pop()
            if node:
                order.append(node)
                parents.append(parent)
            place = len(order) - 1
            kids = sorted((c for c in self.children[node].values() if c in kept), key=lambda c: (self.scores[c], -c))
            stack.extend((c, place) for c in kids)  # the best is popped first
        return DraftTree(
            np.array([self.tokens[i] for i in order], np.int32),
            np.array(parents, np.int32),
            np.array([self.scores[i] for i in order], np.float32),
            np.array([self.sources[i] for i in order], np.uint8),
        )

    def _best_first(self, budget: int) -> set[int]:
        kept: set[int] = set()
        heap = [(-self.scores[c], c) for c in self.children[0].values()]
        heapq.heapify(heap)
        while heap and len(kept) < budget:
            _, node = heapq.heappop(heap)
            kept.add(node)
            for c in self.children[node].values():
                heapq.heappush(heap, (-self.scores[c], c))
        return kept


def chain_tree(tokens: Int32, scores: Float32, source: Uint8) -> DraftTree:
    """A tree that is one path: token i + 1 below token i."""
    return DraftTree(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), scores, source)


def faults(tree: DraftTree, budget: int) -> list[str]:
    """All violations of what a draft tree promises; empty when sound."""
    n = len(tree)
    found = []
    if n > budget:
        found.append(f"{n} nodes for a budget of {budget}")
    if not (len(tree.parents) == len(tree.scores) == len(tree.source) == n):
        return [*found, "arrays of different length"]
    parents = tree.parents.tolist()
    if any(not -1 <= p < i for i, p in enumerate(parents)):
        return [*found, "a parent does not stand before its child"]
    if len(set(zip(parents, tree.tokens.tolist(), strict=True))) < n:
        found.append("two children of one node carry the same token")
    above = np.concatenate([tree.scores, [np.float32(1.0)]])[tree.parents] if n else tree.scores
    if bool((tree.scores > above + 1e-6).any() or (tree.scores < 0).any()):
        found.append("a score rises from parent to child or is no probability")
    return found
