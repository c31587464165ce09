"""A traced model as it came back, and the directories that it is written to.

Owns what a bundle of a traced model says of itself; knows no source and no check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sssd.errors import ExportError
from sssd.export.graph import CacheShape, GraphOptions, input_specs, output_specs
from sssd.export.model_text import ModelText
from sssd.export.optimum.finish import TracedGraph
from sssd.export.optimum.job import ANSWERS_FILE, Traced, read_facts
from sssd.export.optimum.storing import (
    Matrices,
    TracedWeights,
    all_arrays,
    all_tensors,
    choose_traced_storage,
    find_matrices,
    graph_over,
)
from sssd.export.parity import planned_sequences
from sssd.export.pipeline import MIN_WIDTH, branch_noise
from sssd.export.source import WeightSource
from sssd.export.storage import Weight, notes
from sssd.export.weights import plan_layout, write_weights
from sssd.spec import FORMAT_REVISION, GRAPH, LAYOUT_REVISION, WEIGHTS, EngineSpec, Manifest, WeightType
from sssd.types import Float32

_TOOLS = ("sssd", "numpy", "onnx", "onnxruntime")


class Part(NamedTuple):
    """A traced model."""

    facts: Traced
    graph: TracedGraph
    matrices: Matrices
    answers: Mapping[tuple[int, ...], Float32]  # sequence -> logits float32 [V] of the model itself

    @property
    def weights(self) -> TracedWeights:
        """The weights as they were traced."""
        return TracedWeights(self.graph, self.matrices)


class Asked(NamedTuple):
    """What a bundle is to be."""

    name: str
    weights: WeightType
    options: GraphOptions
    text: ModelText


def open_part(path: Path) -> Part:
    """Read a directory that the torch side has filled; weights stay in their files. Raises ExportError."""
    facts = read_facts(path)
    graph = TracedGraph(path, facts)
    answers = np.load(path / ANSWERS_FILE)
    sequences = planned_sequences(facts.vocab_size)
    return Part(facts, graph, find_matrices(graph), dict(zip(sequences, answers, strict=True)))


def write_part(directory: Path, part: Part, asked: Asked, source: WeightSource) -> Manifest:
    """Write graph and weights, one weight at a time; returns the manifest, which is not written yet."""
    stored = choose_traced_storage(part.graph, part.matrices, asked.weights)
    _write_graph(directory, part, stored, source, asked.options)
    return _manifest(part.facts, asked, notes(stored, asked.weights))


def _write_graph(
    directory: Path, part: Part, stored: Mapping[str, Weight], source: WeightSource, options: GraphOptions
) -> None:
    layout = plan_layout(all_tensors(part.graph, part.matrices, stored))
    try:
        write_weights(directory / WEIGHTS, layout, all_arrays(part.graph, part.matrices, stored, source))
    except OSError as e:
        raise ExportError(f"cannot write {layout.n_bytes:,} bytes of weights: {e.strerror}; free some space") from e
    model = graph_over(part.graph, part.matrices, stored, layout, part.facts, options)
    (directory / GRAPH).write_bytes(model.SerializeToString())


def _manifest(facts: Traced, asked: Asked, stored_notes: Sequence[str]) -> Manifest:
    cache, options, text = CacheShape(facts.n_layers, facts.n_kv_heads, facts.head_dim), asked.options, asked.text
    spec = EngineSpec(
        name=asked.name,
        vocab_size=facts.vocab_size,
        n_layers=facts.n_layers,
        n_kv_heads=facts.n_kv_heads,
        head_dim=facts.head_dim,
        max_len=options.max_len,
        kv_dtype="float32",
        weights=asked.weights,
        scores=options.scores,
        n_scores=facts.vocab_size if options.scores == "logits" else options.n_scores,
        eos_ids=text.eos_ids,
        bos_id=text.bos_id,
        min_width=MIN_WIDTH,
        branch_noise=branch_noise(asked.weights),
        inputs=input_specs(cache),
        outputs=output_specs(cache, facts.vocab_size, options),
    )
    traced = f"a {facts.model_type} model, traced by {'Optimum' if facts.refused else 'torch'}'s exporter"
    refused = () if facts.refused is None else (f"torch's exporter refused it: {facts.refused}",)
    return Manifest(
        format_revision=FORMAT_REVISION,
        layout_revision=LAYOUT_REVISION,
        spec=spec,
        decoder=None,
        source=asked.name,
        notes=(traced, *refused, *stored_notes),
        tools=facts.tools | {name: import_module(name).__version__ for name in _TOOLS},
        parity=(),
        files=(),
    )
