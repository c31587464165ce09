"""The GGUF container: metadata and the directory of tensors, parsed strictly.

Owns the file format (versions 2 and 3, little-endian); knows no model, no tokenizer and no quantization scheme beyond
the bytes that a block takes.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sssd.errors import ExportError, MissingExtra, UnsupportedModel
from sssd.types import TensorShape

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


class TensorInfo(NamedTuple):
    """One tensor's entry."""

    shape: TensorShape  # outermost axis first
    type_id: int  # GGML type
    start: int  # bytes from the start of the file
    row_bytes: int  # bytes of one index of the first axis


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header; no tensor data."""

    path: Path
    metadata: Mapping[str, object]  # scalars, strings, and lists of them
    tensors: Mapping[str, TensorInfo]


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file. Raises ExportError when it is none or cut short, UnsupportedModel for other versions.

    Costs one pass over the header (a few tenths of a second for a vocabulary of 250 thousand).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ExportError(f"{path} is no GGUF file: it does not begin with GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data, path, 4), size)


class _Cursor:
    """A position in the header; every read is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path, position: int) -> None:
        self._data = data
        self.path = path
        self.position = position

    def scalar(self, code: str) -> int | float | bool:
        size = struct.calcsize(f"<{code}")
        value: int | float | bool = struct.unpack_from(f"<{code}", self._data, self._advance(size))[0]
        return value

    def count(self, code: str = "Q") -> int:
        return int(self.scalar(code))

    def string(self) -> str:
        length = self.count()
        start = self._advance(length)
        try:
            return self._data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ExportError(f"{self.path} is damaged: the text at byte {start} is not UTF-8") from error

    def value(self, type_id: int) -> object:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            return self._array()
        if type_id in _SCALARS:
            return self.scalar(_SCALARS[type_id])
        raise ExportError(f"{self.path} is damaged: metadata of type {type_id} at byte {self.position}")

    def _array(self) -> list[object]:
        type_id, n = self.count("I"), self.count()
        if type_id in _SCALARS:
            dtype = np.dtype(_SCALARS[type_id]).newbyteorder("<")
            start = self._advance(n * dtype.itemsize)
            return list(np.frombuffer(self._data[start : self.position], dtype=dtype).tolist())
        if type_id != _STRING:
            raise UnsupportedModel(
                f"{self.path}: metadata arrays of type {type_id}: only of numbers and strings are read"
            )
        return [self.string() for _ in range(n)]

    def _advance(self, n_bytes: int) -> int:
        start = self.position
        if start + n_bytes > len(self._data):
            raise ExportError(f"{self.path} is cut short: its header goes on after its {len(self._data)} bytes")
        self.position = start + n_bytes
        return start


def _parse(cursor: _Cursor, size: int) -> GgufFile:
    version = cursor.count("I")
    if version & 0xFFFF == 0:
        raise UnsupportedModel(f"{cursor.path} is a big-endian GGUF file: only little-endian ones are supported")
    if version not in _VERSIONS:
        raise UnsupportedModel(f"{cursor.path} has GGUF version {version}: only 2 and 3 are supported")
    n_tensors, n_fields = cursor.count(), cursor.count()
    metadata: dict[str, object] = {}
    for _ in range(n_fields):
        name = cursor.string()
        metadata[name] = cursor.value(cursor.count("I"))
    raw = [_raw_tensor(cursor) for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ExportError(f"{cursor.path} is damaged: general.alignment is {alignment!r}")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = _tensors(cursor.path, raw, data_start)
    needed = max((info.start + info.shape[0] * info.row_bytes for info in tensors.values()), default=0)
    if needed > size:
        raise ExportError(f"{cursor.path} is cut short: it has {size} bytes, its tensors need {needed}")
    return GgufFile(cursor.path, metadata, tensors)


class _RawTensor(NamedTuple):
    name: str
    shape: TensorShape
    type_id: int
    offset: int


def _raw_tensor(cursor: _Cursor) -> _RawTensor:
    name, n_dims = cursor.string(), cursor.count("I")
    if not 1 <= n_dims <= _MAX_DIMS:
        raise ExportError(f"{cursor.path} is damaged: tensor {name!r} has {n_dims} dimensions")
    dims = tuple(cursor.count() for _ in range(n_dims))
    return _RawTensor(name, dims[::-1], cursor.count("I"), cursor.count())


def _tensors(path: Path, raw: list[_RawTensor], data_start: int) -> dict[str, TensorInfo]:
    sizes = block_sizes()
    unknown = [f"{t.name} is of type {t.type_id}" for t in raw if t.type_id not in sizes]
    if unknown:
        raise UnsupportedModel(f"{path}: {', '.join(unknown)}: types unknown to the installed gguf package, upgrade it")
    tensors: dict[str, TensorInfo] = {}
    for tensor in raw:
        block = sizes[tensor.type_id]
        if tensor.shape[-1] % block.n_values or tensor.name in tensors:
            raise ExportError(f"{path} is damaged: tensor {tensor.name!r} stands twice or has rows of broken blocks")
        if len(tensor.shape) == 1 and block.n_values > 1:
            raise UnsupportedModel(f"{path}: the vector {tensor.name} is quantized: only matrices may be")
        row_bytes = math.prod(tensor.shape[1:]) // block.n_values * block.n_bytes
        tensors[tensor.name] = TensorInfo(tensor.shape, tensor.type_id, data_start + tensor.offset, row_bytes)
    return tensors


class BlockSize(NamedTuple):
    """What a quantization block covers and takes."""

    n_values: int
    n_bytes: int


def block_sizes() -> dict[int, BlockSize]:
    """The block of every GGML type that the gguf package knows. Raises MissingExtra without the package."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise MissingExtra("gguf", "export") from error
    return {int(kind): BlockSize(int(n), int(size)) for kind, (n, size) in GGML_QUANT_SIZES.items()}
