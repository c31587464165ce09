"""Small decoders of every family with heads that TensorRT knows, bundles of them, and TensorRT's operators modelled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sssd.architecture import Decoder
from sssd.export.pipeline import write_bundle
from sssd.plan import PlanOptions
from sssd.spec import Bundle, WeightType
from tests.helpers.random_decoders import RandomWeights, checkpoint
from tests.helpers.tiny_directory import declare

_GEMMA3: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": True,
}
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "phi3": {"sliding_window": 8},
    "granite": {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "olmo2": {"attention_bias": True},
    "smollm3": {"no_rope_layers": [1, 0], "tie_word_embeddings": True},
}
OPTIONS = PlanOptions(flavour="rtx", n_slots=8, max_width=16, chunk=128)


def family(name: str) -> Decoder:
    """A decoder of two layers, hidden 64."""
    return declare(model_type=name, **(SIZES | FAMILY_FIELDS[name]))


def portable_bundle(
    out: Path, decoder: Decoder, weights: RandomWeights | None = None, *, stored: WeightType = "fp16"
) -> Bundle:
    """The bundle that a plan is built for, before there is one; parity has passed."""
    source = checkpoint(decoder, weights)
    return write_bundle(source, out, target="tensorrt", weights=stored, scores="topk", force=False)


def runnable(model: Any) -> Any:
    """A graph for TensorRT with its own operators in standard ones, as ONNX Runtime's CPU can run them.

    TRT_Attention(q, k, v, mask, , lengths) is Attention with scale 1 over the keys before `lengths`. bfloat16, which
    that runtime does not multiply, becomes float32: what is compared then is the graph's meaning without its rounding.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = [n for node in made.graph.node for n in (_modelled(node) if node.op_type == "TRT_Attention" else [node])]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    length = next(v for v in made.graph.input if v.name == "past_k_0").type.tensor_type.shape.dim[2].dim_value
    keys = np.arange(length, dtype=np.int32)
    made.graph.initializer.append(numpy_helper.from_array(keys, "modelled/keys"))
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 3], np.int64), "modelled/axes"))
    return made


def _modelled(node: Any) -> list[Any]:
    q, k, v, mask, query_lengths, lengths = node.input
    assert not query_lengths
    assert not node.attribute
    stem = f"{node.name}/modelled"
    return [
        helper.make_node("Unsqueeze", [lengths, "modelled/axes"], [f"{stem}/lengths"]),
        helper.make_node("Less", ["modelled/keys", f"{stem}/lengths"], [f"{stem}/within"]),
        helper.make_node("And", [mask, f"{stem}/within"], [f"{stem}/mask"]),
        helper.make_node("Attention", [q, k, v, f"{stem}/mask"], list(node.output), name=stem, scale=1.0),
    ]


def in_float32(model: Any, directory: Path) -> Any:
    """The graph with every bfloat16 tensor as float32, weights read from the directory."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    onnx.load_external_data_for_model(made, str(directory))
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.BFLOAT16:
            values = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in [*made.graph.input, *made.graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in made.graph.node:
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.BFLOAT16:
            node.attribute[0].i = TensorProto.FLOAT
    return made


def changed(model: Any, attributes: Mapping[str, Any], kind: str) -> Any:
    """A copy of a graph whose first node of a kind has other attributes."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    node = next(n for n in made.graph.node if n.op_type == kind)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return made
