"""A tree model through torch's exporter, or through Optimum's where torch's refuses. Runs on the torch side only.

Owns the trace inputs and both calls; knows no family. Optimum's exporter follows one run of the model's Python, so its
patches for classes with data-dependent code are needed, and a guard that nothing was left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sssd.export.optimum.job import GRAPH_FILE
from sssd.export.optimum.patches import taught
from sssd.export.optimum.tree_model import CurrentStep, KeyValue, StepInputs, StepOutputs, TreeModel

OPSET = 24
_OLDER_OPSET = 18  # Optimum's exporter goes no higher than 20; finish.py raises it
# no two sizes equal and none 1: equal sizes, or a one, would be taken for constants
_ROWS, _COLUMNS, _SLOTS, _SCORED = 2, 3, 17, 2
_PAST = (4, 5)


class CacheShape(NamedTuple):
    """One layer's KV, as the model makes it."""

    n_key_heads: int
    key_dim: int
    n_value_heads: int
    value_dim: int


class Untraceable(Exception):
    """An exporter refused, or left a part out."""


@torch.no_grad()
def cache_shapes(model: Any) -> list[CacheShape]:
    """Every layer's KV, asked of the model by running it: configs and exporters' tables are wrong about some families.

    Raises Untraceable for a model whose memory is something else.
    """
    cache = model(torch.zeros(1, 2, dtype=torch.long), use_cache=True).past_key_values
    cache = getattr(cache, "self_attention_cache", cache)
    layers = getattr(cache, "layers", None)
    if not layers or not all(isinstance(getattr(layer, "keys", None), torch.Tensor) for layer in layers):
        raise Untraceable("what it remembers of a text is not keys and values of every layer")
    return [
        CacheShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[1], layer.values.shape[3])
        for layer in layers
    ]


def trace_inputs(shapes: Sequence[CacheShape], vocab_size: int) -> StepInputs:
    """Inputs to trace with; random tokens, so that a mixture of experts visits more than one."""
    ids = torch.randint(0, vocab_size, (_ROWS, _COLUMNS), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(_COLUMNS).expand(_ROWS, _COLUMNS) + _PAST[0]
    mask = torch.ones(_ROWS, _COLUMNS, _COLUMNS, dtype=torch.bool).tril()
    rows = torch.tensor([[0, 2], [1, 2]])
    assert rows.shape == (_ROWS, _SCORED)
    cache = [
        KeyValue(
            torch.zeros(_ROWS, s.n_key_heads, _SLOTS, s.key_dim),
            torch.zeros(_ROWS, s.n_value_heads, _SLOTS, s.value_dim),
        )
        for s in shapes
    ]
    return StepInputs(ids, positions, torch.tensor(_PAST), mask, rows, cache)


def by_name(inputs: StepInputs) -> dict[str, Any]:
    """The inputs as keyword arguments, of plain tuples."""
    return inputs._asdict() | {"past_key_values": [tuple(layer) for layer in inputs.past_key_values]}


def cache_names(when: str, n_layers: int) -> list[str]:
    """The contract's names of the KV cache, before or after the step."""
    return [f"{when}_{part}_{i}" for i in range(n_layers) for part in ("k", "v")]


# ---- torch's exporter ---------------------------------------------------------------------------


class _Traceable(torch.nn.Module):
    def __init__(self, model: Any, n_positions: int | None) -> None:
        super().__init__()
        self.model = model
        self.current = CurrentStep()
        self._n_positions = n_positions

    def forward(
        self, input_ids: Any, position_ids: Any, past_lens: Any, tree_mask: Any, logit_rows: Any, past_key_values: Any
    ) -> StepOutputs:
        tree = TreeModel(self.model, self.model.forward, self.current, self._n_positions)
        return tree.step(StepInputs(input_ids, position_ids, past_lens, tree_mask, logit_rows, past_key_values))


def trace_with_torch(model: Any, inputs: StepInputs, n_positions: int | None, out: Path) -> None:
    """Write GRAPH_FILE into `out`. Raises Untraceable where torch.export or the conversion refuses."""
    traceable = _Traceable(model, n_positions)
    n_layers = len(inputs.past_key_values)
    b, t, s, r = (torch.export.Dim(name) for name in "BTSR")
    shapes = {
        "input_ids": {0: b, 1: t},
        "position_ids": {0: b, 1: t},
        "past_lens": {0: b},
        "tree_mask": {0: b, 1: t, 2: t},
        "logit_rows": {0: b, 1: r},
        "past_key_values": [({0: b, 2: s}, {0: b, 2: s})] * n_layers,
    }
    arguments = by_name(inputs)
    try:
        with taught(model, traceable.current), torch.no_grad():
            program = torch.onnx.export(
                traceable,
                (),
                kwargs=arguments,
                dynamic_shapes=shapes,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
                input_names=[*StepInputs._fields[:-1], *cache_names("past", n_layers)],
                output_names=["logits", *cache_names("present", n_layers)],
            )
        assert program is not None
        program.save(out / GRAPH_FILE, external_data=True)
    except Exception as error:  # torch's exporter raises whatever its parts raise
        raise Untraceable(_first_cause(error)) from error


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


# ---- Optimum's exporter -------------------------------------------------------------------------


def trace_with_optimum(model: Any, inputs: StepInputs, n_positions: int | None, out: Path) -> None:
    """Write GRAPH_FILE into `out`, with Optimum's patches for the family. Raises Untraceable."""
    try:
        from optimum.exporters.onnx import export
    except ImportError:
        raise Untraceable("the package optimum-onnx is not installed") from None
    try:
        config = _optimum_config(model, inputs, n_positions)
        export(model, config, out / GRAPH_FILE, opset=_OLDER_OPSET, disable_dynamic_axes_fix=True)
    except Exception as error:  # as above
        raise Untraceable(_first_cause(error)) from error


def _optimum_config(model: Any, inputs: StepInputs, n_positions: int | None) -> Any:
    """Optimum's own config of the family, with our inputs and outputs."""
    import optimum.exporters.onnx.model_configs  # noqa: F401  registers the families
    from optimum.exporters.tasks import TasksManager

    task = "text-generation-with-past"
    found = TasksManager.get_exporter_config_constructor("onnx", model, task=task, library_name="transformers")
    base: Any = getattr(found, "func", found)

    class TreeConfig(base):  # type: ignore[misc]
        @property
        def inputs(self) -> dict[str, dict[int, str]]:
            axes = {
                "input_ids": {0: "B", 1: "T"},
                "position_ids": {0: "B", 1: "T"},
                "past_lens": {0: "B"},
                "tree_mask": {0: "B", 1: "T", 2: "T"},
                "logit_rows": {0: "B", 1: "R"},
            }
            return axes | self._cache_axes("inputs")

        @property
        def outputs(self) -> dict[str, dict[int, str]]:
            return {"logits": {0: "B", 1: "R"}} | self._cache_axes("outputs")

        def _cache_axes(self, direction: str) -> dict[str, dict[int, str]]:
            names: dict[str, Any] = {}
            self.add_past_key_values(names, direction)
            return {name: {0: "B", 2: "S"} for name in names}

        def generate_dummy_inputs(self, framework: str = "pt", **ignored: Any) -> dict[str, Any]:
            return by_name(inputs)

        def patch_model_for_export(self, model: Any, model_kwargs: Any = None) -> Any:
            return _patched(super().patch_model_for_export(model, model_kwargs=model_kwargs), model, n_positions)

    return TreeConfig(model.config, task="text-generation", use_past=True, use_past_in_inputs=True)


@contextmanager
def _patched(optimums: Any, model: Any, n_positions: int | None) -> Iterator[None]:
    """Optimum's patches, then ours above them; the forward that Optimum installs takes a step's inputs, by name."""
    current = CurrentStep()
    tree = TreeModel(model, optimums.orig_forward, current, n_positions)

    def forward(
        input_ids: Any, position_ids: Any, past_lens: Any, tree_mask: Any, logit_rows: Any, past_key_values: Any
    ) -> dict[str, Any]:
        done = tree.step(StepInputs(input_ids, position_ids, past_lens, tree_mask, logit_rows, past_key_values))
        return {"logits": done.logits, "past_key_values": tuple(tuple(layer) for layer in done.present)}

    assert tuple(inspect.signature(forward).parameters) == StepInputs._fields
    optimums.patched_forward = forward
    with optimums, taught(model, current):
        yield


Tracer = Callable[[Any, StepInputs, "int | None", Path], None]
TRACERS: dict[str, Tracer] = {"dynamo": trace_with_torch, "optimum": trace_with_optimum}  # in the order they are tried
