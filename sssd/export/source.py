"""What a checkpoint is to the rest of export: a declared decoder, its weights by canonical name, its text files.

Owns the seam between readers (safetensors, GGUF) and the graph; knows neither file formats nor ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sssd.architecture import Decoder
from sssd.types import Float32, Uint8


@dataclass(frozen=True, slots=True)
class Blocks:
    """A linear weight as the checkpoint stores it, in blocks along its input dimension, without loss.

    w[o, i] = scales[o, i // block] * (codes[o, i] - zeros[o, i // block]) + offsets[o, i // block]
    """

    bits: int  # 4 or 8
    block: int  # inputs a block covers; divides the input dimension
    codes: Uint8  # uint8 [out, in], below 2 ** bits
    scales: Float32  # float32 [out, in / block]
    zeros: Uint8  # uint8 [out, in / block], the integer zero point
    offsets: Float32 | None  # float32 [out, in / block]; None = zero everywhere


class WeightSource(Protocol):
    """A checkpoint's weights under canonical names (architecture.py), one at a time: nothing is held after a call."""

    def load(self, name: str) -> npt.NDArray[Any]:
        """The weight as stored (float32, float16 or ml_dtypes.bfloat16), dequantized to float32 if it was quantized."""

    def blocks(self, name: str) -> Blocks | None:
        """The weight's own quantized blocks, or None when it is stored unquantized or in another scheme."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint, complete and checked: every weight that the decoder names is there in its shape."""

    name: str  # what a user calls the model
    decoder: Decoder
    weights: WeightSource
    max_len: int  # positions the model was made for, or fewer where the caller said so
    eos_ids: tuple[int, ...]
    bos_id: int | None
    tokenizer_json: str  # content of tokenizer.json
    chat_template: str | None  # Jinja
    notes: tuple[str, ...] = ()  # choices made while reading, for the manifest


def as_float32(weight: npt.NDArray[Any]) -> Float32:
    """The weight as contiguous float32; no copy when it already is."""
    return np.ascontiguousarray(weight, dtype=np.float32)
