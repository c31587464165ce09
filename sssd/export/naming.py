"""Where each canonical weight of a decoder stands in a checkpoint: names, rows of fused tensors, small repairs.

Owns the binding and the check that a checkpoint is complete; knows neither file formats nor families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sssd.architecture import Decoder
from sssd.errors import ExportError, UnsupportedModel
from sssd.export.source import Blocks, as_float32
from sssd.types import TensorShape

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Fused(NamedTuple):
    """A tensor that holds several linears, one below the other."""

    stem: str
    members: tuple[str, ...]  # canonical stems, in row order


@dataclass(frozen=True, slots=True)
class Naming:
    """One checkpoint layout. Stems are names without `.weight` or `.bias`."""

    embed: str
    final_norm: str
    lm_head: str
    layer_prefix: str  # with {i} for the layer
    layer: Mapping[str, str | Fused]  # canonical stem -> stem below the prefix
    norm_offset: float = 0.0  # added to norm weights: what the model adds when it runs
    interleaved_heads: bool = False  # rows of q and k hold rotary pairs side by side, not in halves
    ignored: tuple[str, ...] = ()  # parts of the names of tensors that are no weights of the text decoder


class RowRange(NamedTuple):
    """Rows of a tensor, along its first axis."""

    start: int
    stop: int


class RawTensors(Protocol):
    """A checkpoint's tensors under their own names, read on demand."""

    def shapes(self) -> Mapping[str, TensorShape]:
        """Every tensor and its shape, outermost axis first."""

    def unreadable(self) -> Mapping[str, str]:
        """Tensors whose data cannot be read, each with its type's name."""

    def load(self, name: str, rows: RowRange) -> npt.NDArray[Any]:
        """These rows as stored, dequantized to float32 when quantized."""

    def blocks(self, name: str, rows: RowRange) -> Blocks | None:
        """These rows' quantized blocks, None when not stored in a scheme of blocks that we keep."""


class Place(NamedTuple):
    """Where a canonical weight stands."""

    tensor: str
    shape: TensorShape  # that the whole tensor must have
    rows: RowRange
    n_heads: int | None  # heads whose rows are to be put into halves; None = rows are in order
    add: float


class BoundWeights:
    """A WeightSource over raw tensors. Holds places, no data."""

    def __init__(self, raw: RawTensors, places: Mapping[str, Place]) -> None:
        self._raw = raw
        self._places = places

    def load(self, name: str) -> npt.NDArray[Any]:
        """The canonical weight; float32 when it was quantized or had to be changed, else as stored."""
        place = self._places[name]
        weight = self._raw.load(place.tensor, place.rows)
        if place.n_heads is not None:
            weight = _halves(weight, place.n_heads)
        return as_float32(weight) + np.float32(place.add) if place.add else weight

    def blocks(self, name: str) -> Blocks | None:
        """The weight's own quantized blocks; None when there are none or they would not be exact."""
        place = self._places[name]
        assert not place.add, f"{name} is a norm: it has no blocks"
        blocks = self._raw.blocks(place.tensor, place.rows)
        if blocks is None or place.n_heads is None:
            return blocks
        n = place.n_heads
        return Blocks(
            bits=blocks.bits,
            block=blocks.block,
            codes=_halves(blocks.codes, n),
            scales=_halves(blocks.scales, n),
            zeros=_halves(blocks.zeros, n),
            offsets=None if blocks.offsets is None else _halves(blocks.offsets, n),
        )


def bind(raw: RawTensors, decoder: Decoder, naming: Naming, *, where: str, n_layers: int | None = None) -> BoundWeights:
    """The first `n_layers` of the decoder (all when None) bound to their tensors, once the checkpoint is checked.

    Raises ExportError listing all missing or all misshapen tensors, and UnsupportedModel listing all that the family
    has no use for: a model with further weights computes something else.
    """
    places = locate(decoder, naming)
    wanted = {place.tensor: place.shape for place in places.values()}
    _check(raw.shapes(), wanted, decoder.family, where)
    unused = list(_unused(raw.shapes(), wanted, naming))
    if unused:
        raise UnsupportedModel(f"{where} has tensors that a {decoder.family} decoder does not use: {', '.join(unused)}")
    unreadable = [f"{name} is {kind}" for name, kind in raw.unreadable().items() if name in wanted]
    if unreadable:
        raise UnsupportedModel(f"{where} holds weights of types that cannot be read: {', '.join(unreadable)}")
    if n_layers is None:
        return BoundWeights(raw, places)
    dropped = tuple(f"layers.{i}." for i in range(n_layers, len(decoder.layers)))
    return BoundWeights(raw, {name: place for name, place in places.items() if not name.startswith(dropped)})


def locate(decoder: Decoder, naming: Naming) -> dict[str, Place]:
    """The place of every canonical weight."""
    shapes = decoder.weight_shapes()
    return {name: _place(name, shapes, decoder, naming) for name in shapes}


def _place(name: str, shapes: Mapping[str, TensorShape], decoder: Decoder, naming: Naming) -> Place:
    path, kind = name.rsplit(".", 1)
    shape = shapes[name]
    whole = RowRange(0, shape[0])
    add = naming.norm_offset if path.endswith("norm") else 0.0
    if not path.startswith("layers."):
        stem = {"embed": naming.embed, "final_norm": naming.final_norm, "lm_head": naming.lm_head}[path]
        return Place(f"{stem}.{kind}", shape, whole, None, add)
    _, i, part = path.split(".")
    prefix = naming.layer_prefix.format(i=i)
    n_heads = {"q": decoder.n_heads, "k": decoder.n_kv_heads}.get(part) if naming.interleaved_heads else None
    source = naming.layer[part]
    if isinstance(source, str):
        return Place(f"{prefix}{source}.{kind}", shape, whole, n_heads, add)
    heights = [shapes[f"layers.{i}.{member}.{kind}"][0] for member in source.members]
    start = sum(heights[: source.members.index(part)])
    fused_shape = (sum(heights), *shape[1:])
    return Place(f"{prefix}{source.stem}.{kind}", fused_shape, RowRange(start, start + shape[0]), n_heads, add)


def _check(found: Mapping[str, TensorShape], wanted: Mapping[str, TensorShape], family: str, where: str) -> None:
    missing = [name for name in wanted if name not in found]
    misshapen = [
        f"{name} is {list(found[name])}, {list(shape)} is needed"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    problems = []
    if missing:
        problems.append(f"missing tensors ({len(missing)}): {', '.join(missing)}")
    if misshapen:
        problems.append(f"misshapen tensors ({len(misshapen)}): {'; '.join(misshapen)}")
    if problems:
        raise ExportError(f"{where} does not hold the {family} model that it declares; {'; '.join(problems)}")


def _unused(found: Iterable[str], wanted: Iterable[str], naming: Naming) -> Iterable[str]:
    """Tensors that nothing is bound to, except those that are known to be no part of the text decoder."""
    # A tied checkpoint may hold the embedding a second time, as the head.
    known = {*wanted, f"{naming.lm_head}.weight"}
    return (name for name in found if name not in known and not any(part in name for part in naming.ignored))


def _halves(rows: npt.NDArray[_Scalar], n_heads: int) -> npt.NDArray[_Scalar]:
    """Rows (x0, y0, x1, y1, ...) of every head in the order (x0, x1, ..., y0, y1, ...)."""
    pairs = rows.reshape(n_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
