"""The portable graph of a declared decoder: opset 24, standard operators, KV written in place, a tree mask.

Owns the order of the nodes and the graph's inputs and outputs; knows no checkpoint, no family and no runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sssd.architecture import Decoder, Layer, Rope
from sssd.export.linear import Weights
from sssd.export.mask import Masks
from sssd.export.nodes import Attr, Nodes
from sssd.export.storage import EMBEDDING, HEAD, Weight
from sssd.export.weights import Placed, Tensor
from sssd.spec import WEIGHTS, ScoreKind, TensorSpec
from sssd.types import Float32

# positions past max_len that the rotary tables cover: draft columns may stand there though they are never kept
SPARE_POSITIONS = 256


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What is not the model's to say."""

    max_len: int  # tokens of a slot
    scores: ScoreKind = "logits"
    n_scores: int = 64  # K of "topk"


class CacheShape(NamedTuple):
    """The KV cache of a model whose layers are alike."""

    n_layers: int
    n_heads: int  # of keys and of values
    head_dim: int


def cache_shape(decoder: Decoder) -> CacheShape:
    """A declared decoder's KV cache."""
    return CacheShape(len(decoder.layers), decoder.n_kv_heads, decoder.head_dim)


def input_specs(cache: CacheShape) -> tuple[TensorSpec, ...]:
    """The graph's inputs."""
    return (
        TensorSpec("input_ids", "int64", ("B", "T")),
        TensorSpec("position_ids", "int64", ("B", "T")),
        TensorSpec("past_lens", "int64", ("B",)),
        TensorSpec("tree_mask", "bool", ("B", "T", "T")),
        TensorSpec("logit_rows", "int64", ("B", "R")),
        *_cache_specs("past", cache),
    )


def output_specs(cache: CacheShape, vocab_size: int, options: GraphOptions) -> tuple[TensorSpec, ...]:
    """The graph's outputs."""
    k = options.n_scores
    scores = {
        "logits": (TensorSpec("logits", "float32", ("B", "R", vocab_size)),),
        "topk": (
            TensorSpec("top_ids", "int64", ("B", "R", k)),
            TensorSpec("top_scores", "float32", ("B", "R", k)),
            TensorSpec("lse", "float32", ("B", "R")),
        ),
    }
    return (TensorSpec("next_ids", "int64", ("B", "R")), *scores[options.scores], *_cache_specs("present", cache))


def _cache_specs(when: str, cache: CacheShape) -> list[TensorSpec]:
    dims = ("B", cache.n_heads, "S", cache.head_dim)
    names = [f"{when}_{part}_{i}" for i in range(cache.n_layers) for part in ("k", "v")]
    return [TensorSpec(name, "float32", dims) for name in names]


def table_tensors(decoder: Decoder, options: GraphOptions) -> list[Tensor]:
    """The rotary tables, which the weights file holds beside the weights."""
    dims = [(options.max_len + SPARE_POSITIONS, len(rope.inv_freq)) for rope in decoder.ropes]
    return [Tensor(f"rope.{i}.{part}", "float32", d) for i, d in enumerate(dims) for part in ("cos", "sin")]


def rope_tables(rope: Rope, n_positions: int) -> tuple[Float32, Float32]:
    """Cosines and sines, float32 [positions, len(inv_freq)] each."""
    angle = np.outer(np.arange(n_positions), np.array(rope.inv_freq, np.float64))
    return (rope.scale * np.cos(angle)).astype(np.float32), (rope.scale * np.sin(angle)).astype(np.float32)


def build_graph(
    decoder: Decoder, weights: Mapping[str, Weight], placed: Mapping[str, Placed], options: GraphOptions
) -> Any:
    """The onnx.ModelProto, whose initializers point into the weights file."""
    nodes = Nodes(WEIGHTS)
    graph = _Graph(decoder, options, nodes, Weights(nodes, weights, placed), Masks(nodes, "past_k_0"), placed)
    graph.build()
    cache = cache_shape(decoder)
    return nodes.model(decoder.family, input_specs(cache), output_specs(cache, decoder.vocab_size, options))


def add_choices(nodes: Nodes, options: GraphOptions) -> None:
    """What an engine wants to know of `logits` beside themselves."""
    argmax = (Attr("axis", -1), Attr("keepdims", 0))
    nodes.op_many("ArgMax", ["logits"], "head/next_ids", ["next_ids"], *argmax)
    if options.scores == "topk":
        k = nodes.int64s(options.n_scores)
        nodes.op_many("TopK", ["logits", k], "head/top", ["top_scores", "top_ids"], Attr("axis", -1))
        nodes.op_many("ReduceLogSumExp", ["logits", nodes.int64s(-1)], "head/lse", ["lse"], Attr("keepdims", 0))


@dataclass(slots=True)
class _Graph:
    decoder: Decoder
    options: GraphOptions
    nodes: Nodes
    weights: Weights
    masks: Masks
    placed: Mapping[str, Placed]

    def build(self) -> None:
        x = self.scaled(self.weights.embedding("input_ids", "embed"), self.decoder.embed_scale, "embed/scaled")
        for i, layer in enumerate(self.decoder.layers):
            x = self.layer(i, layer, x)
        self.scores(self.norm(x, "final_norm", "final_norm"))

    def layer(self, i: int, layer: Layer, x: str) -> str:
        x = self.residual(x, self.attention(i, layer, x), i, "attn")
        return self.residual(x, self.mlp(i, x), i, "mlp")

    def residual(self, x: str, branch: str, i: int, part: str) -> str:
        """x + residual_scale * [post norm](branch)."""
        path = f"layers.{i}/{part}"
        if self.decoder.post_norms:
            branch = self.norm(branch, f"layers.{i}.{part}_post_norm", f"{path}/post_norm")
        branch = self.scaled(branch, self.decoder.residual_scale, f"{path}/scaled")
        return self.nodes.op("Add", [x, branch], f"{path}/residual")

    def attention(self, i: int, layer: Layer, x: str) -> str:
        """
        q -- heads -- [norm] -- [rope] ---------------------------------+
        k -- heads -- [norm] -- [rope] -- TensorScatter -> present_k ---+-- Attention -- o
        v -- heads -------------------- -- TensorScatter -> present_v --+
                                                              mask -----+
        """
        n, d, path = self.nodes, self.decoder, f"layers.{i}/attn"
        a = self.norm(x, f"layers.{i}.attn_norm", f"{path}/norm") if d.pre_norms else x
        query = self.rotated(self.heads(a, i, "q", d.n_heads, normed=True), layer, f"{path}/q/rope")
        key = self.rotated(self.heads(a, i, "k", d.n_kv_heads, normed=True), layer, f"{path}/k/rope")
        value = self.heads(a, i, "v", d.n_kv_heads, normed=False)
        keys, values = self.cached(key, i, "k"), self.cached(value, i, "v")
        mask, scale = self.masks.mask(layer.window), Attr("scale", d.attn_scale)
        out = n.op("Attention", [query, keys, values, mask], f"{path}/scores", scale)
        out = n.op("Transpose", [out], f"{path}/columns", Attr("perm", (0, 2, 1, 3)))
        out = n.op("Reshape", [out, n.int64s(0, 0, d.n_heads * d.head_dim)], f"{path}/joined")
        return self.linear(out, i, "o", f"{path}/o", bias=d.o_bias)

    def heads(self, a: str, i: int, name: str, n_heads: int, *, normed: bool) -> str:
        """A projection by heads, normalized as declared: [B, heads, T, D]."""
        n, d, path = self.nodes, self.decoder, f"layers.{i}/attn/{name}"
        x = self.linear(a, i, name, path, bias=d.qkv_bias)
        weight = f"layers.{i}.{name}_norm"
        if normed and d.qk_norm == "full":
            x = self.norm(x, weight, f"{path}/norm")
        x = n.op("Reshape", [x, n.int64s(0, 0, n_heads, d.head_dim)], f"{path}/split")
        if normed and d.qk_norm == "head":
            x = self.norm(x, weight, f"{path}/norm")
        return n.op("Transpose", [x], f"{path}/heads", Attr("perm", (0, 2, 1, 3)))

    def rotated(self, x: str, layer: Layer, path: str) -> str:
        if layer.rope is None:
            return x
        tables = [self.nodes.floats(self.placed[f"rope.{layer.rope}.{part}"]) for part in ("cos", "sin")]
        width = 2 * len(self.decoder.ropes[layer.rope].inv_freq)
        partial = [] if width == self.decoder.head_dim else [Attr("rotary_embedding_dim", width)]
        return self.nodes.op("RotaryEmbedding", [x, *tables, "position_ids"], path, *partial)

    def cached(self, x: str, i: int, part: str) -> str:
        past, present = f"past_{part}_{i}", f"present_{part}_{i}"
        path = f"layers.{i}/attn/cache_{part}"
        self.nodes.op_many("TensorScatter", [past, x, "past_lens"], path, [present], Attr("axis", 2))
        return present

    def mlp(self, i: int, x: str) -> str:
        n, d, path = self.nodes, self.decoder, f"layers.{i}/mlp"
        m = self.norm(x, f"layers.{i}.mlp_norm", f"{path}/norm") if d.pre_norms else x
        gate = self.linear(m, i, "gate", f"{path}/gate", bias=d.mlp_bias)
        up = self.linear(m, i, "up", f"{path}/up", bias=d.mlp_bias)
        if d.activation == "silu":
            active = n.op("Mul", [gate, n.op("Sigmoid", [gate], f"{path}/sigmoid")], f"{path}/act")
        else:
            active = n.op("Gelu", [gate], f"{path}/act", Attr("approximate", "tanh"))
        return self.linear(n.op("Mul", [active, up], f"{path}/gated"), i, "down", f"{path}/down", bias=d.mlp_bias)

    def linear(self, x: str, i: int, name: str, path: str, *, bias: bool) -> str:
        product = self.weights.linear(x, f"layers.{i}.{name}.weight", path)
        if not bias:
            return product
        return self.nodes.op("Add", [product, self.weights.vector(f"layers.{i}.{name}.bias")], f"{path}/biased")

    def norm(self, x: str, name: str, path: str) -> str:
        weight, eps = self.weights.vector(f"{name}.weight"), Attr("epsilon", self.decoder.norm_eps)
        return self.nodes.op("RMSNormalization", [x, weight], path, Attr("axis", -1), eps)

    def scaled(self, x: str, factor: float, path: str) -> str:
        return x if factor == 1 else self.nodes.op("Mul", [x, self.nodes.float32(factor)], path)

    def scores(self, x: str) -> None:
        """Of the hidden states [B, T, H], the scored columns only reach the LM head."""
        n, d = self.nodes, self.decoder
        rows = n.op("Unsqueeze", ["logit_rows", n.int64s(2)], "head/rows")
        scored = n.op("GatherND", [x, rows], "head/scored", Attr("batch_dims", 1))
        product = self.weights.linear(scored, EMBEDDING if d.tied else HEAD, "head")
        factor = n.float32(d.logit_scale)
        n.op_many("Mul", [product, factor], "head/logits", ["logits"])
        add_choices(n, self.options)
