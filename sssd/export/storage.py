"""How each canonical weight lies in the weights file. Owns the choice and the encoding; knows no ONNX.

A weight `w` [out, in] is stored under these names ([in, out] and [in / block, out] for linear weights, because that is
how MatMul reads them; [out, in] and [out, in / block] for the embedding, which is read by rows):

    plain       w: float32, float16 or bfloat16
    blockwise   w.int4 or w.int8: codes; w.scales; w.zeros: as the codes, absent for signed ones; w.offsets, if any
    by output   w.float8: eight-bit floats; w.scales [out]

    w = scales * (codes - zeros) + offsets
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.architecture import Decoder
from sssd.export.quantize import quantize, quantize_float8
from sssd.export.source import Blocks, WeightSource, as_float32
from sssd.export.weights import Kind, Tensor
from sssd.spec import WeightType
from sssd.types import TensorShape

EMBEDDING = "embed.weight"
HEAD = "lm_head.weight"
BLOCK = 32  # inputs that share a scale, where the checkpoint does not say otherwise

_PLAIN: dict[WeightType, Kind] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Form:
    """How the runtime that reads the weights wants them, whatever their type."""

    floats: Kind = "float32"  # of norms, biases, scales and of what is not quantized
    signed: bool = False  # codes lie around zero, without zero points, and the embedding is not quantized


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
    form: Form = Form()

    @property
    def codes(self) -> Kind:
        """Kind of the codes."""
        kinds: tuple[Kind, Kind] = ("int4", "int8") if self.form.signed else ("uint4", "uint8")
        return kinds[self.bits == 8]


@dataclass(frozen=True, slots=True)
class ByOutput:
    """Eight-bit floats with one scale an output."""

    scales: Kind


Storage = Plain | Blockwise | ByOutput


class Weight(NamedTuple):
    """A canonical weight and how it is stored."""

    name: str
    shape: TensorShape  # [out, in] or [n]
    storage: Storage
    by_rows: bool  # stored [out, in], because it is read by rows

    def dims(self, block: int = 1) -> TensorShape:
        """Dimensions in the file, with the inputs divided by `block`."""
        if len(self.shape) == 1:
            return self.shape
        out, inputs = self.shape[0], self.shape[1] // block
        return (out, inputs) if self.by_rows else (inputs, out)


def choose_storage(
    decoder: Decoder, source: WeightSource, weights: WeightType, form: Form = Form()
) -> dict[str, Weight]:
    """Decide for every weight of the decoder; embedding and LM head keep 8 bits where the rest has 4."""
    return {
        name: Weight(name, shape, choose(name, shape, source, weights, form), by_rows=name == EMBEDDING)
        for name, shape in decoder.weight_shapes().items()
    }


def choose(
    name: str,
    shape: TensorShape,
    source: WeightSource,
    weights: WeightType,
    form: Form,
    *,
    ends: Collection[str] = (EMBEDDING, HEAD),
) -> Storage:
    """Decide for one weight; `ends` are embedding and LM head, which keep 8 bits where the rest has 4."""
    if len(shape) == 1:
        return Plain(form.floats)  # norms and biases: small, and what they scale is not
    if weights in _PLAIN:
        return Plain(_PLAIN[weights])
    if form.signed and name == EMBEDDING:
        return Plain(form.floats)  # TensorRT cannot gather rows of codes
    if weights == "fp8":
        return ByOutput(form.floats)
    bits = 4 if weights == "int4" and name not in ends else 8
    own = source.blocks(name)
    if own is not None and own.bits <= bits:
        offsets = own.offsets is not None or (form.signed and bool((own.zeros != _middle(own)).any()))
        return Blockwise(max(own.bits, bits), own.block, offsets, own=True, form=form)
    block = next((b for b in (BLOCK, BLOCK // 2) if shape[1] % b == 0), None)
    if block is None or shape[0] % 2:
        return Plain(form.floats)
    return Blockwise(bits, block, offsets=False, own=False, form=form)


def _middle(blocks: Blocks) -> int:
    """The code that signed codes call zero."""
    return int(2 ** (blocks.bits - 1))


def notes(weights: dict[str, Weight], asked: WeightType) -> tuple[str, ...]:
    """What was stored otherwise than asked, for the manifest."""
    if asked in _PLAIN:
        return ()
    matrices = [w for w in weights.values() if len(w.shape) == 2]
    own = [w for w in matrices if isinstance(w.storage, Blockwise) and w.storage.own]
    plain = [w.name for w in matrices if isinstance(w.storage, Plain)]
    found = [f"{len(own)} of {len(matrices)} matrices keep the checkpoint's own quantized blocks"] if own else []
    if plain:
        names = ", ".join(plain)
        found.append(f"not quantized, because they are read by rows or do not divide into blocks: {names}")
    return tuple(found)


def tensors(weight: Weight) -> list[Tensor]:
    """What a weight is stored as."""
    storage = weight.storage
    if isinstance(storage, Plain):
        return [Tensor(weight.name, storage.kind, weight.dims())]
    if isinstance(storage, ByOutput):
        scales = Tensor(f"{weight.name}.scales", storage.scales, weight.shape[:1])
        return [Tensor(f"{weight.name}.float8", "float8", weight.dims()), scales]
    coarse, floats = weight.dims(storage.block), storage.form.floats
    named = [
        Tensor(f"{weight.name}.int{storage.bits}", storage.codes, weight.dims()),
        Tensor(f"{weight.name}.scales", floats, coarse),
    ]
    if not storage.form.signed:
        named.append(Tensor(f"{weight.name}.zeros", storage.codes, coarse))
    return [*named, Tensor(f"{weight.name}.offsets", floats, coarse)] if storage.offsets else named


def encode(weight: Weight, source: WeightSource) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    """The tensors of `tensors(weight)` with their content; holds one weight in memory."""
    storage = weight.storage
    if isinstance(storage, Plain):
        arrays: list[npt.NDArray[Any]] = [source.load(weight.name)]
    elif isinstance(storage, ByOutput):
        arrays = list(quantize_float8(as_float32(source.load(weight.name))))
    else:
        blocks = source.blocks(weight.name) if storage.own else _quantized(weight, source, storage)
        assert blocks is not None
        arrays = _signed(blocks, offsets=storage.offsets) if storage.form.signed else _unsigned(blocks)
    for tensor, array in zip(tensors(weight), arrays, strict=True):
        yield tensor, _as_kind(array if array.ndim == 1 or weight.by_rows else array.T, tensor.kind)


def _quantized(weight: Weight, source: WeightSource, storage: Blockwise) -> Blocks:
    values = as_float32(source.load(weight.name))
    return quantize(values, storage.bits, storage.block, symmetric=storage.form.signed)


def _unsigned(blocks: Blocks) -> list[npt.NDArray[Any]]:
    return [blocks.codes, blocks.scales, blocks.zeros, *([] if blocks.offsets is None else [blocks.offsets])]


def _signed(blocks: Blocks, *, offsets: bool) -> list[npt.NDArray[Any]]:
    """Codes around zero; what zero points other than the middle stand for goes into the offsets."""
    middle = _middle(blocks)
    codes = blocks.codes.astype(np.int16) - middle
    moved = blocks.scales * (np.float32(middle) - blocks.zeros)
    if blocks.offsets is not None:
        moved += blocks.offsets
    assert offsets or not moved.any()
    return [codes.astype(np.int8), blocks.scales, *([moved] if offsets else [])]


def _as_kind(array: npt.NDArray[Any], kind: Kind) -> npt.NDArray[Any]:
    if kind in ("uint8", "uint4", "int8", "int4", "float8"):
        return array  # codes come as they are
    if kind == "bfloat16":
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16, copy=False)
    return array.astype(np.dtype(kind), copy=False)
