"""What must be true of the network that TensorRT's parser made, before it is built. Owns the list; knows no ONNX.

A builder is silent about what it lost: an attention in single steps, a cache that is copied, an input that it dropped.
Attentions may not be decomposed (the default), so that one without a fused kernel fails the build by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sssd.plan import PlanInfo
from sssd.spec import EngineSpec, TensorSpec

_MASK, _LENGTHS = 3, 6  # places of IAttention's inputs
_DTYPES = {"HALF": "float16", "BF16": "bfloat16", "FLOAT": "float32", "INT64": "int64", "BOOL": "bool"}


def network_problems(trt: Any, network: Any, spec: EngineSpec, plan: PlanInfo, warnings: Sequence[str]) -> list[str]:
    """Everything that is wrong with a parsed network, one sentence each; empty when it is as promised."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    attentions = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_INPUT]
    return [
        *_counts(trt, layers, spec),
        *(problem for layer in attentions for problem in _attention_problems(layer)),
        *_cache_problems([layer for layer in layers if layer.type == trt.LayerType.KV_CACHE_UPDATE], spec),
        *_tensor_problems([network.get_input(i) for i in range(network.num_inputs)], spec.inputs, plan),
        *_tensor_problems([network.get_output(i) for i in range(network.num_outputs)], spec.outputs, plan),
        *(f"TensorRT says: {w}" for w in warnings if "unused" in w.lower()),
    ]


def _counts(trt: Any, layers: Sequence[Any], spec: EngineSpec) -> list[str]:
    n_attentions = sum(layer.type == trt.LayerType.ATTENTION_INPUT for layer in layers)
    n_updates = sum(layer.type == trt.LayerType.KV_CACHE_UPDATE for layer in layers)
    problems = []
    if n_attentions != spec.n_layers:
        problems.append(f"{n_attentions} attentions for {spec.n_layers} layers")
    if n_updates != 2 * spec.n_layers:
        problems.append(f"{n_updates} KV cache updates for {spec.n_layers} layers")
    return problems


def _attention_problems(layer: Any) -> list[str]:
    """The parser drops an input that it does not know without a word, and may put steps in front of the cache."""
    names = [tensor and tensor.name for tensor in map(layer.get_input, range(layer.num_inputs))]
    names += [None] * (_LENGTHS + 1 - len(names))
    problems = [] if names[_LENGTHS] else [f"{layer.name} has no key-value lengths"]
    problems += [] if names[_MASK] else [f"{layer.name} has no mask"]
    in_place = str(names[1]).startswith("present_k_") and str(names[2]).startswith("present_v_")
    return problems + ([] if in_place else [f"{layer.name} reads {names[1]} and {names[2]}, not the cache itself"])


def _cache_problems(updates: Sequence[Any], spec: EngineSpec) -> list[str]:
    """Every update must read past_x and write present_x, or the pair would not share its memory."""
    found = {layer.get_output(0).name: layer.get_input(0).name for layer in updates}
    names = [f"{part}_{i}" for i in range(spec.n_layers) for part in ("k", "v")]
    return [f"present_{n} is not past_{n} updated in place" for n in names if found.get(f"present_{n}") != f"past_{n}"]


def _tensor_problems(tensors: Sequence[Any], specs: Sequence[TensorSpec], plan: PlanInfo) -> list[str]:
    found = {t.name: (_DTYPES.get(t.dtype.name, t.dtype.name), tuple(t.shape)) for t in tensors}
    wanted = {s.name: _wanted(s, plan) for s in specs}
    problems = [f"{n} is missing" for n in wanted if n not in found]
    problems += [f"{n} is none of the graph's" for n in found if n not in wanted]
    both = [n for n in wanted if n in found and found[n] != wanted[n]]
    return problems + [f"{n} is {found[n]} instead of {wanted[n]}" for n in both]


def _wanted(spec: TensorSpec, plan: PlanInfo) -> tuple[str, tuple[int, ...]]:
    """Type and dimensions of a tensor in the plan; -1 for what profiles say."""
    is_cache = "S" in spec.dims
    dims = tuple(plan.cache_len if d == "S" else -1 if isinstance(d, str) else d for d in spec.dims)
    return plan.kv_dtype if is_cache else spec.dtype, dims
