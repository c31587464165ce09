"""Every family computes what transformers computes, on tiny random models: by the reference and by the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from sssd.export.checkpoint import open_checkpoint
from sssd.export.pipeline import export_model
from sssd.spec import GRAPH
from tests.helpers.logits import assert_same, graph_logits, reference_logits
from tests.helpers.tiny_models import CASES, SavedModel, logits_of, save_tiny_model


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, SavedModel]:
    return request.param, save_tiny_model(CASES[request.param], tmp_path_factory.mktemp(request.param))


def test_the_reference_engine_gives_the_logits_of_transformers(case: tuple[str, SavedModel]) -> None:
    name, saved = case
    checkpoint = open_checkpoint(saved.path, max_len=CASES[name].max_len)
    assert_same(reference_logits(checkpoint, saved.token_ids), saved.logits)


def test_the_exported_graph_gives_the_logits_of_transformers(case: tuple[str, SavedModel], tmp_path: Path) -> None:
    name, saved = case
    bundle = export_model(saved.path, tmp_path / "bundle", max_len=CASES[name].max_len)
    assert_same(graph_logits(bundle.path / GRAPH, saved.token_ids), saved.logits)


def test_bfloat16_shards_give_the_logits_of_their_rounded_weights(tmp_path: Path) -> None:
    import torch
    import transformers

    full = save_tiny_model(CASES["qwen2"], tmp_path / "full")
    model = transformers.AutoModelForCausalLM.from_pretrained(full.path).bfloat16()
    model.save_pretrained(tmp_path / "half", max_shard_size="50KB")
    (tmp_path / "half" / "tokenizer.json").write_bytes((full.path / "tokenizer.json").read_bytes())
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 1
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float32)
    logits = reference_logits(open_checkpoint(tmp_path / "half"), full.token_ids)
    assert_same(logits, logits_of(reloaded, full.token_ids))
