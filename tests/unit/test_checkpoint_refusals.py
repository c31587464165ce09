"""What no export comes from: each is refused in one line that says everything at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sssd.errors import MissingExtra, UnsupportedModel
from sssd.export.checkpoint import open_checkpoint
from tests.helpers.tiny_directory import declare, refusal, tensors_of, write_directory


def test_a_source_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing")
    assert "does not exist" in refusal("./a/b/c")


def test_a_directory_without_config_names_the_gguf_files_in_it(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"")
    assert "model.gguf" in refusal(tmp_path)


def test_a_single_weights_file_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    assert "give the directory" in refusal(path / "model.safetensors")


def test_all_missing_and_all_misshapen_tensors_are_listed_at_once(tmp_path: Path) -> None:
    tensors = tensors_of(declare())
    for name in ("model.norm.weight", "model.layers.1.self_attn.k_proj.weight"):
        del tensors[name]
    tensors["lm_head.weight"] = np.zeros((130, 15), np.float32)
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((16, 24), np.float32)
    message = refusal(write_directory(tmp_path / "tiny", tensors))
    for part in ("model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "[130, 15], [130, 16] is needed"):
        assert part in message
    assert "model.layers.0.mlp.up_proj.weight is [16, 24], [24, 16] is needed" in message


def test_tensors_without_a_use_are_refused_except_known_buffers(tmp_path: Path) -> None:
    tensors = tensors_of(declare())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)
    open_checkpoint(write_directory(tmp_path / "tiny", tensors))
    tensors["model.layers.0.self_attn.q_norm.weight"] = np.zeros(4, np.float32)
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(16, np.float32)
    message = refusal(write_directory(tmp_path / "tiny", tensors), UnsupportedModel)
    assert "q_norm.weight" in message
    assert "q_proj.bias" in message


def test_weights_of_unreadable_types_are_listed(tmp_path: Path) -> None:
    tensors = tensors_of(declare())
    for name in ("model.norm.weight", "lm_head.weight"):
        tensors[name] = tensors[name].astype(np.int8)
    message = refusal(write_directory(tmp_path / "tiny", tensors), UnsupportedModel)
    assert "model.norm.weight is I8" in message
    assert "lm_head.weight is I8" in message


def test_absent_fields_are_listed_at_once(tmp_path: Path) -> None:
    message = refusal(write_directory(tmp_path / "tiny", hidden_size=None, vocab_size=None))
    assert "lacks hidden_size, vocab_size" in message


@pytest.mark.parametrize("value", ["16", 16.0, True, [16]])
def test_a_field_of_the_wrong_type_is_refused(value: object, tmp_path: Path) -> None:
    assert "hidden_size is" in refusal(write_directory(tmp_path / "tiny", hidden_size=value))


def test_an_unknown_model_type_lists_the_supported_ones(tmp_path: Path) -> None:
    message = refusal(write_directory(tmp_path / "tiny", model_type="mamba"), UnsupportedModel)
    assert "'mamba'" in message
    assert "gemma3, gemma3_text, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, smollm3" in message


def test_an_unknown_rope_type_lists_the_supported_ones(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", rope_scaling={"rope_type": "spiral", "factor": 2.0})
    message = refusal(path, UnsupportedModel)
    assert "'spiral'" in message
    assert "default, linear, dynamic, llama3, yarn, longrope" in message


def test_a_quantized_directory_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny", quantization_config={"quant_method": "gptq"})
    assert "quantization_config" in refusal(path, UnsupportedModel)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    last = {"id": 130, "content": "<x>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer["added_tokens"].append(last | {"normalized": False})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "131 tokens, the embedding only 130" in refusal(path)
    (path / "tokenizer.json").write_text("{}")
    assert "malformed" in refusal(path)
    (path / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal(path)


def test_ends_of_text_outside_the_vocabulary_are_listed(tmp_path: Path) -> None:
    message = refusal(write_directory(tmp_path / "tiny", eos_token_id=[1, 130], bos_token_id=200))
    assert "bos 200, eos 130" in message


def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    for text in ("{", "[]"):
        (path / "config.json").write_text(text)
        assert "config.json" in refusal(path)


def test_weights_cut_short_anywhere_are_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    whole = (path / "model.safetensors").read_bytes()
    for n_bytes in [*range(40), *range(40, len(whole), 997), len(whole) - 1]:
        (path / "model.safetensors").write_bytes(whole[:n_bytes])
        assert "model.safetensors" in refusal(path)


@pytest.mark.parametrize(
    "header",
    ["[]", '{"a": 1}', '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}', '{"a": {"dtype": "F32"}}', "\xff"],
)
def test_a_malformed_header_is_refused(header: str, tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    raw = header.encode("latin-1")
    (path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    assert "malformed safetensors header" in refusal(path)


def test_sizes_that_do_not_fit_the_shape_are_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    raw = b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}'
    (path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    assert "do not fit the shapes of a" in refusal(path)


def test_other_weight_formats_are_named(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert "it holds pytorch_model.bin" in refusal(path)


def test_tensors_that_begin_before_the_data_are_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    raw = b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}'
    (path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    assert "cannot begin before the data" in refusal(path)


def test_text_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "tiny")
    (path / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja is no UTF-8 text" in refusal(path)


@pytest.mark.parametrize("module", ["gguf", "ml_dtypes"])
def test_an_absent_package_names_the_extra_that_brings_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.constants", None)
    if module == "gguf":
        source = tmp_path / "a.gguf"
        source.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    else:
        tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors_of(declare()).items()}
        source = write_directory(tmp_path / "tiny", tensors)
    with pytest.raises(MissingExtra, match=rf"{module}.*sssd\[export\]"):
        open_checkpoint(source).weights.load("embed.weight")
