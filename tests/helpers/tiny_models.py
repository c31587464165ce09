"""Tiny random Hugging Face models of every supported family, saved as a user would find them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 200
MAX_POSITIONS = 64
LENGTH = 48  # tokens that are compared: past every window and past every original context below
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


def _longrope(n: int, partial: float = 1.0) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": partial,
        "short_factor": [1.0 + 0.05 * i for i in range(n)],
        "long_factor": [1.5 + 0.4 * i for i in range(n)],
    }


@dataclass(frozen=True)
class TinyModel:
    """One case: the names of a config class and a model class of transformers, and what differs from _SIZES."""

    config: str
    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    max_len: int | None = None  # to export with; None = all positions
    length: int = LENGTH


def _case(stem: str, **fields: Any) -> TinyModel:
    return TinyModel(f"{stem}Config", f"{stem}ForCausalLM", fields)


_GEMMA3 = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 4.0},
    },
}
_PHI3_LONG = {"original_max_position_embeddings": 16, "rope_parameters": _longrope(6)}

CASES: dict[str, TinyModel] = {
    "llama": _case("Llama"),
    "llama-llama3": _case("Llama", rope_parameters=_LLAMA3, tie_word_embeddings=True),
    "llama-linear": _case("Llama", rope_parameters=_LINEAR, head_dim=16),
    "llama-yarn": _case("Llama", rope_parameters=_YARN),
    "llama-dynamic": _case("Llama", rope_parameters=_LINEAR | {"rope_type": "dynamic"}),
    "llama-biases": _case("Llama", attention_bias=True, mlp_bias=True),
    "mistral": _case("Mistral", sliding_window=8),
    "mistral-no-window": _case("Mistral", sliding_window=None),
    "qwen2": _case("Qwen2"),
    "qwen2-window": _case("Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": _case("Qwen3", head_dim=16, attention_bias=True),
    "qwen3-yarn": _case("Qwen3", head_dim=16, rope_parameters=_YARN, tie_word_embeddings=True),
    "gemma3-text": TinyModel("Gemma3TextConfig", "Gemma3ForCausalLM", _GEMMA3),
    "gemma3-vision": TinyModel("Gemma3Config", "Gemma3ForConditionalGeneration", _GEMMA3),
    "phi3": _case("Phi3", sliding_window=8),
    "phi3-long": _case("Phi3", **_PHI3_LONG),
    "phi3-short": TinyModel("Phi3Config", "Phi3ForCausalLM", _PHI3_LONG, max_len=16, length=16),
    "phi3-partial": _case(
        "Phi3", hidden_size=64, original_max_position_embeddings=16, rope_parameters=_longrope(4, partial=0.5)
    ),
    "granite": _case(
        "Granite",
        attention_multiplier=0.2,
        embedding_multiplier=3.0,
        residual_multiplier=0.3,
        logits_scaling=2.0,
        attention_bias=True,
        mlp_bias=True,
    ),
    "olmo2": _case("Olmo2", attention_bias=True),
    "smollm3": _case("SmolLM3", num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0]),
    "smollm3-interval": _case(
        "SmolLM3", num_hidden_layers=4, use_sliding_window=True, sliding_window=8, no_rope_layer_interval=2
    ),
}


class SavedModel(NamedTuple):
    """A model on disk and what transformers says it computes."""

    path: Path
    token_ids: np.ndarray  # int64 [T]
    logits: np.ndarray  # float32 [T, V]


def build_tiny_model(case: TinyModel, *, seed: int = 0, **fields: Any) -> Any:
    """A random model of transformers; `fields` go over the case's."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = getattr(transformers, case.model)(_config(case, fields)).eval().float()
    randomize(model, torch.Generator().manual_seed(seed))
    return model


def save_tiny_model(case: TinyModel, path: Path, *, seed: int = 0, **save_options: Any) -> SavedModel:
    """Build, save with save_pretrained beside a tokenizer, and run once."""
    model = build_tiny_model(case, seed=seed)
    model.save_pretrained(path, **save_options)
    (path / "tokenizer.json").write_text(tiny_tokenizer().to_str(), encoding="utf-8")
    token_ids = np.random.default_rng(seed).integers(0, VOCAB, size=case.length)
    return SavedModel(path, token_ids, logits_of(model, token_ids))


def logits_of(model: Any, token_ids: np.ndarray) -> np.ndarray:
    """float32 [T, V] of int64 [T], by transformers."""
    import torch

    with torch.no_grad():
        return model(input_ids=torch.from_numpy(token_ids)[None], use_cache=False).logits[0].numpy()


def _config(case: TinyModel, over: dict[str, Any]) -> Any:
    import transformers

    fields = _SIZES | case.fields | over
    if case.config != "Gemma3Config":
        return getattr(transformers, case.config)(**fields, attn_implementation="eager")
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.Gemma3Config(
        text_config=fields,
        vision_config=vision | {"image_size": 16, "patch_size": 8},
        mm_tokens_per_image=4,
        image_token_index=VOCAB - 1,
        attn_implementation="eager",
    )


def randomize(model: Any, generator: Any) -> None:
    """Every weight away from its initial value: norms around one, biases around zero, nothing left at either."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                weight.copy_(weight + 0.3 * noise)
            elif name.endswith("bias"):
                weight.copy_(0.3 * noise)
            else:
                weight.copy_(noise * 1.5 / math.sqrt(weight.shape[-1]))


def tiny_tokenizer(vocab_size: int = 120) -> Tokenizer:
    """A byte-level BPE tokenizer of fewer tokens than VOCAB, with <s> and </s> as 0 and 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 4], trainer)
    return tokenizer
