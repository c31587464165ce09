"""The declared decoder: all that is needed to compute a supported model, and nothing about where it came from.

Owns the vocabulary shared by families (which fill it in), the graph builder and the reference engine (which each
compute it, independently). Knows no checkpoint format, no ONNX and no weights: only the weights' names and shapes.

One layer, in the order it runs (parts in brackets are there when declared):

    x -> [attn_norm] -> q, k, v (+ bias) -> [q_norm, k_norm] -> [rope] -> attention -> o (+ bias)
      -> [attn_post_norm] -> x + residual_scale * (.)
      -> [mlp_norm] -> act(gate) * up -> down (+ biases) -> [mlp_post_norm] -> x + residual_scale * (.)

Canonical weight names: `embed.weight` [V, H], `final_norm.weight` [H], `lm_head.weight` [V, H] (absent when tied) and,
for every layer i, `layers.i.` + `attn_norm.weight` [H], `q.weight` [heads * D, H], `q.bias`, `k.weight`, `v.weight`,
`o.weight` [H, heads * D], `q_norm.weight`, `k_norm.weight` ([D] per head, or the whole projection),
`attn_post_norm.weight`, `mlp_norm.weight`, `gate.weight` [I, H], `up.weight`, `down.weight` [H, I],
`mlp_post_norm.weight` and biases. Linear weights are [out, in]; norm weights are what the normalized value is
multiplied by (an offset of one is already added).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sssd.types import TensorShape

Activation = Literal["silu", "gelu_tanh"]
QkNorm = Literal["head", "full"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first 2 * len(inv_freq) dimensions of a head; halves are rotated, not pairs."""

    inv_freq: tuple[float, ...]  # radians per position, scaling already applied
    scale: float = 1.0  # multiplies cos and sin (long rope's attention factor)


@dataclass(frozen=True, slots=True)
class Layer:
    """What differs from layer to layer."""

    rope: int | None  # index into Decoder.ropes; None = no position encoding
    window: int | None  # keys further back than window - 1 positions are not seen; None = all


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder-only transformer of the supported kind."""

    family: str
    vocab_size: int
    hidden: int
    intermediate: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    layers: tuple[Layer, ...]
    ropes: tuple[Rope, ...]
    norm_eps: float
    activation: Activation = "silu"
    pre_norms: bool = True  # attn_norm and mlp_norm exist
    post_norms: bool = False  # attn_post_norm and mlp_post_norm exist
    qk_norm: QkNorm | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    attn_scale: float = 1.0  # multiplies q . k
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0  # multiplies the logits
    tied: bool = False  # the LM head is the embedding

    def weight_shapes(self) -> dict[str, TensorShape]:
        """Every canonical weight's name and shape, in the order the graph uses them."""
        shapes: dict[str, TensorShape] = {"embed.weight": (self.vocab_size, self.hidden)}
        for i in range(len(self.layers)):
            shapes.update({f"layers.{i}.{name}": shape for name, shape in self._layer_shapes().items()})
        shapes["final_norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden)
        return shapes

    def _layer_shapes(self) -> dict[str, TensorShape]:
        h, q, kv, ff = self.hidden, self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim, self.intermediate
        linears = {
            "q": (q, h, self.qkv_bias),
            "k": (kv, h, self.qkv_bias),
            "v": (kv, h, self.qkv_bias),
            "o": (h, q, self.o_bias),
            "gate": (ff, h, self.mlp_bias),
            "up": (ff, h, self.mlp_bias),
            "down": (h, ff, self.mlp_bias),
        }
        shapes: dict[str, TensorShape] = {}
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
        if self.pre_norms:
            shapes |= {"attn_norm.weight": (h,), "mlp_norm.weight": (h,)}
        if self.post_norms:
            shapes |= {"attn_post_norm.weight": (h,), "mlp_post_norm.weight": (h,)}
        if self.qk_norm is not None:
            per_head = self.qk_norm == "head"
            shapes["q_norm.weight"] = (self.head_dim if per_head else q,)
            shapes["k_norm.weight"] = (self.head_dim if per_head else kv,)
        return shapes
