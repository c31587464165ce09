"""Decoders that cannot be traced, by name, and why. Knows nothing of how the others are.

What stands here would fail late or, worse, pass: an exporter follows what it sees, and a small copy does not show all.
"""

from __future__ import annotations

from sssd.errors import UnsupportedModel

_LATENT = "its keys and values are of different widths and expert routing depends on the data"
_STATE = "it keeps a state instead of keys and values, which cannot go back where a draft is rejected"
_SHARED = "some of its layers share the keys and values of others"

REFUSED: dict[str, str] = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "mpt": "its position bias is built for one row and for consecutive keys",
    "gemma3n": _SHARED,
    "gemma3n_text": _SHARED,
    "mamba": _STATE,
    "mamba2": _STATE,
    "falcon_mamba": _STATE,
    "rwkv": _STATE,
    "recurrent_gemma": _STATE,
    "jamba": _STATE,
    "bamba": _STATE,
    "zamba": _STATE,
    "zamba2": _STATE,
    "lfm2": _STATE,
    "qwen3_next": _STATE,
    "granitemoehybrid": _STATE,
}


def refuse(model_type: str, where: str) -> None:
    """Raise UnsupportedModel for a model type that is known not to work."""
    if model_type in REFUSED:
        raise UnsupportedModel(f"{where}: {model_type} models cannot be exported: {REFUSED[model_type]}")
