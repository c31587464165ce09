"""The reference engine: a declared decoder in plain numpy, as slow and as clear as it can be.

Owns a second opinion on what the graph computes, written from the declaration alone; knows no ONNX and shares no code
with the graph builder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sssd.architecture import Activation, Decoder, Layer, Rope
from sssd.errors import EngineError
from sssd.spec import EngineSpec
from sssd.types import Bool, EngineOutput, Float32, Int32, Int64, VerifyBatch

# weight(name): the weight of that canonical name in float32; linear weights are [out, in]
Weight = Callable[[str], Float32]


class KeyValue(NamedTuple):
    """One layer's KV of one slot."""

    keys: Float32  # float32 [n, Hkv, D]
    values: Float32  # float32 [n, Hkv, D]


class ReferenceEngine:
    """An Engine over numpy arrays; `weight` is asked for each weight once a forward, and nothing is kept."""

    def __init__(self, decoder: Decoder, weight: Weight, *, n_slots: int = 1, max_len: int = 4096) -> None:
        self._decoder = decoder
        self._weight = weight
        self._spec = _spec(decoder, max_len)
        empty = np.zeros((0, decoder.n_kv_heads, decoder.head_dim), np.float32)
        self._cache = [[KeyValue(empty, empty) for _ in decoder.layers] for _ in range(n_slots)]  # [slot][layer]

    @property
    def spec(self) -> EngineSpec:
        """The decoder's facts; `inputs` and `outputs` are empty, since there is no graph."""
        return self._spec

    @property
    def n_slots(self) -> int:
        """Sequences whose KV is kept."""
        return len(self._cache)

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        """Scores of every row's `logit_rows`; full logits always. Raises EngineError when a row is too long."""
        decoder, rows = self._decoder, len(batch.input_ids)
        assert batch.first_slot + rows <= self.n_slots
        longest = int(batch.past_lens.max()) + batch.input_ids.shape[1]
        if longest > self._spec.max_len:
            raise EngineError(f"a row would hold {longest} tokens, but the engine holds {self._spec.max_len} a slot")
        x = self._weight("embed.weight")[batch.input_ids] * np.float32(decoder.embed_scale)  # float32 [B, T, H]
        for i, layer in enumerate(decoder.layers):
            x = self._layer(i, layer, x, batch)
        x = rms_norm(x, self._weight("final_norm.weight"), decoder.norm_eps)
        scored = np.take_along_axis(x, batch.logit_rows[:, :, None], axis=1)  # float32 [B, R, H]
        head = self._weight("embed.weight" if decoder.tied else "lm_head.weight")
        logits = apply(head, scored) * np.float32(decoder.logit_scale)
        return EngineOutput(next_ids=logits.argmax(axis=-1), logits=logits)

    def _layer(self, i: int, layer: Layer, x: Float32, batch: VerifyBatch) -> Float32:
        decoder, scale = self._decoder, np.float32(self._decoder.residual_scale)
        x = x + scale * self._norm(i, "attn_post_norm", decoder.post_norms, self._attention(i, layer, x, batch))
        return x + scale * self._norm(i, "mlp_post_norm", decoder.post_norms, self._mlp(i, x))

    def _attention(self, i: int, layer: Layer, x: Float32, batch: VerifyBatch) -> Float32:
        decoder = self._decoder
        a = self._norm(i, "attn_norm", decoder.pre_norms, x)
        query = self._heads(i, "q", a, decoder.n_heads)
        key = self._heads(i, "k", a, decoder.n_kv_heads)
        value = self._linear(i, "v", a, bias=decoder.qkv_bias).reshape(key.shape)
        if layer.rope is not None:
            rope = decoder.ropes[layer.rope]
            query, key = rotate(query, batch.position_ids, rope), rotate(key, batch.position_ids, rope)
        out = np.stack([self._attend(i, layer, batch, b, query[b], key[b], value[b]) for b in range(len(x))])
        return self._linear(i, "o", out, bias=decoder.o_bias)

    def _heads(self, i: int, name: str, a: Float32, n_heads: int) -> Float32:
        """The projection of a [B, T, H], normalized as declared: float32 [B, T, heads, D]."""
        decoder = self._decoder
        projected = self._linear(i, name, a, bias=decoder.qkv_bias)
        projected = self._norm(i, f"{name}_norm", decoder.qk_norm == "full", projected)
        heads = projected.reshape(*a.shape[:2], n_heads, decoder.head_dim)
        return self._norm(i, f"{name}_norm", decoder.qk_norm == "head", heads)

    def _attend(
        self, i: int, layer: Layer, batch: VerifyBatch, b: int, query: Float32, key: Float32, value: Float32
    ) -> Float32:
        """Attention of one row, whose columns become the end of its slot's KV: float32 [T, heads * D]."""
        past, slot = int(batch.past_lens[b]), self._cache[batch.first_slot + b]
        assert past <= len(slot[i].keys)
        slot[i] = KeyValue(np.concatenate([slot[i].keys[:past], key]), np.concatenate([slot[i].values[:past], value]))
        seen = visible(past, batch.position_ids[b], batch.tree_mask[b], layer.window)
        group = self._decoder.n_heads // self._decoder.n_kv_heads
        keys, values = np.repeat(slot[i].keys, group, axis=1), np.repeat(slot[i].values, group, axis=1)
        scores = np.einsum("thd,shd->hts", query, keys) * np.float32(self._decoder.attn_scale)
        scores = np.where(seen, scores, np.float32(-np.inf))
        out: Float32 = np.einsum("hts,shd->thd", softmax(scores), values)
        return out.reshape(len(query), -1)

    def _mlp(self, i: int, x: Float32) -> Float32:
        decoder = self._decoder
        m = self._norm(i, "mlp_norm", decoder.pre_norms, x)
        gate, up = (self._linear(i, name, m, bias=decoder.mlp_bias) for name in ("gate", "up"))
        return self._linear(i, "down", activate(gate, decoder.activation) * up, bias=decoder.mlp_bias)

    def _linear(self, i: int, name: str, x: Float32, *, bias: bool) -> Float32:
        product = apply(self._weight(f"layers.{i}.{name}.weight"), x)
        return product + self._weight(f"layers.{i}.{name}.bias") if bias else product

    def _norm(self, i: int, name: str, declared: bool, x: Float32) -> Float32:
        return rms_norm(x, self._weight(f"layers.{i}.{name}.weight"), self._decoder.norm_eps) if declared else x

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        """Keep the named columns of the last forward, and nothing after them."""
        for b, keep in enumerate(keeps):
            past, slot = int(batch.past_lens[b]), self._cache[batch.first_slot + b]
            columns = np.concatenate([np.arange(past), past + np.asarray(keep, np.int64)])
            for i, kv in enumerate(slot):
                slot[i] = KeyValue(kv.keys[columns], kv.values[columns])

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Copy the KV of the first n tokens of slot `src` to slot `dst`."""
        assert all(n <= len(kv.keys) for kv in self._cache[src])
        self._cache[dst] = [KeyValue(kv.keys[:n].copy(), kv.values[:n].copy()) for kv in self._cache[src]]

    def close(self) -> None:
        """Drop the cache."""
        self._cache = []


def _spec(decoder: Decoder, max_len: int) -> EngineSpec:
    return EngineSpec(
        name=f"reference {decoder.family}",
        vocab_size=decoder.vocab_size,
        n_layers=len(decoder.layers),
        n_kv_heads=decoder.n_kv_heads,
        head_dim=decoder.head_dim,
        max_len=max_len,
        kv_dtype="float32",
        weights="fp32",
        scores="logits",
        n_scores=decoder.vocab_size,
        eos_ids=(),
        bos_id=None,
        min_width=1,
        branch_noise=0.0,
        inputs=(),
        outputs=(),
    )


def apply(weight: Float32, x: Float32) -> Float32:
    """x [.., in] times the weight [out, in], transposed: one product of two matrices, since numpy makes one a row."""
    product: Float32 = x.reshape(-1, x.shape[-1]) @ weight.T
    return product.reshape(*x.shape[:-1], len(weight))


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Root-mean-square norm over the last axis, times the weight."""
    normalized: Float32 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return normalized * weight


def rotate(x: Float32, positions: Int64, rope: Rope) -> Float32:
    """Rotary embedding of x [B, T, heads, D] at positions [B, T]: halves are rotated, dimensions beyond them pass."""
    angle = positions[:, :, None, None] * np.array(rope.inv_freq, np.float64)
    cos, sin = (np.float32(rope.scale) * f(angle).astype(np.float32) for f in (np.cos, np.sin))
    half = len(rope.inv_freq)
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated: Float32 = np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)
    return rotated


def visible(past: int, positions: Int64, tree_mask: Bool, window: int | None) -> Bool:
    """Which of the past + T keys each of T columns sees: bool [T, past + T].

    A past key's position is its index, a column's is its position id: the window is measured between positions.
    """
    seen = np.concatenate([np.ones((len(positions), past), np.bool_), tree_mask], axis=1)
    if window is not None:
        key_positions = np.concatenate([np.arange(past), positions])
        seen &= positions[:, None] - key_positions[None, :] < window
    return seen


def softmax(scores: Float32) -> Float32:
    """Softmax over the last axis."""
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Float32 = exp / exp.sum(axis=-1, keepdims=True)
    return weights


def activate(x: Float32, activation: Activation) -> Float32:
    """The gate's activation."""
    if activation == "silu":
        silu: Float32 = np.float32(0.5) * x * (1 + np.tanh(np.float32(0.5) * x))  # no overflow, unlike exp(-x)
        return silu
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    gelu: Float32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return gelu
