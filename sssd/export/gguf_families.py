"""The GGUF architectures, each declared: its family, its tensor names, and its metadata as a Hugging Face config.

Knows the names that llama.cpp's converters write and the constants that they leave unsaid; knows no tensor data but
the rope factors, which are hyperparameters kept as tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sssd.errors import UnsupportedModel
from sssd.export.config_fields import Config
from sssd.export.gguf_reader import GgufFile
from sssd.export.gguf_weights import GgufTensors
from sssd.export.naming import Fused, Naming, RowRange

_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
_WINDOW = {"sliding_window": "attention.sliding_window"}
# Keys that, when not zero, ask for a computation that no family has.
_REFUSED = ("expert_count", "attention.max_alibi_bias", "attention.clamp_kqv")


@dataclass(frozen=True, slots=True)
class Architecture:
    """One `general.architecture`."""

    family: str  # model_type
    naming: Naming
    fields: Mapping[str, str] = field(default_factory=dict)  # config field -> key, beside _FIELDS
    refused: tuple[str, ...] = ()  # keys beside _REFUSED
    unsaid: Callable[[Config], Mapping[str, object]] | None = None  # fields that llama.cpp knows without being told


def architecture_of(file: GgufFile) -> Architecture:
    """The declared architecture of a file. Raises UnsupportedModel listing the supported ones."""
    name = Config(file.metadata, str(file.path)).text("general.architecture")
    if name not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"{file.path}: GGUF architecture {name!r} is not supported, only {supported}")
    if file.metadata.get("split.count") not in (None, 0, 1):
        raise UnsupportedModel(f"{file.path} is one of several parts: merge them with gguf-split --merge first")
    return ARCHITECTURES[name]


def gguf_config(file: GgufFile, tensors: GgufTensors) -> Config:
    """The file's metadata under Hugging Face field names. Raises UnsupportedModel for what no family computes."""
    architecture = architecture_of(file)
    prefix = f"{file.metadata['general.architecture']}."
    keys = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    own = Config(keys, str(file.path))
    refused = [key for key in (*_REFUSED, *architecture.refused) if own.has(key) and own.number(key)]
    if refused:
        raise UnsupportedModel(
            f"{file.path} sets {', '.join(prefix + key for key in refused)}: no family computes that"
        )
    fields = {**_FIELDS, **architecture.fields}
    values: dict[str, object] = {name: keys[key] for name, key in fields.items() if key in keys}
    values |= {"model_type": architecture.family, **_shown_by_tensors(file, own), **_rope(own, tensors)}
    config = Config(values, str(file.path))
    return config if architecture.unsaid is None else config.over(architecture.unsaid(config))


def _shown_by_tensors(file: GgufFile, own: Config) -> dict[str, object]:
    """Fields that no key states, for the tensors show them."""
    embed = file.tensors.get("token_embd.weight")
    fields: dict[str, object] = {
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }
    vocab_size = embed.shape[0] if embed is not None else own.optional_integer("vocab_size")
    return fields if vocab_size is None else {**fields, "vocab_size": vocab_size}


def _rope(own: Config, tensors: GgufTensors) -> dict[str, object]:
    fields: dict[str, object] = {}
    if own.has("rope.dimension_count"):
        n_heads, hidden = own.integer("attention.head_count"), own.integer("embedding_length")
        head_dim = own.integer("attention.key_length", hidden // n_heads)
        fields["partial_rotary_factor"] = own.integer("rope.dimension_count") / head_dim
    scaling = _rope_scaling(own, tensors)
    return fields if scaling is None else {**fields, "rope_scaling": scaling}


def _rope_scaling(own: Config, tensors: GgufTensors) -> dict[str, object] | None:
    shapes = tensors.shapes()
    if "rope_freqs.weight" in shapes:
        # Llama 3's scaling, worked out: one divisor a frequency whatever the length, which is longrope's form.
        factors = _vector(tensors, "rope_freqs.weight")
        return {"rope_type": "longrope", "long_factor": factors, "short_factor": factors, "attention_factor": 1.0}
    if "rope_factors_long.weight" in shapes and "rope_factors_short.weight" in shapes:
        names = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
        scaling: dict[str, object] = {name: _vector(tensors, tensor) for name, tensor in names.items()}
        if own.has("rope.scaling.attn_factor"):
            scaling["attention_factor"] = own.number("rope.scaling.attn_factor")
        return {"rope_type": "longrope", **scaling}
    if own.has("rope.scale_linear"):  # the older key
        return {"rope_type": "linear", "factor": own.number("rope.scale_linear")}
    kind = own.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = own.number("rope.scaling.factor")
    scaling = {"rope_type": kind, "factor": factor}
    for name, key in {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}.items():
        if own.has(f"rope.scaling.{key}"):
            scaling[name] = own.number(f"rope.scaling.{key}")
    if kind == "yarn" and own.has("rope.scaling.attn_factor"):
        # llama.cpp multiplies YaRN's own attention factor; a config replaces it.
        scaling["attention_factor"] = own.number("rope.scaling.attn_factor") * (1 + 0.1 * math.log(factor))
    return scaling


def _vector(tensors: GgufTensors, name: str) -> tuple[float, ...]:
    (length,) = tensors.shapes()[name]
    return tuple(float(x) for x in tensors.load(name, RowRange(0, length)))


def _gemma3_unsaid(config: Config) -> dict[str, object]:
    """The scale of attention: head_dim, but hidden / heads in the 27B model, which is told by its 62 layers."""
    scalar: object = config.integer("head_dim", 256)
    if config.integer("num_hidden_layers") == 62:
        scalar = config.integer("hidden_size") / config.integer("num_attention_heads")
    return {"query_pre_attn_scalar": scalar}


# ---- tensor names ------------------------------------------------------------------------------

_LAYER: dict[str, str | Fused] = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_QK_NORMS: dict[str, str | Fused] = {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
_POST_NORMS: dict[str, str | Fused] = {"attn_post_norm": "post_attention_norm", "mlp_post_norm": "post_ffw_norm"}
_PHI3_QKV = Fused("attn_qkv", ("q", "k", "v"))
_PHI3_GATE_UP = Fused("ffn_up", ("gate", "up"))
_PHI3_LAYER = _LAYER | {"q": _PHI3_QKV, "k": _PHI3_QKV, "v": _PHI3_QKV, "gate": _PHI3_GATE_UP, "up": _PHI3_GATE_UP}


def _naming(layer: dict[str, str | Fused], *, interleaved_heads: bool = False) -> Naming:
    # Norms are written as they multiply: Gemma's offset of one is already added.
    return Naming(
        embed="token_embd",
        final_norm="output_norm",
        lm_head="output",
        layer_prefix="blk.{i}.",
        layer=layer,
        interleaved_heads=interleaved_heads,
        ignored=("rope_freqs.", "rope_factors_"),
    )


_INTERLEAVED = _naming(_LAYER, interleaved_heads=True)
_GRANITE_FIELDS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_GEMMA3_FIELDS = {
    "rope_local_base_freq": "rope.freq_base_swa",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", _INTERLEAVED),
    "qwen2": Architecture("qwen2", _naming(_LAYER)),
    "qwen3": Architecture("qwen3", _naming(_LAYER | _QK_NORMS)),
    "gemma3": Architecture(
        "gemma3_text", _naming(_LAYER | _QK_NORMS | _POST_NORMS), _WINDOW | _GEMMA3_FIELDS, unsaid=_gemma3_unsaid
    ),
    "phi3": Architecture("phi3", _naming(_PHI3_LAYER), _WINDOW),
    "granite": Architecture("granite", _INTERLEAVED, _GRANITE_FIELDS),
    "olmo2": Architecture("olmo2", _naming(_LAYER | _QK_NORMS | _POST_NORMS), refused=("attention.sliding_window",)),
    "smollm3": Architecture("smollm3", _INTERLEAVED),
}
