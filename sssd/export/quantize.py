"""Weight-only quantization in blocks along the input dimension. Owns the arithmetic; knows no file and no graph.

Four bits are too few to spend on a block's extremes: the range is narrowed step by step, the scale is refitted by least
squares each time, and the least squared error wins. Only integer zero points are made: with float ones the runtimes
fall back to dequantizing the whole matrix at every call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.export.source import Blocks
from sssd.types import Float32, Uint8

_CHUNK = 2048  # blocks worked on at a time, so that they stay in the processor's cache
_LARGEST_FLOAT8 = 448
_NARROWED = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # parts of a block's range that 4 bits are tried on


def dequantize(blocks: Blocks) -> Float32:
    """The weight that the blocks stand for: float32 [out, in]."""
    out, inputs = blocks.codes.shape
    codes = blocks.codes.reshape(out, -1, blocks.block).astype(np.float32)
    weight = (codes - blocks.zeros[:, :, None]) * blocks.scales[:, :, None]
    if blocks.offsets is not None:
        weight += blocks.offsets[:, :, None]
    return weight.reshape(out, inputs)


def quantize(weight: Float32, bits: int, block: int, *, symmetric: bool = False) -> Blocks:
    """Blocks close to a weight, float32 [out, in]; `block` divides `in`. Deterministic; zero stays zero.

    `symmetric` keeps every zero point in the middle of the codes, for runtimes that know no other.
    """
    out, inputs = weight.shape
    grouped = weight.reshape(-1, block)
    codes = np.empty(grouped.shape, np.uint8)
    scales, zeros = np.empty(len(grouped), np.float32), np.empty(len(grouped), np.uint8)
    for start in range(0, len(grouped), _CHUNK):
        part = slice(start, start + _CHUNK)
        narrowed = _NARROWED if bits == 4 else (1.0,)
        codes[part], scales[part], zeros[part] = _fit(grouped[part], 2**bits - 1, narrowed, symmetric=symmetric)
    per_row = (out, inputs // block)
    return Blocks(bits, block, codes.reshape(out, inputs), scales.reshape(per_row), zeros.reshape(per_row), None)


class Float8(NamedTuple):
    """A weight w[o, i] = scales[o] * values[o, i]."""

    values: npt.NDArray[Any]  # ml_dtypes.float8_e4m3fn [out, in]
    scales: Float32  # float32 [out]


def quantize_float8(weight: Float32) -> Float8:
    """A weight, float32 [out, in], in eight-bit floats with one scale an output: the largest becomes the largest."""
    import ml_dtypes

    largest: Float32 = np.abs(weight).max(axis=1)
    scales: Float32 = np.where(largest > 0, largest / np.float32(_LARGEST_FLOAT8), np.float32(1)).astype(np.float32)
    return Float8((weight / scales[:, None]).astype(ml_dtypes.float8_e4m3fn), scales)


class _Fit(NamedTuple):
    codes: Uint8  # uint8 [n, block]
    scales: Float32  # float32 [n]
    zeros: Uint8  # uint8 [n]


def _fit(blocks: Float32, top: int, narrowed: tuple[float, ...], *, symmetric: bool) -> _Fit:
    """The best of the candidates for blocks [n, block]: every narrowed range, the zero point rounded either way."""
    low: Float32 = np.minimum(blocks.min(axis=1), 0)
    high: Float32 = np.maximum(blocks.max(axis=1), 0)
    spread: Float32 = np.where(high > low, high - low, np.float32(1))
    ideal: Float32 = -low / spread * np.float32(top)
    if symmetric:
        middle = np.float32(top // 2 + 1)
        reach: Float32 = np.maximum(-low / middle, high / (top - middle))
        spread = np.where(reach > 0, reach, np.float32(1)) * np.float32(top)
        ideal = np.full(len(blocks), middle)
    best = np.full(len(blocks), -1, np.float32)
    scales: Float32 = spread / np.float32(top)
    zeros: Float32 = np.rint(ideal, dtype=np.float32)
    for zero in (np.floor(ideal), np.ceil(ideal)):
        for part in narrowed:
            scale, gain = _refit(blocks, spread * np.float32(part / top), zero, top)
            better = gain > best
            best[better], scales[better], zeros[better] = gain[better], scale[better], zero[better]
    steps = _steps(blocks, scales, zeros, top)
    return _Fit((steps + zeros[:, None]).astype(np.uint8), scales, zeros.astype(np.uint8))


class _Refit(NamedTuple):
    scale: Float32  # float32 [n]; least squares for the codes that the given scale leads to
    gain: Float32  # float32 [n]; by how much it lowers the squared error from that of all zeros


def _refit(blocks: Float32, scale: Float32, zero: Float32, top: int) -> _Refit:
    steps = _steps(blocks, scale, zero, top)
    along, length = np.einsum("nb,nb->n", blocks, steps), np.einsum("nb,nb->n", steps, steps)
    safe = np.where(length > 0, length, np.float32(1))
    return _Refit(np.where(along > 0, along / safe, scale), along * along / safe)


def _steps(blocks: Float32, scale: Float32, zero: Float32, top: int) -> Float32:
    """Codes less the zero point: float32 [n, block]."""
    steps = blocks / scale[:, None]
    np.rint(steps, out=steps)
    return np.clip(steps, -zero[:, None], top - zero[:, None], out=steps)
