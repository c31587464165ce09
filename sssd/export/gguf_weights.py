"""Tensor data of a GGUF file: dequantized, or as the blocks in which it is stored.

Owns the block schemes Q8_0, Q4_0 and Q4_1 (kept exactly) and the way to all others (dequantized by the gguf package);
knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sssd.export.gguf_reader import GgufFile, TensorInfo, block_sizes
from sssd.export.naming import RowRange
from sssd.export.source import Blocks
from sssd.types import Float32, TensorShape, Uint8

_BLOCK = 32  # values a block covers, in the three schemes
_F32, _F16 = 0, 1  # GGML types
_Q4_0, _Q4_1, _Q8_0 = 2, 3, 8


class GgufTensors:
    """RawTensors of a GGUF file. Holds the header; the file is opened for each read."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def shapes(self) -> dict[str, TensorShape]:
        """Every tensor and its shape."""
        return {name: info.shape for name, info in self._file.tensors.items()}

    def unreadable(self) -> dict[str, str]:
        """Tensors of types that the gguf package cannot dequantize."""
        from gguf import GGMLQuantizationType, quants

        sizes = block_sizes()
        names: dict[int, str] = {}
        for type_id in {info.type_id for info in self._file.tensors.values()}:
            try:
                quants.dequantize(np.zeros(sizes[type_id].n_bytes, np.uint8), GGMLQuantizationType(type_id))
            except NotImplementedError:
                names[type_id] = GGMLQuantizationType(type_id).name
        return {name: names[info.type_id] for name, info in self._file.tensors.items() if info.type_id in names}

    def load(self, name: str, rows: RowRange) -> npt.NDArray[Any]:
        """These rows: float32 and float16 as stored, everything else in float32."""
        from gguf import GGMLQuantizationType, quants

        info = self._file.tensors[name]
        data = self._read(info, rows)
        shape = (rows.stop - rows.start, *info.shape[1:])
        if info.type_id in (_F32, _F16):
            return data.view("<f4" if info.type_id == _F32 else "<f2").reshape(shape)
        values: Float32 = quants.dequantize(data, GGMLQuantizationType(info.type_id))
        return values.reshape(shape)

    def blocks(self, name: str, rows: RowRange) -> Blocks | None:
        """These rows of a matrix in Q8_0, Q4_0 or Q4_1, without loss; None for other types."""
        info = self._file.tensors[name]
        unpack = _UNPACK.get(info.type_id)
        if unpack is None or len(info.shape) != 2:
            return None
        return unpack(self._read(info, rows).reshape(rows.stop - rows.start, info.shape[1] // _BLOCK, -1))

    def _read(self, info: TensorInfo, rows: RowRange) -> Uint8:
        """uint8 [rows, bytes of a row]."""
        n_rows = rows.stop - rows.start
        offset = info.start + rows.start * info.row_bytes
        data: Uint8 = np.fromfile(self._file.path, dtype=np.uint8, count=n_rows * info.row_bytes, offset=offset)
        return data.reshape(n_rows, info.row_bytes)


def _float16(raw: Uint8) -> Float32:
    """float16 numbers in the last axis's bytes, one a block. float32 [out, blocks]."""
    return np.ascontiguousarray(raw).view("<f2")[..., 0].astype(np.float32)


def _nibbles(raw: Uint8) -> Uint8:
    """A block's low nibbles are its first half, its high nibbles the second. uint8 [out, in]."""
    return np.concatenate((raw & np.uint8(15), raw >> np.uint8(4)), axis=-1).reshape(len(raw), -1)


def _q4_0(raw: Uint8) -> Blocks:
    scales = _float16(raw[..., :2])
    zeros = np.full(scales.shape, 8, np.uint8)
    return Blocks(bits=4, block=_BLOCK, codes=_nibbles(raw[..., 2:]), scales=scales, zeros=zeros, offsets=None)


def _q4_1(raw: Uint8) -> Blocks:
    scales, offsets = _float16(raw[..., :2]), _float16(raw[..., 2:4])
    zeros = np.zeros(scales.shape, np.uint8)
    return Blocks(bits=4, block=_BLOCK, codes=_nibbles(raw[..., 4:]), scales=scales, zeros=zeros, offsets=offsets)


def _q8_0(raw: Uint8) -> Blocks:
    scales = _float16(raw[..., :2])
    # Flipping the sign bit adds 128 to a signed byte and makes it unsigned.
    codes = (raw[..., 2:] ^ np.uint8(128)).reshape(len(raw), -1)
    zeros = np.full(scales.shape, 128, np.uint8)
    return Blocks(bits=8, block=_BLOCK, codes=codes, scales=scales, zeros=zeros, offsets=None)


_UNPACK: dict[int, Callable[[Uint8], Blocks]] = {_Q4_0: _q4_0, _Q4_1: _q4_1, _Q8_0: _q8_0}
