"""A small typed builder of ONNX nodes. Owns names, constants and initializers; knows no model.

A node's name is its path in the model ("layers.0/attn/scores"), and so is the tensor that it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.export.weights import Placed
from sssd.spec import TensorSpec

OPSET = 24
IR_VERSION = 11  # the oldest that carries opset 24

Attribute = int | float | str | Sequence[int]


class Attr(NamedTuple):
    """A named attribute of a node."""

    name: str
    value: Attribute


@dataclass(slots=True)
class Nodes:
    """Nodes and initializers in the making; every method returns the name of the tensor that it made."""

    weights_file: str  # where stored tensors lie, relative to the graph
    made: list[Any] = field(default_factory=list)  # onnx.NodeProto
    initializers: dict[str, Any] = field(default_factory=dict)  # name -> onnx.TensorProto
    widened: dict[str, str] = field(default_factory=dict)  # stored tensor of 16 bits -> its float32 values

    def op(self, kind: str, inputs: Sequence[str], path: str, *attributes: Attr) -> str:
        """One node with one output."""
        return self.op_many(kind, inputs, path, [path], *attributes)

    def op_many(self, kind: str, inputs: Sequence[str], path: str, outputs: Sequence[str], *attributes: Attr) -> str:
        """One node with several outputs; returns the first."""
        from onnx import helper

        node = helper.make_node(kind, list(inputs), list(outputs), name=path)
        node.attribute.extend(helper.make_attribute(a.name, a.value) for a in attributes)
        self.made.append(node)
        return outputs[0]

    def int64s(self, *values: int) -> str:
        """A constant int64 vector."""
        return self._constant("ints/" + ",".join(map(str, values)), np.array(values, np.int64))

    def int64(self, value: int) -> str:
        """A constant int64 scalar."""
        return self._constant(f"int/{value}", np.array(value, np.int64))

    def float32(self, value: float) -> str:
        """A constant float32 scalar."""
        return self._constant(f"float/{value!r}", np.array(value, np.float32))

    def _constant(self, name: str, value: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(value, name)
        return name

    def stored(self, tensor: Placed) -> str:
        """An initializer whose content lies in the weights file."""
        if tensor.name not in self.initializers:
            self.initializers[tensor.name] = self._external(tensor)
        return tensor.name

    def floats(self, tensor: Placed) -> str:
        """A stored tensor of floats as float32; a runtime folds the cast."""
        stored = self.stored(tensor)
        if tensor.kind == "float32":
            return stored
        if stored not in self.widened:
            self.widened[stored] = self.op("Cast", [stored], f"{stored}/float32", Attr("to", 1))
        return self.widened[stored]

    def _external(self, tensor: Placed) -> Any:
        from onnx import TensorProto

        proto = TensorProto(name=tensor.name, dims=tensor.dims, data_location=TensorProto.EXTERNAL)
        proto.data_type = TensorProto.DataType.Value(tensor.onnx_type)
        place = {"location": self.weights_file, "offset": str(tensor.offset), "length": str(tensor.n_bytes)}
        for key, value in place.items():
            proto.external_data.add(key=key, value=value)
        return proto

    def model(self, name: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> Any:
        """The finished onnx.ModelProto."""
        from onnx import helper

        graph = helper.make_graph(
            self.made,
            name,
            [value_info(t) for t in inputs],
            [value_info(t) for t in outputs],
            list(self.initializers.values()),
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="sssd")


def value_info(spec: TensorSpec) -> Any:
    """The onnx.ValueInfoProto of an input or output."""
    from onnx import helper

    return helper.make_tensor_value_info(spec.name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.dims)
