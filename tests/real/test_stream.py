"""Many requests at random times on a real model: each gets what it gets alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sssd.answer import Answer
from sssd.config import SamplingParams
from sssd.loading import load
from sssd.spec import WeightType
from sssd.types import Int32
from tests.helpers.data import spec_bench
from tests.real.conftest import BundleOf

N_REQUESTS = 60


def plans(rng: np.random.Generator, encode) -> list[tuple[Int32, SamplingParams]]:
    """Prompts of mixed lengths, some with a common beginning, greedy and sampled."""
    texts = [prompt for _, prompt in spec_bench(10)]
    stem = np.array(encode(texts[0])[:60], np.int32)
    found = []
    for i in range(N_REQUESTS):
        tokens = np.array(encode(texts[i])[: int(rng.integers(3, 120))], np.int32)
        prompt = np.concatenate([stem, tokens[:20]]) if i % 4 == 0 else tokens
        params = SamplingParams(max_tokens=int(rng.integers(1, 24)), ignore_eos=True)
        if i % 3 == 0:
            params = replace(params, temperature=0.9, top_p=0.95, seed=i)
        found.append((prompt, params))
    return found


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_a_stream_of_requests_gives_each_what_it_gets_alone(bundle_of: BundleOf, weights: WeightType) -> None:
    rng = np.random.default_rng(0)
    with load(bundle_of(weights), drafter="retrieval", n_slots=4, n_warm=2, chunk=48) as llm:
        requests = plans(rng, llm.tokenizer.encode)
        due = rng.integers(0, 90, N_REQUESTS)  # the step at which it comes
        doomed = set(np.flatnonzero(rng.random(N_REQUESTS) < 0.2).tolist())  # dropped some steps later
        answers: dict[int, Answer] = {}
        step = 0
        while len(answers) < N_REQUESTS or llm.busy:
            for i in np.flatnonzero(due == step).tolist():
                answers[i] = llm.submit(*requests[i])
            for i in [i for i in doomed if i in answers and rng.random() < 0.2]:
                llm.drop(answers[i])
                doomed.remove(i)
            if llm.busy:
                llm.step()
            step += 1
        got = {i: a.completion for i, a in answers.items() if a.completion is not None}
    assert len(got) > N_REQUESTS // 2
    assert any(done.stats.cached_tokens for done in got.values())
    with load(bundle_of(weights), drafter=None, n_slots=1, n_warm=0) as alone:
        for i, done in got.items():
            assert alone.generate(*requests[i]).token_ids == done.token_ids
