"""A traced graph's weights as the weights file stores them, and the graph that reads them from there.

Owns the search for linear layers and embeddings among traced nodes; how they are stored and written as nodes is
storage.py's and linear.py's business, as for every bundle. Knows no model: a matrix is what a product reads.

    MatMul(x, W)               W is [in, out]
    MatMul(x, Transpose(W))    W is [out, in]; so is Gemm's with transB, and an embedding gathered by token ids
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from sssd.export.graph import CacheShape, GraphOptions, add_choices, input_specs, output_specs
from sssd.export.linear import Weights
from sssd.export.nodes import Nodes
from sssd.export.optimum.finish import TracedGraph
from sssd.export.optimum.job import Traced
from sssd.export.source import Blocks, WeightSource, as_float32
from sssd.export.storage import Form, Weight, choose, encode, tensors
from sssd.export.weights import Layout, Tensor
from sssd.spec import WEIGHTS, WeightType

_INLINE = 64  # numbers that are kept in the graph itself
_PASSING = ("Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze")  # between token ids and where they are looked up


class Use(NamedTuple):
    """One node that reads a matrix."""

    node: int  # index into the graph's nodes
    is_lookup: bool  # rows by token id; otherwise a product
    inputs_first: bool  # it reads the matrix as [in, out]


@dataclass
class Matrices:
    """The weights that are linear layers or embeddings: name -> what reads them, all in one orientation."""

    uses: dict[str, list[Use]] = field(default_factory=dict)
    transposes: set[int] = field(default_factory=set)  # nodes that are not needed any more

    def by_rows(self, name: str) -> bool:
        """Whether an embedding reads it."""
        return any(use.is_lookup for use in self.uses[name])


class TracedWeights:
    """The WeightSource of a traced graph; matrices as [out, in]."""

    def __init__(self, graph: TracedGraph, matrices: Matrices) -> None:
        self._graph = graph
        self._matrices = matrices

    def load(self, name: str) -> npt.NDArray[Any]:
        """The weight as it was traced."""
        array = self._graph.array(name)
        return array.T if name in self._matrices.uses and self._matrices.uses[name][0].inputs_first else array

    def blocks(self, name: str) -> Blocks | None:
        """None: traced weights are never in blocks."""
        return None


# ---- finding ------------------------------------------------------------------------------------


def find_matrices(graph: TracedGraph) -> Matrices:
    """Every two-dimensional weight all of whose readers are products or lookups of tokens."""
    found = Matrices()
    producers = {out: i for i, node in enumerate(graph.nodes) for out in node.output}
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(i)
    for name, tensor in graph.initializers.items():
        if len(tensor.dims) != 2 or not graph.is_float(name):
            continue
        uses, transposes = _uses(graph, name, readers, lambda ids: _are_tokens(graph, ids, producers))
        if uses and len({use.inputs_first for use in uses}) == 1:
            found.uses[name] = uses
            found.transposes |= transposes
    return found


def _uses(
    graph: TracedGraph, name: str, readers: dict[str, list[int]], are_tokens: Callable[[str], bool]
) -> tuple[list[Use], set[int]]:
    """How a weight is read, and by which transpositions; nothing where one reader is of another kind."""
    uses, transposes = [], set()
    for i in readers.get(name, ()):
        node = graph.nodes[i]
        if node.op_type == "Transpose" and _attribute(node, "perm", (1, 0)) == (1, 0):
            transposes.add(i)
            products = [_use(graph.nodes[j], j, node.output[0], are_tokens) for j in readers.get(node.output[0], ())]
            uses += [
                None if use is None or use.is_lookup else use._replace(inputs_first=not use.inputs_first)
                for use in products
            ]
        else:
            uses.append(_use(node, i, name, are_tokens))
    return ([], set()) if None in uses else ([use for use in uses if use is not None], transposes)


def _use(node: Any, i: int, name: str, are_tokens: Callable[[str], bool]) -> Use | None:
    """How one node reads the matrix `name`, or None."""
    if node.op_type == "MatMul" and node.input[1] == name != node.input[0]:
        return Use(i, is_lookup=False, inputs_first=True)
    if node.op_type == "Gemm" and node.input[1] == name and name not in (node.input[0], *node.input[2:]):
        plain = (_attribute(node, "alpha", 1.0), _attribute(node, "beta", 1.0), _attribute(node, "transA", 0))
        if plain == (1.0, 1.0, 0):
            return Use(i, is_lookup=False, inputs_first=_attribute(node, "transB", 0) == 0)
    if node.op_type == "Gather" and node.input[0] == name and _attribute(node, "axis", 0) == 0:
        return Use(i, is_lookup=True, inputs_first=False) if are_tokens(node.input[1]) else None
    return None


def _are_tokens(graph: TracedGraph, ids: str, producers: dict[str, int]) -> bool:
    """Whether ids are the input's, in whatever shape."""
    while ids in producers and graph.nodes[producers[ids]].op_type in _PASSING:
        ids = graph.nodes[producers[ids]].input[0]
    return ids == "input_ids"


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx import helper

    for attribute in node.attribute:
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            return tuple(value) if isinstance(value, list) else value
    return default


# ---- storing ------------------------------------------------------------------------------------


def choose_traced_storage(graph: TracedGraph, matrices: Matrices, weights: WeightType) -> dict[str, Weight]:
    """Decide for every matrix; embedding and LM head keep 8 bits where the rest has 4."""
    source = TracedWeights(graph, matrices)
    ends = {name for name in matrices.uses if matrices.by_rows(name)} | set(_heads(graph, matrices))
    chosen = {}
    for name, uses in matrices.uses.items():
        dims = tuple(graph.initializers[name].dims)
        shape = dims[::-1] if uses[0].inputs_first else dims
        storage = choose(name, shape, source, weights, Form(), ends=ends)
        chosen[name] = Weight(name, shape, storage, by_rows=matrices.by_rows(name))
    return chosen


def _heads(graph: TracedGraph, matrices: Matrices) -> Iterator[str]:
    """Matrices of the last product before the logits."""
    last = max((use.node for uses in matrices.uses.values() for use in uses if not use.is_lookup), default=-1)
    return (name for name, uses in matrices.uses.items() if any(use.node == last for use in uses))


def plain_tensors(graph: TracedGraph, matrices: Matrices) -> list[Tensor]:
    """Everything else that is too large for the graph: norms, biases, tables, weights of other operators."""
    names = [name for name in graph.initializers if name not in matrices.uses and _is_large(graph, name)]
    return [Tensor(name, "float32", tuple(graph.initializers[name].dims)) for name in names]


def _is_large(graph: TracedGraph, name: str) -> bool:
    return graph.is_float(name) and math.prod(graph.initializers[name].dims) > _INLINE


def all_tensors(graph: TracedGraph, matrices: Matrices, stored: Mapping[str, Weight]) -> list[Tensor]:
    """The content of the weights file."""
    return [*(t for weight in stored.values() for t in tensors(weight)), *plain_tensors(graph, matrices)]


def all_arrays(
    graph: TracedGraph, matrices: Matrices, stored: Mapping[str, Weight], source: WeightSource
) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    """The same with content, matrices from `source`, one weight in memory at a time."""
    for weight in stored.values():
        yield from encode(weight, source)
    for tensor in plain_tensors(graph, matrices):
        yield tensor, as_float32(graph.array(tensor.name))


# ---- the graph that reads them ------------------------------------------------------------------


def graph_over(
    graph: TracedGraph,
    matrices: Matrices,
    stored: Mapping[str, Weight],
    layout: Layout,
    facts: Traced,
    options: GraphOptions,
) -> Any:
    """The finished onnx.ModelProto, whose large tensors lie in the weights file."""
    nodes = Nodes(WEIGHTS)
    weights = Weights(nodes, stored, layout.tensors)
    readers = {use.node: (name, use) for name, uses in matrices.uses.items() for use in uses}
    for i, node in enumerate(graph.nodes):
        if i in readers:
            _rewrite(nodes, weights, node, *readers[i])
        elif i not in matrices.transposes:
            nodes.made.append(node)
    for name in graph.initializers:
        if name in matrices.uses:
            continue
        if name in layout.tensors:
            nodes.stored(layout.tensors[name])
        else:
            nodes.initializers[name] = _inline(graph, name)
    add_choices(nodes, options)
    cache = CacheShape(facts.n_layers, facts.n_kv_heads, facts.head_dim)
    return nodes.model(facts.model_type, input_specs(cache), output_specs(cache, facts.vocab_size, options))


def _rewrite(nodes: Nodes, weights: Weights, node: Any, name: str, use: Use) -> None:
    """The node's work in the form of every bundle, under the node's own output name."""
    out = node.output[0]
    if use.is_lookup:
        made = weights.embedding(node.input[1], f"{out}/looked_up", name=name)
    else:
        made = weights.linear(node.input[0], name, f"{out}/linear")
        if node.op_type == "Gemm" and len(node.input) > 2:
            made = nodes.op("Add", [made, node.input[2]], f"{out}/biased")
    nodes.op("Identity", [made], out)


def _inline(graph: TracedGraph, name: str) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(graph.array(name), name)
