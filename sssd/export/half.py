"""The portable graph with 16-bit floats: weights, activations and KV cache. Owns what stays float32, and why.

Knows no runtime and reads no weights: a graph exported for a device stores its floats in 16 bits already, and what
the portable graph widens with a Cast is left as it is. Float32 remain

    rotary embedding    q and k are widened for it: positions in the thousands need more than 8 bits of a cosine
    scores              the logits are widened before argmax, top k and log-sum-exp
    norms               RMSNormalization adds up its squares in float32 by itself
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

HalfType = Literal["float16", "bfloat16"]
_SCORING = ("ArgMax", "TopK", "ReduceLogSumExp")
_FLOAT = 1  # onnx.TensorProto.FLOAT


def half_graph(portable: Any, half: HalfType) -> Any:
    """A copy of the portable onnx.ModelProto that computes in `half`; float32 inputs and outputs named past_* and
    present_* become `half`, others stay float32. External data is neither read nor changed."""
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(portable)
    _Halving(model.graph, _number(half)).run()
    return model


def _number(half: HalfType) -> int:
    """Number of the type in onnx.TensorProto."""
    from onnx import TensorProto

    return int(TensorProto.DataType.Value({"float16": "FLOAT16", "bfloat16": "BFLOAT16"}[half]))


@dataclass(slots=True)
class _Halving:
    graph: Any  # onnx.GraphProto, changed in place
    half: int
    nodes: list[Any] = field(default_factory=list)  # the new ones, in order
    types: dict[str, int] = field(default_factory=dict)  # of initializers, and of tensors made of them or of float32
    aliases: dict[str, str] = field(default_factory=dict)  # tensor -> the one that it equals now
    cast: dict[tuple[str, int], str] = field(default_factory=dict)  # (tensor, type) -> its cast

    def run(self) -> None:
        wide = {value.name for value in self.graph.output if self._is_float(value) and not _is_cache(value.name)}
        for value in [*self.graph.input, *self.graph.output]:
            if self._is_float(value) and _is_cache(value.name):
                value.type.tensor_type.elem_type = self.half
        tables = {name for node in self.graph.node if node.op_type == "RotaryEmbedding" for name in node.input[1:3]}
        self._halve_constants(tables)
        self.types = {i.name: i.data_type for i in self.graph.initializer}
        for node in self.graph.node:
            self._node(node, wide)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def _is_float(self, value: Any) -> bool:
        return bool(value.type.tensor_type.elem_type == _FLOAT)

    def _halve_constants(self, tables: set[str]) -> None:
        """Constants inside the graph; weights lie outside of it."""
        from onnx import helper, numpy_helper

        for tensor in self.graph.initializer:
            if tensor.data_type == _FLOAT and not tensor.external_data and tensor.name not in tables:
                values = numpy_helper.to_array(tensor)
                stored = values.astype(helper.tensor_dtype_to_np_dtype(self.half))
                assert np.isfinite(stored).all(), tensor.name
                tensor.CopyFrom(numpy_helper.from_array(stored, tensor.name))

    def _node(self, node: Any, wide: set[str]) -> None:
        for i, name in enumerate(node.input):
            node.input[i] = self.aliases.get(name, name)
        if node.op_type == "Cast" and node.attribute[0].i == _FLOAT:
            self._narrow_cast(node)
        elif node.op_type == "RotaryEmbedding":
            self._rotate(node)
        elif node.op_type in _SCORING:
            node.input[0] = self._as(node.input[0], _FLOAT)
            self.nodes.append(node)
        else:
            for i, name in enumerate(node.input):
                if self.types.get(name) == _FLOAT:
                    node.input[i] = self._as(name, self.half)
            self._append(node, wide)

    def _narrow_cast(self, node: Any) -> None:
        """What was widened is now taken as it is, or becomes 16 bits."""
        source, made = node.input[0], node.output[0]
        if self.types.get(source) == self.half:
            self.aliases[made] = source
            return
        node.attribute[0].i = self.half
        self.nodes.append(node)

    def _rotate(self, node: Any) -> None:
        from onnx import helper

        made = node.output[0]
        node.input[0] = self._as(node.input[0], _FLOAT)
        node.output[0] = f"{made}/float32"
        self.nodes.append(node)
        self.nodes.append(helper.make_node("Cast", [node.output[0]], [made], name=f"{made}/half", to=self.half))

    def _append(self, node: Any, wide: set[str]) -> None:
        """The node; an output of the graph that stays float32 is widened behind it."""
        from onnx import helper

        self.nodes.append(node)
        if node.op_type == "Gather" and node.input[0] in self.types:
            self.types[node.output[0]] = self.types[node.input[0]]
        for i, name in enumerate(node.output):
            if name in wide:
                node.output[i] = f"{name}/half"
                self.nodes.append(helper.make_node("Cast", [node.output[i]], [name], name=f"{name}/wide", to=_FLOAT))
                self.types[name] = _FLOAT

    def _as(self, name: str, kind: int) -> str:
        """The tensor as `kind`, cast once."""
        from onnx import helper

        if self.types.get(name) == kind:
            return name
        if (name, kind) not in self.cast:
            made = self.cast[name, kind] = f"{name}/as_{'float32' if kind == _FLOAT else 'half'}"
            self.nodes.append(helper.make_node("Cast", [name], [made], name=made, to=kind))
        return self.cast[name, kind]


def _is_cache(name: str) -> bool:
    return name.startswith(("past_", "present_"))
