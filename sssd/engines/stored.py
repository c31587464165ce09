"""A bundle's weights, read back one by one as float32. Owns the reading side of weights.safetensors; knows no graph.

Written apart from the code that writes the file, so that parity compares two readings of its layout. A weight lies as
itself, or as `.int4` or `.int8` codes with `.scales`, perhaps `.zeros` (codes without are signed) and perhaps
`.offsets`, or as `.float8` with one of `.scales` an output; everything two-dimensional but the embedding is stored with
its inputs first.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sssd.errors import BundleError
from sssd.types import Float32

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I8": np.int8, "F8_E4M3": np.uint8}


class StoredWeights:
    """An open weights file; nothing is kept between calls. Raises BundleError when it is not one."""

    def __init__(self, path: Path, *, by_rows: Collection[str] = ("embed.weight",)) -> None:
        """`by_rows` are the matrices that are stored with their inputs last."""
        self._path = path
        self._by_rows = by_rows
        try:
            with path.open("rb") as f:
                length = int.from_bytes(f.read(8), "little")
                self._entries: dict[str, Any] = json.loads(f.read(length))
        except (OSError, ValueError) as e:
            raise BundleError(f"{path} is not a weights file: {e}; export the model again") from None
        self._start = 8 + length

    def load(self, name: str) -> Float32:
        """The weight of that canonical name, float32 [out, in] or [n]."""
        if f"{name}.float8" in self._entries:
            weight: Float32 = _float8_values()[self._read(f"{name}.float8")] * self._plain(f"{name}.scales")
        else:
            weight = self._plain(name) if name in self._entries else self._from_blocks(name)
        return weight if weight.ndim == 1 or name in self._by_rows else weight.T

    def _from_blocks(self, name: str) -> Float32:
        bits = 4 if f"{name}.int4" in self._entries else 8
        codes, scales = self._codes(f"{name}.int{bits}", bits), self._plain(f"{name}.scales")
        axis = 1 if name in self._by_rows else 0  # along which inputs run
        block = codes.shape[axis] // scales.shape[axis]
        if f"{name}.zeros" in self._entries:
            codes -= np.repeat(self._codes(f"{name}.zeros", bits), block, axis)
        elif bits == 4:  # two's complement in four bits
            codes -= np.where(codes > 7, np.float32(16), np.float32(0))
        weight: Float32 = codes * np.repeat(scales, block, axis)
        if f"{name}.offsets" in self._entries:
            weight += np.repeat(self._plain(f"{name}.offsets"), block, axis)
        return weight

    def _codes(self, name: str, bits: int) -> Float32:
        stored = self._read(name)
        if bits == 4:
            stored = np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), -1)
        return stored.astype(np.float32)

    def _plain(self, name: str) -> Float32:
        stored = self._read(name)
        if self._entries[name]["dtype"] == "BF16":  # the upper half of a float32
            widened: Float32 = np.left_shift(stored, 16, dtype=np.uint32).view(np.float32)
            return widened
        return stored.astype(np.float32, copy=False)

    def _read(self, name: str) -> npt.NDArray[Any]:
        if name not in self._entries:
            raise BundleError(f"{self._path} has no tensor {name}: export the model again")
        entry = self._entries[name]
        start, end = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        with self._path.open("rb") as f:
            f.seek(self._start + start)
            return np.fromfile(f, dtype, (end - start) // dtype.itemsize).reshape(entry["shape"])


def _float8_values() -> Float32:
    """What each byte of the E4M3 format without infinities stands for: float32 [256]."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    values = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    values[byte & 127 == 127] = np.nan
    return np.where(byte > 127, -values, values).astype(np.float32)
