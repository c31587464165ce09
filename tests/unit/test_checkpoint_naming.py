"""Binding canonical weights to a checkpoint's tensors: fused rows, interleaved heads, offsets of norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sssd.export.families import FAMILIES
from sssd.export.gguf_families import ARCHITECTURES
from sssd.export.naming import BoundWeights, Naming, RowRange, bind, locate
from sssd.export.source import Blocks
from sssd.types import TensorShape
from tests.helpers.tiny_directory import declare


class FakeTensors:
    """RawTensors over arrays; matrices have blocks of two inputs, whose codes number the rows."""

    def __init__(self, arrays: dict[str, npt.NDArray[np.float32]]) -> None:
        self.arrays = arrays

    def shapes(self) -> Mapping[str, TensorShape]:
        return {name: array.shape for name, array in self.arrays.items()}

    def unreadable(self) -> Mapping[str, str]:
        return {}

    def load(self, name: str, rows: RowRange) -> npt.NDArray[Any]:
        return self.arrays[name][rows.start : rows.stop].copy()

    def blocks(self, name: str, rows: RowRange) -> Blocks | None:
        n_rows, n_inputs = self.arrays[name].shape
        numbers = np.arange(n_rows)[rows.start : rows.stop, None]
        codes = np.repeat(numbers, n_inputs, axis=1).astype(np.uint8)
        some = np.repeat(numbers, n_inputs // 2, axis=1)
        return Blocks(8, 2, codes, some.astype(np.float32), some.astype(np.uint8), -some.astype(np.float32))


def bound(naming: Naming, **fields: Any) -> tuple[BoundWeights, FakeTensors]:
    decoder = declare(**fields)
    rng = np.random.default_rng(0)
    arrays = {p.tensor: rng.normal(size=p.shape).astype(np.float32) for p in locate(decoder, naming).values()}
    raw = FakeTensors(arrays)
    return bind(raw, decoder, naming, where="here"), raw


@pytest.mark.parametrize("naming", [FAMILIES["phi3"].namings[0], ARCHITECTURES["phi3"].naming])
def test_members_of_fused_tensors_are_their_rows_one_below_the_other(naming: Naming) -> None:
    weights, raw = bound(naming, model_type="phi3")
    fused = {"qkv": ("q", "k", "v"), "up": ("gate", "up")}
    for part, members in fused.items():
        (tensor,) = [a for name, a in raw.arrays.items() if part in name and (".1." in name)]
        whole = np.concatenate([weights.load(f"layers.1.{member}.weight") for member in members])
        np.testing.assert_array_equal(whole, tensor)
        numbers = np.concatenate([weights.blocks(f"layers.1.{member}.weight").codes[:, 0] for member in members])
        np.testing.assert_array_equal(numbers, np.arange(len(tensor)))


def test_interleaved_rows_of_q_and_k_are_put_into_halves_with_all_parts_of_their_blocks() -> None:
    weights, raw = bound(ARCHITECTURES["llama"].naming, attention_bias=True, head_dim=6)
    for part, n_heads in (("q", 4), ("k", 2)):
        rows = []  # the plain slow twin: where each row of a head comes from
        for head in range(n_heads):
            rows += [6 * head + 2 * j for j in range(3)] + [6 * head + 2 * j + 1 for j in range(3)]
        for kind in ("weight", "bias"):
            stored = raw.arrays[f"blk.0.attn_{part}.{kind}"]
            np.testing.assert_array_equal(weights.load(f"layers.0.{part}.{kind}"), stored[rows])
        blocks = weights.blocks(f"layers.0.{part}.weight")
        assert blocks is not None
        assert blocks.offsets is not None
        for column in (blocks.codes, blocks.scales, blocks.zeros, -blocks.offsets):
            np.testing.assert_array_equal(column[:, 0], rows)
    np.testing.assert_array_equal(weights.load("layers.0.v.weight"), raw.arrays["blk.0.attn_v.weight"])


def test_only_norms_get_the_offset_of_gemma3() -> None:
    weights, raw = bound(FAMILIES["gemma3_text"].namings[0], model_type="gemma3_text", head_dim=8)
    prefix = "model.layers.2."
    for name, tensor in {
        "layers.2.attn_norm.weight": f"{prefix}input_layernorm.weight",
        "layers.2.attn_post_norm.weight": f"{prefix}post_attention_layernorm.weight",
        "layers.2.mlp_norm.weight": f"{prefix}pre_feedforward_layernorm.weight",
        "layers.2.q_norm.weight": f"{prefix}self_attn.q_norm.weight",
        "final_norm.weight": "model.norm.weight",
    }.items():
        np.testing.assert_array_equal(weights.load(name), raw.arrays[tensor] + np.float32(1))
    np.testing.assert_array_equal(weights.load("layers.2.o.weight"), raw.arrays[f"{prefix}self_attn.o_proj.weight"])
