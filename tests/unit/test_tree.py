from __future__ import annotations

import numpy as np
import pytest

from sssd import tree
from sssd.types import DraftTree, Row, Source, StepPlan, empty_tree


def row(past: int, forced: list[int], slot: int = 0) -> Row:
    return Row(0, slot, past, np.array(forced, np.int32), 9, True, lambda n, p, e, x: 0, False, None, frozenset(), 9)


def draft(tokens: list[int], parents: list[int], scores: list[float] | None = None, source: int = 0) -> DraftTree:
    n = len(tokens)
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(scores if scores is not None else [1.0] * n, np.float32),
        np.full(n, source, np.uint8),
    )


def random_tree(rng: np.random.Generator, n: int) -> DraftTree:
    tokens, parents, scores = [], [], []
    while len(tokens) < n:
        p, t = int(rng.integers(-1, len(tokens))), int(rng.integers(50))
        if (p, t) not in zip(parents, tokens, strict=True):
            parents.append(p)
            tokens.append(t)
            scores.append((1.0 if p < 0 else scores[p]) * float(rng.uniform(0.2, 1)))
    return draft(tokens, parents, scores)


def slow_mask(parents: np.ndarray) -> np.ndarray:
    """Walk up from every column, one at a time."""
    mask = np.zeros((*parents.shape, parents.shape[1]), bool)
    for b, i in np.ndindex(parents.shape):
        j = i
        while j >= 0:
            mask[b, i, j] = True
            j = parents[b, j]
    return mask


def test_mask_is_every_column_and_its_ancestors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        trees = [random_tree(rng, int(rng.integers(0, 9))) for _ in range(3)]
        rows = [row(5 * i, rng.integers(0, 50, int(rng.integers(1, 4))).tolist(), i) for i in range(3)]
        batch = tree.pack(StepPlan(tuple(rows)), trees)
        assert (batch.tree_mask == slow_mask(batch.parents)).all()


def test_positions_are_past_length_plus_depth() -> None:
    batch = tree.pack(StepPlan((row(10, [7, 8]),)), [draft([1, 2, 3], [-1, 0, -1])])
    assert batch.position_ids.tolist() == [[10, 11, 12, 13, 12]]
    assert batch.input_ids.tolist() == [[7, 8, 1, 2, 3]]
    assert batch.parents.tolist() == [[-1, 0, 1, 2, 1]]


def test_only_the_root_and_tree_columns_are_scored() -> None:
    rows = (row(0, [1, 2, 3]), row(4, [5], 1))
    batch = tree.pack(StepPlan(rows), [empty_tree(), draft([1, 2], [-1, -1])])
    assert batch.logit_rows.tolist() == [[2, 2, 2], [0, 1, 2]]
    assert batch.n_forced.tolist() == [3, 1]
    assert batch.n_nodes.tolist() == [3, 3]


def test_width_and_scored_columns_are_never_below_the_minimum() -> None:
    batch = tree.pack(StepPlan((row(3, [1]),)), [empty_tree()], min_width=4)
    assert batch.input_ids.shape == (1, 4)
    assert batch.logit_rows.tolist() == [[0, 0, 0, 0]]
    assert (batch.tree_mask[0] == np.eye(4, dtype=bool)).all()


def test_idle_row_is_all_padding() -> None:
    batch = tree.pack(StepPlan((row(3, []), row(2, [4, 5], 1))), [empty_tree(), empty_tree()])
    assert batch.n_nodes.tolist() == [0, 2]
    assert (batch.tree_mask[0] == np.eye(2, dtype=bool)).all()


def test_idle_row_with_a_tree_is_refused() -> None:
    with pytest.raises(AssertionError, match="root"):
        tree.pack(StepPlan((row(3, []),)), [draft([1], [-1])])


def test_trim_keeps_the_best_nodes_and_a_tree() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        full = random_tree(rng, 12)
        budget = int(rng.integers(0, 13))
        cut = tree.trim(full, budget)
        assert tree.faults(cut, budget) == []
        assert sorted(cut.scores.tolist()) == sorted(full.scores.tolist())[12 - budget :]


def test_first_path_is_the_leading_chain() -> None:
    assert tree.first_path(draft([1, 2, 3, 4], [-1, 0, 0, 2])).tokens.tolist() == [1, 2]
    assert tree.first_path(draft([1, 2], [-1, -1])).tokens.tolist() == [1]
    assert tree.first_path(draft([1, 2], [-1, 0])).tokens.tolist() == [1, 2]
    assert len(tree.first_path(empty_tree())) == 0


def test_scores_are_asked_for_when_a_tree_branches() -> None:
    chain, branched = draft([1, 2], [-1, 0]), draft([1, 2], [-1, -1])
    for trees, asks in (([chain, chain], False), ([chain, branched], True)):
        plan = StepPlan((row(3, [1]), row(4, [1], 1)))
        assert tree.pack(plan, trees, score_branches=True).needs_scores == asks
        assert not tree.pack(plan, trees).needs_scores


def paths(t: DraftTree) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    names: list[tuple[int, ...]] = []
    for token, parent, score in zip(t.tokens.tolist(), t.parents.tolist(), t.scores.tolist(), strict=True):
        names.append((*(() if parent < 0 else names[parent]), token))
        found[names[-1]] = score
    return found


def test_merge_is_the_union_of_paths_with_the_larger_score() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        trees = [random_tree(rng, int(rng.integers(0, 8))) for _ in range(3)]
        union: dict[tuple[int, ...], float] = {}
        for t in trees:
            for path, score in paths(t).items():
                union[path] = max(score, union.get(path, 0.0))
        merged = tree.merge(trees, 100)
        assert tree.faults(merged, 100) == []
        assert paths(merged) == pytest.approx(union)
        budget = int(rng.integers(0, 8))
        best = sorted(union.values(), reverse=True)[:budget]
        assert sorted(tree.merge(trees, budget).scores.tolist(), reverse=True) == pytest.approx(best)


def test_merge_puts_the_likeliest_path_first() -> None:
    merged = tree.merge([draft([1, 2], [-1, 0], [0.3, 0.2]), draft([5, 6], [-1, 0], [0.9, 0.8], Source.LIVE)], 4)
    assert merged.tokens.tolist() == [5, 6, 1, 2]
    assert merged.source.tolist() == [Source.LIVE, Source.LIVE, 0, 0]


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (draft([1, 2], [-1, 1]), "before its child"),
        (draft([1, 1], [-1, -1]), "same token"),
        (draft([1, 2], [-1, 0], [0.5, 0.6]), "rises"),
        (draft([1, 2, 3], [-1, 0, 1]), "budget"),
    ],
)
def test_faults_finds_a_planted_fault(planted: DraftTree, says: str) -> None:
    assert any(says in fault for fault in tree.faults(planted, 2))
