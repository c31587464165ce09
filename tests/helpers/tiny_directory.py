"""A complete llama directory of a few kilobytes, made without torch, to be broken by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sssd.architecture import Decoder
from sssd.errors import ExportError
from sssd.export.checkpoint import open_checkpoint
from sssd.export.config_fields import Config
from sssd.export.families import FAMILIES
from sssd.export.naming import locate
from tests.helpers.tiny_models import tiny_tokenizer

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 130,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def declare(max_len: int = 64, **fields: Any) -> Decoder:
    """The decoder of CONFIG with other fields; a field of None is absent."""
    values = {name: value for name, value in (CONFIG | fields).items() if value is not None}
    family = FAMILIES[values["model_type"]]
    return family.decoder(Config(values, "config.json").over(family.defaults), max_len)


def tensors_of(decoder: Decoder, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors under the family's own names."""
    rng = np.random.default_rng(seed)
    places = locate(decoder, FAMILIES[decoder.family].namings[0])
    return {p.tensor: rng.normal(size=p.shape).astype(np.float32) for p in places.values()}


def write_directory(path: Path, tensors: dict[str, np.ndarray] | None = None, **fields: Any) -> Path:
    """A directory as a user downloads it; `tensors` replace the random ones, a field of None is left out."""
    path.mkdir(exist_ok=True)
    values = {name: value for name, value in (CONFIG | fields).items() if value is not None}
    (path / "config.json").write_text(json.dumps(values))
    save_file(tensors_of(declare()) if tensors is None else tensors, path / "model.safetensors")
    (path / "tokenizer.json").write_text(tiny_tokenizer().to_str(), encoding="utf-8")
    return path


def refusal(source: str | Path, kind: type[ExportError] = ExportError, **options: int) -> str:
    """The one line with which opening the source is refused."""
    with pytest.raises(ExportError) as caught:
        open_checkpoint(source, **options)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    return message
