"""How each canonical weight lies in the weights file. Owns the choice and the encoding; knows no ONNX.

A weight `w` [out, in] is stored under these names ([in, out] and [in / block, out] for linear weights, because that is
how MatMul reads them; [out, in] and [out, in / block] for the embedding, which is read by rows):

    plain       w: float32, float16 or bfloat16
    blockwise   w.int4 or w.int8: codes; w.scales: float32; w.zeros: as the codes; w.offsets: float32, where any are

    w = scales * (codes - zeros) + offsets
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.architecture import Decoder
from sssd.export.quantize import quantize
from sssd.export.source import Blocks, WeightSource, as_float32
from sssd.export.weights import Kind, Tensor
from sssd.spec import WeightType
from sssd.types import TensorShape

EMBEDDING = "embed.weight"
HEAD = "lm_head.weight"
BLOCK = 32  # inputs that share a scale, where the checkpoint does not say otherwise

_PLAIN: dict[WeightType, Kind] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Plain:
    """One tensor of numbers."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Blockwise:
    """Codes, scales and zero points; `own` blocks are the checkpoint's, repacked without loss."""

    bits: int  # 4 or 8
    block: int
    offsets: bool
    own: bool


Storage = Plain | Blockwise


class Weight(NamedTuple):
    """A canonical weight and how it is stored."""

    name: str
    shape: TensorShape  # [out, in] or [n]
    storage: Storage

    @property
    def by_rows(self) -> bool:
        """Whether it is stored [out, in]."""
        return self.name == EMBEDDING

    def dims(self, block: int = 1) -> TensorShape:
        """Dimensions in the file, with the inputs divided by `block`."""
        if len(self.shape) == 1:
            return self.shape
        out, inputs = self.shape[0], self.shape[1] // block
        return (out, inputs) if self.by_rows else (inputs, out)


def choose_storage(decoder: Decoder, source: WeightSource, weights: WeightType) -> dict[str, Weight]:
    """Decide for every weight of the decoder; embedding and LM head keep 8 bits where the rest has 4."""
    return {
        name: Weight(name, shape, _choose(name, shape, source, weights))
        for name, shape in decoder.weight_shapes().items()
    }


def _choose(name: str, shape: TensorShape, source: WeightSource, weights: WeightType) -> Storage:
    if len(shape) == 1:
        return Plain("float32")  # norms and biases: small, and what they scale is not
    if weights in _PLAIN:
        return Plain(_PLAIN[weights])
    bits = 4 if weights == "int4" and name not in (EMBEDDING, HEAD) else 8
    own = source.blocks(name)
    if own is not None and own.bits <= bits:
        return Blockwise(max(own.bits, bits), own.block, own.offsets is not None, own=True)
    block = next((b for b in (BLOCK, BLOCK // 2) if shape[1] % b == 0), None)
    if block is None or shape[0] % 2:
        return Plain("float32")
    return Blockwise(bits, block, offsets=False, own=False)


def notes(weights: dict[str, Weight], asked: WeightType) -> tuple[str, ...]:
    """What was stored otherwise than asked, for the manifest."""
    if asked in _PLAIN:
        return ()
    matrices = [w for w in weights.values() if len(w.shape) == 2]
    own = [w for w in matrices if isinstance(w.storage, Blockwise) and w.storage.own]
    plain = [w.name for w in matrices if isinstance(w.storage, Plain)]
    found = [f"{len(own)} of {len(matrices)} matrices keep the checkpoint's own quantized blocks"] if own else []
    if plain:
        found.append(f"stored as float32, because their inputs do not divide into blocks: {', '.join(plain)}")
    return tuple(found)


def tensors(weight: Weight) -> list[Tensor]:
    """What a weight is stored as."""
    storage = weight.storage
    if isinstance(storage, Plain):
        return [Tensor(weight.name, storage.kind, weight.dims())]
    kind: Kind = "uint4" if storage.bits == 4 else "uint8"
    coarse = weight.dims(storage.block)
    named = [
        Tensor(f"{weight.name}.int{storage.bits}", kind, weight.dims()),
        Tensor(f"{weight.name}.scales", "float32", coarse),
        Tensor(f"{weight.name}.zeros", kind, coarse),
    ]
    return [*named, Tensor(f"{weight.name}.offsets", "float32", coarse)] if storage.offsets else named


def encode(weight: Weight, source: WeightSource) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    """The tensors of `tensors(weight)` with their content; holds one weight in memory."""
    storage = weight.storage
    if isinstance(storage, Plain):
        arrays = [_as_kind(source.load(weight.name), storage.kind)]
    else:
        blocks = source.blocks(weight.name) if storage.own else _quantized(weight, source, storage)
        assert blocks is not None
        assert (blocks.offsets is not None) == storage.offsets
        arrays = [blocks.codes, blocks.scales, blocks.zeros, *([] if blocks.offsets is None else [blocks.offsets])]
    for tensor, array in zip(tensors(weight), arrays, strict=True):
        yield tensor, array if array.ndim == 1 or weight.by_rows else array.T


def _quantized(weight: Weight, source: WeightSource, storage: Blockwise) -> Blocks:
    return quantize(as_float32(source.load(weight.name)), storage.bits, storage.block)


def _as_kind(array: npt.NDArray[Any], kind: Kind) -> npt.NDArray[Any]:
    if kind == "bfloat16":
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16, copy=False)
    return array.astype(np.dtype(kind), copy=False)
