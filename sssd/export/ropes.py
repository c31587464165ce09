"""From rope parameters as checkpoints write them to the declared Rope of a decoder.

Owns the rope types (default, linear, dynamic, llama3, yarn, longrope) and their two spellings (`rope_parameters`, and
the older `rope_theta` + `rope_scaling`); knows no family. Frequencies are computed in float32, as models were trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from sssd.architecture import Rope
from sssd.errors import ExportError, UnsupportedModel
from sssd.export.config_fields import Config
from sssd.types import Float32

LayerType = Literal["full_attention", "sliding_attention"]


class Scaling(NamedTuple):
    """What a rope type needs to know."""

    section: Config  # the parameters of one rope
    theta: float
    n_dims: int  # rotated dimensions of a head
    original: int  # positions of pretraining, before the context was stretched
    max_positions: int
    max_len: int  # positions that the export will use


def make_rope(config: Config, head_dim: int, max_len: int, *, layer_type: LayerType = "full_attention") -> Rope:
    """The rope of a config's layers of one type, for a whole context of `max_len` positions.

    Raises UnsupportedModel for an unknown rope type and ExportError for parameters that are absent or do not fit.
    """
    section = _section(config, layer_type)
    kind = _kind(section)
    partial = section.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    theta_name = "rope_theta" if layer_type == "full_attention" else "rope_local_base_freq"
    scaling = Scaling(
        section=section,
        theta=section.number("rope_theta", config.number(theta_name, 10_000.0)),
        n_dims=int(head_dim * partial),
        original=_original(config, section),
        max_positions=config.integer("max_position_embeddings"),
        max_len=max_len,
    )
    if scaling.n_dims <= 0 or scaling.n_dims > head_dim or scaling.n_dims % 2:
        raise ExportError(
            f"{config.where}: rope turns {scaling.n_dims} of {head_dim} dimensions: an even part is needed"
        )
    return _TYPES[kind](scaling)


def positions_allowed(config: Config) -> int:
    """How many positions the model was made for, stretching by yarn included."""
    section = _section(config, "full_attention")
    positions = config.integer("max_position_embeddings")
    if _kind(section) == "yarn" and section.has("factor"):
        positions = max(positions, int(section.number("factor") * _original(config, section)))
    return positions


def rope_note(config: Config, max_len: int) -> str | None:
    """What was decided about the rope for this `max_len`, where there was something to decide."""
    section = _section(config, "full_attention")
    if _kind(section) == "dynamic":
        return f"dynamic rope scaling does not act within max_len {max_len}: the unscaled rope is exported"
    if _kind(section) == "longrope" and section.numbers("long_factor") != section.numbers("short_factor"):
        original = _original(config, section)
        chosen, relation = ("long", "over") if max_len > original else ("short", "within")
        return f"longrope: {chosen} factors at every position, since max_len {max_len} is {relation} {original}"
    return None


def _section(config: Config, layer_type: LayerType) -> Config:
    """The parameters of one rope: nested by layer type, flat, in the older spelling, or none (all defaults)."""
    parameters = config.section("rope_parameters")
    if parameters is not None:
        nested = parameters.section(layer_type)
        if nested is not None:
            return nested
    # The older spelling scales the full-attention rope only.
    if layer_type == "sliding_attention":
        return Config({}, config.where)
    # Where both spellings stand, the older one wins, as in transformers.
    return config.section("rope_scaling") or parameters or Config({}, config.where)


def _kind(section: Config) -> str:
    kind = section.text("rope_type", section.text("type", "default"))
    kind = "longrope" if kind == "su" else kind  # its first name
    if kind not in _TYPES:
        raise UnsupportedModel(f"{section.where}: rope type {kind!r} is not supported, only {', '.join(_TYPES)}")
    return kind


def _original(config: Config, section: Config) -> int:
    if config.has("original_max_position_embeddings"):
        return config.integer("original_max_position_embeddings")
    return section.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))


# ---- the types ---------------------------------------------------------------------------------


def _powers(theta: float, n_dims: int) -> Float32:
    """theta ** (2 i / n_dims): radians per position are its inverse. float32 [n_dims / 2]."""
    exponents = np.arange(0, n_dims, 2, dtype=np.float32) / np.float32(n_dims)
    return np.asarray(np.float32(theta) ** exponents, dtype=np.float32)


def _rope(inv_freq: Float32, scale: float = 1.0) -> Rope:
    return Rope(inv_freq=tuple(float(f) for f in inv_freq.astype(np.float32)), scale=scale)


def _default(s: Scaling) -> Rope:
    return _rope(np.float32(1.0) / _powers(s.theta, s.n_dims))


def _linear(s: Scaling) -> Rope:
    return _rope(np.float32(1.0) / _powers(s.theta, s.n_dims) / np.float32(s.section.number("factor")))


def _llama3(s: Scaling) -> Rope:
    """Llama 3.1: long wavelengths are stretched, short ones kept, those between blended."""
    factor = np.float32(s.section.number("factor"))
    low, high = s.section.number("low_freq_factor"), s.section.number("high_freq_factor")
    inv_freq = np.float32(1.0) / _powers(s.theta, s.n_dims)
    turns = np.float32(s.original) * inv_freq / np.float32(2 * math.pi)  # over the original context
    keep = np.clip((turns - np.float32(low)) / np.float32(high - low), 0.0, 1.0)
    return _rope((1 - keep) * inv_freq / factor + keep * inv_freq)


def _yarn(s: Scaling) -> Rope:
    """YaRN (Peng et al. 2023): a ramp over dimensions from kept to stretched frequencies, and an attention factor."""
    section = s.section
    factor = section.number("factor", s.max_positions / s.original)
    fast, slow = section.number("beta_fast", 32.0), section.number("beta_slow", 1.0)

    def dimension_that_turns(n_turns: float) -> float:
        return s.n_dims * math.log(s.original / (n_turns * 2 * math.pi)) / (2 * math.log(s.theta))

    low, high = dimension_that_turns(fast), dimension_that_turns(slow)
    if section.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, s.n_dims - 1)
    high = high + 0.001 if high == low else high
    stretched = np.clip((np.arange(s.n_dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    powers = _powers(s.theta, s.n_dims)
    inv_freq = stretched / (np.float32(factor) * powers) + (1 - stretched) / powers
    return _rope(inv_freq, _yarn_attention_factor(section, factor))


def _yarn_attention_factor(section: Config, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if section.has("attention_factor"):
        return section.number("attention_factor")
    if section.number("mscale", 0.0) and section.number("mscale_all_dim", 0.0):
        return magnitude(section.number("mscale")) / magnitude(section.number("mscale_all_dim"))
    return magnitude(1.0)


def _longrope(s: Scaling) -> Rope:
    """LongRoPE (Ding et al. 2024): one factor a frequency; the long ones when the context exceeds the original."""
    name = "long_factor" if s.max_len > s.original else "short_factor"
    factors = s.section.numbers(name)
    if len(factors) != s.n_dims // 2:
        raise ExportError(f"{s.section.where}: {name} has {len(factors)} numbers, {s.n_dims // 2} are needed")
    stretch = s.section.number("factor", s.max_positions / s.original)
    inferred = 1.0 if stretch <= 1.0 else math.sqrt(1 + math.log(stretch) / math.log(s.original))
    inv_freq = np.float32(1.0) / (np.asarray(factors, dtype=np.float32) * _powers(s.theta, s.n_dims))
    return _rope(inv_freq, s.section.number("attention_factor", inferred))


_TYPES: dict[str, Callable[[Scaling], Rope]] = {
    "default": _default,
    "linear": _linear,
    # Dynamic scaling acts only beyond max_position_embeddings, which is as far as an export goes.
    "dynamic": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
