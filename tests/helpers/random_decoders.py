"""Small random decoders, one for every feature of architecture.py, and checkpoints of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sssd.architecture import Decoder, Layer, Rope
from sssd.export.pipeline import write_bundle
from sssd.export.quantize import dequantize
from sssd.export.source import Blocks, Checkpoint
from sssd.spec import Bundle, ScoreKind, WeightType

VOCAB = 96


def inv_freq(n: int) -> tuple[float, ...]:
    return tuple((100.0 ** (-np.arange(n) / n)).tolist())


LLAMA = Decoder(
    family="random",
    vocab_size=VOCAB,
    hidden=32,
    intermediate=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    layers=(Layer(0, None), Layer(0, None)),
    ropes=(Rope(inv_freq(8)),),
    norm_eps=1e-5,
    attn_scale=0.25,
)
FEATURES = {
    "plain": LLAMA,
    "tied": replace(LLAMA, tied=True),
    "one window": replace(LLAMA, layers=(Layer(0, 4), Layer(0, 4))),
    "windows and ropes by layer": replace(
        LLAMA, layers=(Layer(0, 3), Layer(1, None), Layer(0, 5)), ropes=(Rope(inv_freq(8)), Rope(inv_freq(8)[::-1]))
    ),
    "a layer without rope": replace(LLAMA, layers=(Layer(None, None), Layer(0, None))),
    "part of a head rotated, scaled": replace(LLAMA, ropes=(Rope(inv_freq(6), scale=1.2),)),
    "norm by head": replace(LLAMA, qk_norm="head"),
    "norm of the projection": replace(LLAMA, qk_norm="full"),
    "norms behind only": replace(LLAMA, pre_norms=False, post_norms=True),
    "four norms, gelu": replace(LLAMA, post_norms=True, activation="gelu_tanh"),
    "all biases": replace(LLAMA, qkv_bias=True, o_bias=True, mlp_bias=True),
    "multipliers": replace(LLAMA, embed_scale=3.0, residual_scale=0.4, logit_scale=0.5, attn_scale=0.1),
    "one KV head": replace(LLAMA, n_kv_heads=1),
    "a KV head a head": replace(LLAMA, n_kv_heads=4),
}


@dataclass
class RandomWeights:
    """A WeightSource; `own` are weights that it holds in blocks."""

    decoder: Decoder
    seed: int = 0
    own: dict[str, Blocks] = field(default_factory=dict)

    def load(self, name: str) -> npt.NDArray[Any]:
        if name in self.own:
            return dequantize(self.own[name])
        shape = self.decoder.weight_shapes()[name]
        rng = np.random.default_rng([self.seed, *name.encode()])
        values = rng.standard_normal(shape).astype(np.float32)
        return values / np.float32(np.sqrt(shape[1])) if len(shape) == 2 else 1 + values / 4

    def blocks(self, name: str) -> Blocks | None:
        return self.own.get(name)


def random_blocks(shape: tuple[int, int], bits: int, *, offsets: bool, seed: int = 0) -> Blocks:
    """Blocks of a weight [out, in] of the usual size."""
    rng, block = np.random.default_rng(seed), 32
    coarse = (shape[0], shape[1] // block)
    scales = (rng.uniform(0.5, 1.5, coarse) * 4 / 2**bits / np.sqrt(shape[1])).astype(np.float32)
    codes = rng.integers(0, 2**bits, shape).astype(np.uint8)
    zeros = np.zeros(coarse, np.uint8) if offsets else rng.integers(2**bits // 4, 2**bits // 2, coarse).astype(np.uint8)
    moved = -scales * np.float32(2**bits / 2) * rng.uniform(0.9, 1.1, coarse).astype(np.float32)
    return Blocks(bits, block, codes, scales, zeros, moved if offsets else None)


def with_own_blocks(decoder: Decoder, bits: int, *, offsets: bool) -> RandomWeights:
    """A source that holds every matrix in blocks."""
    matrices = {n: s for n, s in decoder.weight_shapes().items() if len(s) == 2}
    own = {n: random_blocks((s[0], s[1]), bits, offsets=offsets, seed=i) for i, (n, s) in enumerate(matrices.items())}
    return RandomWeights(decoder, own=own)


def checkpoint(decoder: Decoder, weights: RandomWeights | None = None, *, max_len: int = 64) -> Checkpoint:
    return Checkpoint(
        name="random",
        decoder=decoder,
        weights=weights or RandomWeights(decoder),
        max_len=max_len,
        eos_ids=(1,),
        bos_id=None,
        tokenizer_json="{}",
        chat_template=None,
    )


def bundle(
    out: Path,
    decoder: Decoder,
    weights: RandomWeights | None = None,
    *,
    stored: WeightType = "fp32",
    scores: ScoreKind = "logits",
) -> Bundle:
    """An exported bundle; parity has passed."""
    return write_bundle(checkpoint(decoder, weights), out, weights=stored, scores=scores, force=False)
