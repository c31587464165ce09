from __future__ import annotations

import numpy as np
import pytest

from sssd.export.quantize import dequantize, quantize
from sssd.export.source import Blocks
from sssd.types import Float32


def plainly_dequantized(blocks: Blocks) -> Float32:
    out, inputs = blocks.codes.shape
    weight = np.zeros((out, inputs), np.float32)
    for o in range(out):
        for i in range(inputs):
            b = i // blocks.block
            weight[o, i] = (float(blocks.codes[o, i]) - float(blocks.zeros[o, b])) * blocks.scales[o, b]
            if blocks.offsets is not None:
                weight[o, i] += blocks.offsets[o, b]
    return weight


def min_max_error(block: Float32, top: int) -> float:
    """Squared error of rounding to nearest between the extremes, zero included."""
    low, high = min(block.min(), 0.0), max(block.max(), 0.0)
    scale = (high - low) / top
    zero = round(-low / scale)
    return float(sum((scale * (min(max(round(v / scale) + zero, 0), top) - zero) - v) ** 2 for v in block.tolist()))


def best_error(block: Float32, top: int) -> float:
    """Least squared error over narrowed ranges and both zero points, each with its least-squares scale: one by one."""
    low, high = min(float(block.min()), 0.0), max(float(block.max()), 0.0)
    values, found = block.astype(np.float64), []
    for zero in (np.floor(-low / (high - low) * top), np.ceil(-low / (high - low) * top)):
        for part in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7):
            steps = np.clip(np.rint(values / ((high - low) * part / top)), -zero, top - zero)
            scale = (values @ steps) / max(steps @ steps, 1.0)
            found.append(float(((scale * steps - values) ** 2).sum()))
    return min(found)


def heavy_tailed(shape: tuple[int, int], seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_t(4, shape).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
def test_dequantizing_equals_the_formula_entry_by_entry(bits: int, offsets: bool) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (3, 64)).astype(np.uint8)
    zeros = rng.integers(0, 2**bits, (3, 2)).astype(np.uint8)
    scales, moved = rng.standard_normal((2, 3, 2)).astype(np.float32)
    blocks = Blocks(bits, 32, codes, scales, zeros, moved if offsets else None)
    np.testing.assert_allclose(dequantize(blocks), plainly_dequantized(blocks), rtol=1e-5, atol=1e-5)


def test_eight_bits_are_off_by_half_a_step_at_most() -> None:
    weight = heavy_tailed((16, 128))
    blocks = quantize(weight, 8, 32)
    error = np.abs(dequantize(blocks) - weight).reshape(16, 4, 32)
    assert (error <= np.abs(blocks.scales)[:, :, None] * 1.01).all()  # one step: the end of a range may be cut


@pytest.mark.parametrize("seed", range(5))
def test_four_bits_find_what_trying_every_candidate_finds(seed: int) -> None:
    weight = heavy_tailed((8, 64), seed)
    error = ((dequantize(quantize(weight, 4, 32)) - weight) ** 2).reshape(-1, 32).sum(axis=1)
    for found, block in zip(error, weight.reshape(-1, 32), strict=True):
        assert found <= best_error(block, 15) * 1.0001


def test_four_bits_are_better_than_rounding_between_the_extremes() -> None:
    weight = heavy_tailed((64, 256))
    error = float(((dequantize(quantize(weight, 4, 32)) - weight) ** 2).sum())
    plain = sum(min_max_error(block, 15) for block in weight.reshape(-1, 32))
    assert error < 0.95 * plain


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_stay_zero(bits: int) -> None:
    weight = heavy_tailed((4, 64))
    weight[1] = 0
    weight[2, :32] = 0
    weight[3, ::3] = 0
    assert (dequantize(quantize(weight, bits, 32))[weight == 0] == 0).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_block_of_one_sign_is_quantized(bits: int, sign: int) -> None:
    weight = sign * (1 + np.random.default_rng(0).random((2, 32), np.float32))
    assert np.abs(dequantize(quantize(weight, bits, 32)) - weight).max() <= 2 / (2**bits - 1)


def test_codes_fit_their_bits_and_shapes_are_by_block() -> None:
    blocks = quantize(heavy_tailed((6, 96)), 4, 16)
    assert blocks.codes.max() == 15
    assert blocks.zeros.max() <= 15
    assert (blocks.codes.shape, blocks.scales.shape, blocks.zeros.shape) == ((6, 96), (6, 6), (6, 6))


def test_more_blocks_than_one_chunk_are_quantized_alike() -> None:
    weight = heavy_tailed((70, 1024))
    whole, last = quantize(weight, 4, 32), quantize(weight[-1:], 4, 32)
    np.testing.assert_array_equal(whole.codes[-1:], last.codes)
    np.testing.assert_array_equal(whole.scales[-1:], last.scales)
