"""Opening a model directory: what is read, and with which options."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sssd.export.checkpoint import open_checkpoint
from tests.helpers.tiny_directory import CONFIG, declare, refusal, tensors_of, write_directory


def test_a_directory_is_opened_with_all_that_it_says(tmp_path: Path) -> None:
    tensors = tensors_of(declare())
    checkpoint = open_checkpoint(write_directory(tmp_path / "tiny", tensors))
    assert (checkpoint.name, checkpoint.max_len, checkpoint.bos_id, checkpoint.eos_ids) == ("tiny", 64, 0, (1,))
    assert (checkpoint.chat_template, checkpoint.notes) == (None, ())
    assert checkpoint.decoder == declare()
    for name, shape in checkpoint.decoder.weight_shapes().items():
        assert checkpoint.weights.load(name).shape == shape
        assert checkpoint.weights.blocks(name) is None
    np.testing.assert_array_equal(
        checkpoint.weights.load("layers.2.down.weight"), tensors["model.layers.2.mlp.down_proj.weight"]
    )


def test_a_weight_is_read_anew_each_time_and_is_the_callers_own(tmp_path: Path) -> None:
    weights = open_checkpoint(write_directory(tmp_path / "tiny")).weights
    first = weights.load("layers.0.q.weight")
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(weights.load("layers.0.q.weight"), kept)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_weights_come_as_stored(dtype: type, tmp_path: Path) -> None:
    tensors = {name: tensor.astype(dtype) for name, tensor in tensors_of(declare()).items()}
    loaded = open_checkpoint(write_directory(tmp_path / "tiny", tensors)).weights.load("embed.weight")
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded, tensors["model.embed_tokens.weight"])


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    path, tensors = write_shards(tmp_path / "tiny")
    checkpoint = open_checkpoint(path)
    np.testing.assert_array_equal(checkpoint.weights.load("final_norm.weight"), tensors["model.norm.weight"])
    (path / "model-2.safetensors").unlink()
    (path / "model-3.safetensors").unlink()
    assert "model-2.safetensors, model-3.safetensors" in refusal(path)


def write_shards(path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    tensors = tensors_of(declare())
    write_directory(path, tensors)
    (path / "model.safetensors").unlink()
    weight_map = {name: f"model-{1 + i % 3}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, path / shard)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path, tensors


def test_the_generation_config_says_what_ends_a_text(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", eos_token_id=[1, 5])
    assert open_checkpoint(path).eos_ids == (1, 5)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 3], "bos_token_id": 2}))
    checkpoint = open_checkpoint(path)
    assert (checkpoint.eos_ids, checkpoint.bos_id) == ((7, 3), 2)


def test_a_text_without_an_end_is_noted(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_directory(tmp_path / "tiny", eos_token_id=None, bos_token_id=None))
    assert (checkpoint.eos_ids, checkpoint.bos_id) == ((), None)
    assert checkpoint.notes == ("no end-of-text token is declared",)


def test_a_chat_template_is_found_wherever_it_stands(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "A"}]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_checkpoint(path).chat_template == "A"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "B"}))
    assert open_checkpoint(path).chat_template == "B"
    (path / "chat_template.json").write_text(json.dumps({"chat_template": "C"}))
    assert open_checkpoint(path).chat_template == "C"
    (path / "chat_template.jinja").write_text("D")
    assert open_checkpoint(path).chat_template == "D"


def test_draft_layers_keep_the_first_layers_only(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    whole, draft = open_checkpoint(path), open_checkpoint(path, draft_layers=2)
    assert draft.decoder.layers == whole.decoder.layers[:2]
    assert draft.notes == ("the first 2 of 3 layers",)
    assert draft.tokenizer_json == whole.tokenizer_json
    for name in draft.decoder.weight_shapes():
        np.testing.assert_array_equal(draft.weights.load(name), whole.weights.load(name))
    for wrong in (0, 4, -1):
        assert "1 to 3 layers" in refusal(path, draft_layers=wrong)


def test_a_tied_checkpoint_may_hold_its_head_and_says_that_it_is_not_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_directory(tmp_path / "tiny", tie_word_embeddings=True))
    assert "lm_head.weight" not in checkpoint.decoder.weight_shapes()
    assert any("lm_head.weight is not read" in note for note in checkpoint.notes)


def test_max_len_lies_within_what_the_rope_allows(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    assert open_checkpoint(path, max_len=17).max_len == 17
    for wrong in (0, -3, 65):
        assert f"max_len {wrong} is not possible: tiny was made for 1 to 64 positions" in refusal(path, max_len=wrong)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert open_checkpoint(write_directory(tmp_path / "long", rope_scaling=yarn)).max_len == 256


@pytest.mark.parametrize("root", ["model.language_model.", "language_model.model."])
def test_the_text_decoder_of_a_vision_model_is_found_in_both_layouts(root: str, tmp_path: Path) -> None:
    fields = {"head_dim": 8, "query_pre_attn_scalar": 16}
    plain = tensors_of(declare(model_type="gemma3_text", **fields))
    tensors = {name.replace("model.", root, 1): tensor for name, tensor in plain.items()}
    tensors["vision_tower.a.weight"] = tensors["model.multi_modal_projector.b"] = np.zeros((2, 2), np.float32)
    text = {name: CONFIG[name] for name in CONFIG if name.endswith(("size", "heads", "layers", "embeddings"))} | fields
    nothing = dict.fromkeys((*text, "rms_norm_eps"))
    path = write_directory(tmp_path / "tiny", tensors, **{**nothing, "model_type": "gemma3", "text_config": text})
    checkpoint = open_checkpoint(path)
    assert checkpoint.decoder.tied
    norm = plain["model.norm.weight"]
    np.testing.assert_array_equal(checkpoint.weights.load("final_norm.weight"), norm + np.float32(1))
    embed = plain["model.embed_tokens.weight"]
    np.testing.assert_array_equal(checkpoint.weights.load("embed.weight"), embed)
