"""A traced graph under the contract: standard operators at one opset, our names, nothing left out.

Owns what has to be changed in what an exporter wrote; knows no weights' storage and no model.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sssd.errors import ExportError
from sssd.export.nodes import OPSET
from sssd.export.optimum.job import GRAPH_FILE, Traced
from sssd.export.optimum.names import DOMAIN

_FLOAT = 1  # onnx.TensorProto.FLOAT
# operators whose meaning, not only whose attributes, changed between the opsets that meet here
_CHANGED_MEANING = frozenset({"GroupNormalization", "BatchNormalization"})


class TracedGraph:
    """An onnx.GraphProto whose large tensors stay in files until they are asked for."""

    def __init__(self, part: Path, facts: Traced) -> None:
        """Read a part that the torch side has filled. Raises ExportError where the graph is not what it should be."""
        import onnx

        self._directory = part
        model = onnx.load(str(part / GRAPH_FILE), load_external_data=False)
        if model.functions:
            raise ExportError(
                f"the traced graph of {facts.model_type} has functions of its own, which sssd does not read"
            )
        _raise_opset(model)
        self.nodes: list[Any] = list(model.graph.node)  # onnx.NodeProto, in order
        self.initializers: dict[str, Any] = {t.name: t for t in model.graph.initializer}  # onnx.TensorProto
        _check_completeness(self.initializers, facts)
        self._rename(_contract_names(model.graph))

    def array(self, name: str) -> npt.NDArray[Any]:
        """The content of an initializer."""
        from onnx import numpy_helper

        array: npt.NDArray[Any] = numpy_helper.to_array(self.initializers[name], base_dir=str(self._directory))
        return array

    def is_float(self, name: str) -> bool:
        """Whether an initializer holds float32, as all traced weights do."""
        return bool(self.initializers[name].data_type == _FLOAT)

    def _rename(self, names: dict[str, str]) -> None:
        for node in self.nodes:
            node.input[:] = [names.get(x, x) for x in node.input]
            node.output[:] = [names.get(x, x) for x in node.output]


def _contract_names(graph: Any) -> dict[str, str]:
    """From Optimum's names of the cache (past_key_values.0.key, present.0.key) to the contract's."""
    names = {}
    for value in (*graph.input, *graph.output):
        parts = value.name.split(".")
        if len(parts) == 3:
            when = "past" if parts[0].startswith("past") else "present"
            names[value.name] = f"{when}_{parts[2][0]}_{parts[1]}"
    return names


def _check_completeness(initializers: dict[str, Any], facts: Traced) -> None:
    """An exporter that follows one run leaves out what that run did not visit, such as experts."""
    found = sum(math.prod(t.dims) for t in initializers.values() if len(t.dims) > 1)
    if found < facts.n_matrix_numbers:
        raise ExportError(
            f"the traced graph of {facts.model_type} holds {found:,} of {facts.n_matrix_numbers:,} weights: "
            "the exporter left out what its one run did not visit"
        )


def _raise_opset(model: Any) -> None:
    """To ours, in place, by changing the number: each operator is held against both schemas first."""
    opset = next(o.version for o in model.opset_import if o.domain == "")
    for node in model.graph.node:
        if node.domain == DOMAIN:
            node.domain = ""
        elif node.domain:
            raise ExportError(f"the traced graph has {node.op_type} of {node.domain}: only standard operators are run")
        elif not same_meaning(node.op_type, opset):
            raise ExportError(f"{node.op_type} is another operator in opset {opset} than in {OPSET}")
    del model.opset_import[:]
    model.opset_import.add(domain="", version=OPSET)


def same_meaning(kind: str, opset: int) -> bool:
    """Whether an operator of an older opset may be taken as one of ours: same inputs, attributes only added."""
    import onnx

    old, new = (onnx.defs.get_schema(kind, version) for version in (opset, OPSET))
    if old.since_version == new.since_version:
        return True
    inputs = [i.name for i in old.inputs]
    grown = set(old.attributes) <= set(new.attributes) and inputs == [i.name for i in new.inputs][: len(inputs)]
    return grown and kind not in _CHANGED_MEANING
