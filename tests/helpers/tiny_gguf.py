"""GGUF files out of tiny Hugging Face models, laid out as llama.cpp's converters lay them out.

Names of tensors and keys come from the gguf package, not from sssd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.helpers.tiny_models import VOCAB, tiny_tokenizer

NORMAL, CONTROL, UNUSED = 1, 3, 5
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@dataclass(frozen=True)
class GgufCase:
    """How one architecture is written."""

    arch: gguf.MODEL_ARCH
    model: str  # a case of tiny_models, or a Hugging Face model with these fields
    fields: dict[str, Any]
    interleaved: bool = False
    extra: Callable[[gguf.GGUFWriter, Any], None] = lambda writer, model: None


def write_gguf(path: Path, model: Any, case: GgufCase, *, matrices: str = "F32") -> Path:
    """Write the model; its matrices in the given GGML type where their rows are whole blocks."""
    config = model.config.get_text_config()
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[case.arch])
    _write_config(writer, config)
    case.extra(writer, model)
    write_tokenizer(writer)
    names = gguf.get_tensor_name_map(case.arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = _as_converters_write(name, tensor.numpy(), config, case)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        kind = gguf.GGMLQuantizationType[matrices]
        whole_blocks = data.ndim == 2 and data.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        if whole_blocks and matrices != "F32":
            writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_converters_write(name: str, data: np.ndarray, config: Any, case: GgufCase) -> np.ndarray:
    if case.interleaved and ".self_attn.q_proj." in name:
        data = _interleave(data, config.num_attention_heads)
    if case.interleaved and ".self_attn.k_proj." in name:
        data = _interleave(data, config.num_key_value_heads)
    if case.arch is gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
        data = data + 1
    return np.ascontiguousarray(data, np.float32)


def _interleave(data: np.ndarray, n_heads: int) -> np.ndarray:
    """Row j of a head's first half, then row j of its second half, for every j."""
    dim = len(data) // n_heads
    order = [h * dim + half * dim // 2 + j for h in range(n_heads) for j in range(dim // 2) for half in (0, 1)]
    return data[order]


def _write_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    parameters = config.rope_parameters
    writer.add_rope_freq_base(parameters.get("full_attention", parameters)["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)


def write_tokenizer(writer: gguf.GGUFWriter, pre: str = "gpt-2") -> None:
    """The tiny byte-level tokenizer, filled up to the embedding's size."""
    tokenizer = tiny_tokenizer()
    n = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(i) for i in range(n)] + [f"[PAD{i}]" for i in range(n, VOCAB)]
    model = tokenizer_model(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * 2 + [NORMAL] * (n - 2) + [UNUSED] * (VOCAB - n))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(CHAT_TEMPLATE)


def tokenizer_model(tokenizer: Any) -> dict[str, Any]:
    import json

    return json.loads(tokenizer.to_str())["model"]


# ---- the architectures -------------------------------------------------------------------------


def _llama3_factors(writer: gguf.GGUFWriter, model: Any) -> None:
    rotary = model.model.rotary_emb
    plain, _ = rotary.compute_default_rope_parameters(model.config)
    writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq).numpy())


def _yarn(writer: gguf.GGUFWriter, model: Any) -> None:
    rope = model.config.rope_parameters
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _gemma3(writer: gguf.GGUFWriter, model: Any) -> None:
    writer.add_sliding_window(model.config.sliding_window)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(model.config.rope_parameters["full_attention"]["factor"])


def _phi3(writer: gguf.GGUFWriter, model: Any) -> None:
    config, rope = model.config, model.config.rope_parameters
    head_dim = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
    writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
    writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def _granite(writer: gguf.GGUFWriter, model: Any) -> None:
    config = model.config
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


_GEMMA3_FIELDS = {"num_hidden_layers": 7, "layer_types": None, "query_pre_attn_scalar": 16}

GGUF_CASES: dict[str, GgufCase] = {
    "llama": GgufCase(gguf.MODEL_ARCH.LLAMA, "llama", {}, interleaved=True),
    "llama-biases": GgufCase(gguf.MODEL_ARCH.LLAMA, "llama-biases", {}, interleaved=True),
    "llama-llama3": GgufCase(gguf.MODEL_ARCH.LLAMA, "llama-llama3", {}, interleaved=True, extra=_llama3_factors),
    "qwen2": GgufCase(gguf.MODEL_ARCH.QWEN2, "qwen2", {}),
    "qwen3-yarn": GgufCase(gguf.MODEL_ARCH.QWEN3, "qwen3-yarn", {}, extra=_yarn),
    "gemma3": GgufCase(gguf.MODEL_ARCH.GEMMA3, "gemma3-text", _GEMMA3_FIELDS, extra=_gemma3),
    "phi3": GgufCase(gguf.MODEL_ARCH.PHI3, "phi3-partial", {}, extra=_phi3),
    "granite": GgufCase(gguf.MODEL_ARCH.GRANITE, "granite", {"mlp_bias": False}, interleaved=True, extra=_granite),
    "olmo2": GgufCase(gguf.MODEL_ARCH.OLMO2, "olmo2", {"attention_bias": False}),
    "smollm3": GgufCase(gguf.MODEL_ARCH.SMOLLM3, "smollm3", {"no_rope_layers": None}, interleaved=True),
}
