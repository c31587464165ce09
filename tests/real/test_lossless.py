"""The first promise, on a real model: what is drafted never changes what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sssd.answer import Completion
from sssd.config import SamplingParams
from sssd.drafting.base import Drafter
from sssd.drafting.simple import MaxGram
from sssd.loading import load
from sssd.spec import WeightType, open_bundle
from tests.helpers.data import spec_bench
from tests.helpers.noisy import NoisyMaxGram
from tests.real.conftest import BundleOf

N_PROMPTS = 12  # scripts/lossless.py runs more
N_TOKENS = 48


def answers(bundle: Path, prompts: list[str], params: SamplingParams, **options: Any) -> list[Completion]:
    with load(bundle, n_warm=0, **options) as llm:
        return llm.generate(prompts, params)


def drafter_for(bundle: Path) -> Drafter:
    """Trees whose kept path is no prefix where the engine allows it, else chains that are mostly right."""
    spec = open_bundle(bundle).spec
    return MaxGram() if spec.branch_noise is None else NoisyMaxGram(spec.vocab_size)


@pytest.mark.real
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("weights", ["fp32", "int4"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 7}], ids=["greedy", "sampled"])
def test_output_with_drafts_in_a_batch_is_the_output_of_plain_decoding_alone(
    bundle_of: BundleOf, weights: WeightType, sampling: dict[str, Any]
) -> None:
    bundle = bundle_of(weights)
    prompts = [prompt for _, prompt in spec_bench(7)[:N_PROMPTS]]
    params = SamplingParams(max_tokens=N_TOKENS, **sampling)
    alone = answers(bundle, prompts, params, drafter=None, n_slots=1)
    drafter = drafter_for(bundle)
    drafted = answers(bundle, prompts, params, drafter=drafter, n_slots=4, chunk=100, max_draft_tokens=12)
    assert [d.token_ids for d in drafted] == [a.token_ids for a in alone]
    assert sum(n for d in drafted for n in d.stats.accepted.values()) >= 10, "hardly a draft was accepted"
    assert drafter.check() == []
