"""The first promise, on a real model: what is drafted never changes what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sssd.config import SamplingParams
from sssd.llm import load
from sssd.spec import WeightType, open_bundle
from tests.helpers.data import spec_bench
from tests.helpers.noisy import NoisyMaxGram
from tests.real.conftest import BundleOf

N_PROMPTS = 40
N_TOKENS = 64


def answers(bundle: Path, prompts: list[str], params: SamplingParams, **options: Any) -> list[tuple[int, ...]]:
    with load(bundle, **options) as llm:
        return [done.token_ids for done in llm.generate(prompts, params)]


@pytest.mark.real
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 7}], ids=["greedy", "sampled"])
def test_output_with_trees_in_a_batch_is_the_output_of_plain_decoding_alone(
    bundle_of: BundleOf, weights: WeightType, sampling: dict[str, Any]
) -> None:
    bundle = bundle_of(weights)
    prompts = [prompt for _, prompt in spec_bench(7)[:N_PROMPTS]]
    params = SamplingParams(max_tokens=N_TOKENS, **sampling)
    alone = answers(bundle, prompts, params, drafter=None, n_slots=1)
    noisy = NoisyMaxGram(open_bundle(bundle).spec.vocab_size)
    assert answers(bundle, prompts, params, drafter=noisy, n_slots=4, chunk=100, max_draft_tokens=12) == alone
    assert noisy.check() == []
