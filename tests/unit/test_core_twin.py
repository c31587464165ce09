"""The native core against its plain twin on random streams, and what every tree must be."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sssd.drafting.reference import ReferenceRetrieval
from sssd.drafting.retrieval import Retrieval, RetrievalConfig
from sssd.drafting.rules import AuthorsRules, MixtureRules
from sssd.types import DraftJob, DraftOptions, DraftTree, Source
from tests.helpers.streams import random_tokens, segment

RULES = [
    MixtureRules(),
    MixtureRules(enough=3, store_most=4, context_most=5, max_match=17, sure_from=3, sure=9),
    AuthorsRules(),
    AuthorsRules(window=9, enough=6, store_most=5, store_least=2, most_children=2),
]


def assert_sound(tree: DraftTree, budget: int) -> None:
    n = len(tree)
    assert n <= budget
    assert all(-1 <= parent < i for i, parent in enumerate(tree.parents.tolist()))
    children = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(children)) == n  # siblings differ
    above = np.where(tree.parents >= 0, tree.scores[tree.parents], 1.0)
    assert np.all(tree.scores <= above)
    assert np.all(tree.scores >= 0)
    assert np.all(tree.tokens >= 0)


def assert_equal(a: DraftTree, b: DraftTree) -> None:
    for x, y in ((a.tokens, b.tokens), (a.parents, b.parents), (a.scores, b.scores), (a.source, b.source)):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("seed", range(24))
def test_native_trees_equal_the_twins_on_random_streams(seed: int) -> None:
    draw = random.Random(seed)
    vocab = draw.choice([1, 2, 3, 5, 12])
    rules = RULES[seed % len(RULES)]
    learn = draw.random() < 0.8
    native = Retrieval(RetrievalConfig(rules=rules, n_threads=1, learn=learn))
    twin = ReferenceRetrieval(rules, learn=learn)
    segments = []
    for _ in range(draw.randrange(3)):
        documents = [random_tokens(draw, draw.randrange(1, 40), vocab) for _ in range(draw.randrange(1, 5))]
        dead = [(0, len(documents[0]) + 1)] if draw.random() < 0.4 else []
        segments.append(segment(documents, draw.choice([Source.DATASTORE, Source.LIVE]), dead))
    prompt = random_tokens(draw, draw.randrange(60), vocab)
    if len(prompt) > 5 and draw.random() < 0.3:
        prompt[3] = -1  # a separator inside the context
    prediction = random_tokens(draw, 20, vocab) if draw.random() < 0.4 else None
    for drafter in (native, twin):
        drafter.publish("default", segments)
        drafter.begin(1, prompt, DraftOptions(prediction=prediction))
    for _ in range(20):
        budget = draw.randrange(20)
        tree = native.propose([DraftJob(1, budget)])[0]
        assert_equal(tree, twin.propose([DraftJob(1, budget)])[0])
        assert_sound(tree, budget)
        if len(tree) > 0 and draw.random() < 0.6:
            committed = np.append(tree.tokens[: draw.randrange(1, 4)], random_tokens(draw, 1, vocab))
        elif prediction is not None and draw.random() < 0.5:
            committed = prediction[:2].copy()
        else:
            committed = random_tokens(draw, draw.randrange(1, 4), vocab)
        native.accept(1, committed, tree)
        twin.accept(1, committed, tree)
        assert native.check() == []


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_batch_says_what_its_rows_say_alone(n_threads: int) -> None:
    draw = random.Random(3)
    store = segment([random_tokens(draw, 400, 6) for _ in range(3)])
    prompts = [random_tokens(draw, draw.randrange(1, 80), 6) for _ in range(64)]
    jobs = [DraftJob(i, draw.choice([0, 1, 7, 15])) for i in range(64)]
    together = Retrieval(RetrievalConfig(n_threads=n_threads, rows_per_thread=2))
    alone = Retrieval(RetrievalConfig(n_threads=1))
    for drafter in (together, alone):
        drafter.publish("default", [store])
        for i, prompt in enumerate(prompts):
            drafter.begin(i, prompt, DraftOptions())
    for _ in range(5):
        trees = together.propose(jobs)
        for tree, lone in zip(trees, [alone.propose([job])[0] for job in jobs], strict=True):
            assert_equal(tree, lone)
        for job, tree in zip(jobs, trees, strict=True):
            for drafter in (together, alone):
                drafter.accept(job.request_id, prompts[0][:1], tree)
