"""The walk of a whole batch against the walk of one row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sssd import tree, verify
from sssd.config import SamplingParams
from sssd.sampling import make_choose
from sssd.types import DraftTree, EngineOutput, NodeScores, Row, StepPlan, empty_tree

VOCAB = 3  # so few that drafts are often right
NOTHING = np.zeros(0, np.int32)


def random_tree(random: np.random.Generator, n: int) -> DraftTree:
    """A tree of at most n nodes with no two equal children."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(n):
        parent, token = int(random.integers(-1, len(tokens))), int(random.integers(VOCAB))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
    k = len(tokens)
    return DraftTree(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.zeros(k, np.float32), np.zeros(k, np.uint8)
    )


def random_row(random: np.random.Generator, slot: int) -> Row:
    forced = random.integers(0, VOCAB, int(random.integers(1, 5))).astype(np.int32)
    return Row(
        request_id=slot,
        slot=slot,
        past_len=int(random.integers(0, 9)),
        forced=forced,
        budget=12,
        samples=bool(random.random() < 0.8),
        choose=make_choose(SamplingParams(), seed=0, prompt=forced, output=NOTHING, ending_ids=()),
        needs_scores=False,
        n_logprobs=None,
        stop_ids=frozenset([0]) if random.random() < 0.4 else frozenset(),
        room=int(random.integers(1, 6)) if random.random() < 0.5 else 100,
    )


@pytest.mark.parametrize("branch_noise", [0.0, 0.005])
def test_a_batch_of_greedy_rows_is_walked_as_each_alone(branch_noise: float) -> None:
    random = np.random.default_rng(5)
    longest, branched = 0, 0
    for _ in range(300):
        rows = [random_row(random, slot) for slot in range(int(random.integers(1, 6)))]
        if random.random() < 0.3:
            rows[0] = replace(rows[0], forced=NOTHING, samples=False)  # idle
        trees = [random_tree(random, int(random.integers(0, 12))) if r.samples else empty_tree() for r in rows]
        plan = StepPlan(tuple(rows))
        batch = tree.pack(plan, trees, min_width=2, score_branches=bool(branch_noise))
        shape = (*batch.logit_rows.shape, VOCAB)
        logits = random.normal(size=shape).astype(np.float32) if batch.needs_scores else None
        ids = random.integers(0, VOCAB, shape[:2]) if logits is None else logits.argmax(axis=2)
        out = EngineOutput(ids, logits)
        together = verify.walk_all(batch, out, plan, branch_noise=branch_noise)
        for b, (row, verdict) in enumerate(zip(rows, together, strict=True)):
            alone = verify.walk(batch, out, row, b, branch_noise=branch_noise)
            assert verdict.keep.tolist() == alone.keep.tolist()
            assert verdict.keep.dtype == alone.keep.dtype
            assert verdict[1:] == alone[1:]
            longest = max(longest, len(alone.path))
            branched += alone.path != tuple(range(len(row.forced), len(row.forced) + len(alone.path)))
    assert longest >= 4  # the streams do exercise paths, cuts and branches
    assert branched > 50


def test_a_row_that_reads_scores_is_asked_and_others_are_not() -> None:
    random = np.random.default_rng(6)
    asked = []

    def choose(node: NodeScores, position: int, emitted: object, noise: float) -> int:
        asked.append(position)
        return 2

    rows = [replace(random_row(random, slot), samples=True, room=9, stop_ids=frozenset()) for slot in range(2)]
    rows[1] = replace(rows[1], choose=choose, needs_scores=True)
    plan = StepPlan(tuple(rows))
    batch = tree.pack(plan, [empty_tree(), empty_tree()], min_width=2)
    logits = np.zeros((*batch.logit_rows.shape, VOCAB), np.float32)
    verdicts = verify.walk_all(batch, EngineOutput(np.ones(batch.logit_rows.shape, np.int64), logits), plan)
    assert [v.tokens for v in verdicts] == [(1,), (2,)]
    assert asked == [rows[1].past_len + len(rows[1].forced)]
