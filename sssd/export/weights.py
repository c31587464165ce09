"""The weights file: safetensors, written as a stream. Owns its layout and alignment; knows no model and no ONNX graph.

Tensors are laid out by item size, the largest first, so that each is aligned by nature and nothing lies between them;
the file is therefore both a valid safetensors file and the external data of the graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["float32", "float16", "bfloat16", "uint8", "uint4", "int8", "int4", "float8"]


@dataclass(frozen=True, slots=True)
class _KindFacts:
    safetensors: str
    onnx: str
    item_bits: int


# four bits are two values a byte, the first in the low half, in a safetensors tensor of bytes
_FACTS: Mapping[Kind, _KindFacts] = {
    "float32": _KindFacts("F32", "FLOAT", 32),
    "float16": _KindFacts("F16", "FLOAT16", 16),
    "bfloat16": _KindFacts("BF16", "BFLOAT16", 16),
    "uint8": _KindFacts("U8", "UINT8", 8),
    "uint4": _KindFacts("U8", "UINT4", 4),
    "int8": _KindFacts("I8", "INT8", 8),
    "int4": _KindFacts("U8", "INT4", 4),
    "float8": _KindFacts("F8_E4M3", "FLOAT8E4M3FN", 8),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is to be stored."""

    name: str
    kind: Kind
    dims: tuple[int, ...]  # as the graph sees them; the last is even for four bits

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return int(np.prod(self.dims, dtype=np.int64)) * _FACTS[self.kind].item_bits // 8


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and where it lies in the weights file."""

    name: str
    kind: Kind
    dims: tuple[int, ...]
    offset: int  # bytes from the start of the file
    n_bytes: int

    @property
    def onnx_type(self) -> str:
        """Name of the element type in onnx.TensorProto."""
        return _FACTS[self.kind].onnx


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies; made before anything is written."""

    header: bytes  # with its length in front
    tensors: dict[str, Placed]  # in file order

    @property
    def n_bytes(self) -> int:
        """Size of the whole file."""
        return max((t.offset + t.n_bytes for t in self.tensors.values()), default=len(self.header))


def plan_layout(tensors: Iterable[Tensor]) -> Layout:
    """Order the tensors and give each its place; within an item size they keep their order."""
    ordered = sorted(tensors, key=lambda t: -max(_FACTS[t.kind].item_bits, 8))
    starts = np.cumsum([0] + [t.n_bytes for t in ordered]).tolist()
    starts = [0, *accumulate(t.n_bytes for t in ordered)]
    entries = {t.name: _entry(t, start) for t, start in zip(ordered, starts, strict=False)}
    assert len(entries) == len(ordered), "two tensors of one name"
    header = json.dumps({"__metadata__": {"format": "sssd"}} | entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    data = 8 + len(header)
    places = [
        Placed(t.name, t.kind, t.dims, data + start, t.n_bytes) for t, start in zip(ordered, starts, strict=False)
    ]
    return Layout(len(header).to_bytes(8, "little") + header, {place.name: place for place in places})


def _entry(tensor: Tensor, start: int) -> dict[str, Any]:
    """The tensor's entry in the file's header."""
    stored = _FACTS[tensor.kind].safetensors
    return {"dtype": stored, "shape": _stored_dims(tensor), "data_offsets": [start, start + tensor.n_bytes]}


def _stored_dims(tensor: Tensor) -> list[int]:
    dims = list(tensor.dims)
    if _FACTS[tensor.kind].item_bits == 4:
        assert dims[-1] % 2 == 0
        dims[-1] //= 2
    return dims


def pack_nibbles(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Two values a byte along the last axis, the first in the low half; negative ones as their two's complement."""
    nibbles = codes.astype(np.uint8, copy=False) & 15
    packed: npt.NDArray[np.uint8] = nibbles[..., 0::2] | np.left_shift(nibbles[..., 1::2], 4, dtype=np.uint8)
    return packed


def write_weights(path: Path, layout: Layout, arrays: Iterator[tuple[Tensor, npt.NDArray[Any]]]) -> None:
    """Write the file; arrays come in any order, one at a time, each exactly once, and are not kept."""
    missing = set(layout.tensors)
    with path.open("wb") as f:
        f.write(layout.header)
        for tensor, array in arrays:
            place = layout.tensors[tensor.name]
            packed = pack_nibbles(array) if _FACTS[tensor.kind].item_bits == 4 else array
            assert array.shape == place.dims, tensor.name
            assert packed.nbytes == place.n_bytes, tensor.name
            f.seek(place.offset)
            f.write(np.ascontiguousarray(packed).reshape(-1).view(np.uint8).data)
            missing.remove(tensor.name)
    assert not missing, missing
