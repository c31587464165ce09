"""The portable graph in 16 bits -> the graph that TensorRT builds. Owns the forms that TensorRT asks for, and refusals.

    Attention(q, k, v, mask; scale) -> TRT_Attention(q * scale, k, v, mask, , key_value_lengths)

The parser would multiply q and k by the root of the scale, k being the whole cache; TRT_Attention multiplies nothing.
Key-value lengths (past_lens + T, int32 [B]) let kernels stop where a row's keys end. The cache is fixed to one length,
because TensorRT updates it in place only then. Knows no builder and reads no weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sssd.architecture import Decoder
from sssd.errors import UnsupportedModel
from sssd.export.half import HalfType, half_graph

HEAD_SIZES = (16, 32, 64, 80, 96, 112, 128, 160, 192, 256)  # with a fused kernel for this form, as seen with RTX 1.7
LENGTHS = "attention/key_value_lengths"
_CACHE_AXIS = 2


def require_head_size(decoder: Decoder) -> None:
    """Raise UnsupportedModel for a head size that TensorRT has no fused attention for."""
    if decoder.head_dim not in HEAD_SIZES:
        raise UnsupportedModel(
            f"{decoder.family} with heads of {decoder.head_dim}: TensorRT has fused attention for heads of "
            f"{', '.join(map(str, HEAD_SIZES))} only; export it with --target onnx or onnx-cuda"
        )


def tensorrt_graph(portable: Any, half: HalfType, cache_len: int) -> Any:
    """A copy of the portable onnx.ModelProto as TensorRT takes it, with caches of `cache_len`.

    Raises UnsupportedModel, naming the node, for what TensorRT refuses or would silently compute otherwise.
    """
    _refuse(portable.graph)
    model = half_graph(portable, half)
    graph = model.graph
    for value in [*graph.input, *graph.output]:
        if value.name.startswith(("past_k", "past_v", "present_")):
            value.type.tensor_type.shape.dim[_CACHE_AXIS].dim_value = cache_len
    nodes = _length_nodes()
    for node in graph.node:
        nodes += _attention(graph, node) if node.op_type == "Attention" else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _refuse(graph: Any) -> None:
    problems = [problem for node in graph.node if (problem := _problem(node)) is not None]
    if not any(node.op_type == "Attention" for node in graph.node):
        problems.append("it has no Attention operator: attention in single steps has no fused kernel")
    made = {name: node for node in graph.node for name in node.output}
    for value in graph.output:
        writer = made.get(value.name)
        if value.name.startswith("present_") and (writer is None or writer.op_type != "TensorScatter"):
            problems.append(f"{value.name} is not written in place by TensorScatter")
    if problems:
        raise UnsupportedModel(
            f"TensorRT cannot take this graph: {'; '.join(problems)}; serve it with --target onnx or onnx-cuda"
        )


def _problem(node: Any) -> str | None:
    """What TensorRT refuses in a node, or would drop without a word."""
    values = {a.name: a for a in node.attribute}
    if node.op_type == "TensorScatter" and "mode" in values and values["mode"].s != b"linear":
        return f"{node.name} writes a circular cache"
    if node.op_type != "Attention":
        return None
    if "softcap" in values and values["softcap"].f != 0:
        return f"{node.name} caps its scores (softcap {values['softcap'].f:g})"
    if any(node.input[4:]):
        return f"{node.name} has past or length inputs ({', '.join(filter(None, node.input[4:]))})"
    if len(node.input) < 4 or not node.input[3]:
        return f"{node.name} has no mask"
    return None


def _length_nodes() -> list[Any]:
    from onnx import TensorProto, helper

    width, sums = f"{LENGTHS}/width", f"{LENGTHS}/int64"
    return [
        helper.make_node("Shape", ["input_ids"], [width], name=width, start=1, end=2),
        helper.make_node("Add", ["past_lens", width], [sums], name=sums),
        helper.make_node("Cast", [sums], [LENGTHS], name=LENGTHS, to=TensorProto.INT32),
    ]


def _attention(graph: Any, node: Any) -> list[Any]:
    from onnx import helper, numpy_helper

    scale = next(a.f for a in node.attribute if a.name == "scale")
    kind = next(v for v in graph.input if v.name == "past_k_0").type.tensor_type.elem_type
    factor = numpy_helper.from_array(np.array(scale, helper.tensor_dtype_to_np_dtype(kind)), f"{node.name}/scale")
    graph.initializer.append(factor)
    scaled = f"{node.name}/scaled_q"
    inputs = [scaled, *node.input[1:4], "", LENGTHS]
    return [
        helper.make_node("Mul", [node.input[0], factor.name], [scaled], name=scaled),
        helper.make_node("TRT_Attention", inputs, list(node.output), name=node.name),
    ]
