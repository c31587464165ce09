"""Constrained output of a tiny exported model on ONNX Runtime: the same with drafts, and of its form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sssd
from sssd.constraint import Constraint
from tests.helpers.grammars import core, random_constraint
from tests.helpers.noisy import NoisyMaxGram
from tests.helpers.tiny_directory import declare, tensors_of, write_directory

pytest.importorskip("llguidance")  # brought by the extras structured and dev

VOCAB = 330
SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"enum": ["yes", "no"]}, "maxItems": 2},
        "ok": {"type": "boolean"},
    },
    "required": ["names", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 160}
    write_directory(directory / "model", tensors_of(declare(160, **sizes)), **sizes)
    core().save(str(directory / "model" / "tokenizer.json"))
    sssd.export_model(directory / "model", directory / "bundle")
    return directory / "bundle"


@pytest.fixture(scope="module")
def loaded(bundle: Path) -> Iterator[dict[str, sssd.LLM]]:
    plain = sssd.load(bundle, drafter=None, max_draft_tokens=0)
    others = {
        "grammar alone": sssd.load(bundle, drafter=None),
        "retrieval": sssd.load(bundle),
        "branches": sssd.load(bundle, drafter=NoisyMaxGram(VOCAB)),
    }
    yield {"plain": plain} | others
    for llm in (plain, *others.values()):
        llm.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_nothing_under_a_constraint(loaded: dict[str, sssd.LLM], temperature: float) -> None:
    rng = np.random.default_rng(3)
    constraints = [Constraint.json_schema(SCHEMA), *(random_constraint(rng) for _ in range(7))]
    accepted = 0
    for i, constraint in enumerate(constraints):
        params = sssd.SamplingParams(max_tokens=80, temperature=temperature, seed=i)
        prompts = ["the name yes", "name: x1"]
        wanted = loaded["plain"].generate(prompts, params, constraint=constraint)
        for name, llm in loaded.items():
            got = llm.generate(prompts, params, constraint=constraint)
            assert [c.token_ids for c in got] == [c.token_ids for c in wanted], name
            accepted += sum(c.stats.accepted.get("grammar", 0) for c in got)
    assert accepted > 50, "forced tokens are drafted in every mode but the plain one"


def test_an_answer_is_json_of_its_schema_while_others_are_free(loaded: dict[str, sssd.LLM]) -> None:
    llm = loaded["retrieval"]
    params = sssd.SamplingParams(max_tokens=100)
    alone = llm.generate("the name", sssd.SamplingParams(max_tokens=30))
    held = llm.submit("the name", params, constraint=Constraint.json_schema(SCHEMA))
    free = llm.submit("the name", sssd.SamplingParams(max_tokens=30))
    while llm.busy:
        llm.step()
    assert held.completion is not None
    assert free.completion is not None
    assert held.completion.finish_reason == "stop"
    assert set(json.loads(held.completion.text)) == {"names", "ok"}
    assert free.completion.token_ids == alone.token_ids
    llm.drop(held)
    llm.drop(free)
