"""From a bundle's portable graph to a plan beside it. Owns the order, and what a bundle must be like; nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sssd.errors import ExportError, MissingExtra
from sssd.export.half import HalfType
from sssd.export.tensorrt.builder import EXTRAS, LEAST_VERSIONS, MODULES, BuildJob
from sssd.export.tensorrt.gpu import compute_capability
from sssd.export.tensorrt.profiles import cache_length, plan_profiles
from sssd.export.tensorrt.rewrite import require_head_size, tensorrt_graph
from sssd.export.tensorrt.worker import build_apart
from sssd.plan import PORTABLE, PlanInfo, PlanOptions
from sssd.spec import GRAPH, Manifest

Progress = Callable[[str, int, int], None]  # (stage, done so far, in all)
_AGAIN = "export it again from its checkpoint with --target tensorrt"


def require_builder(options: PlanOptions) -> None:
    """Before anything is read or written. Raises MissingExtra, or ExportError where full TensorRT has no GPU."""
    if find_spec(MODULES[options.flavour]) is None:
        raise MissingExtra(MODULES[options.flavour], EXTRAS[options.flavour])
    found, least = import_module(MODULES[options.flavour]).__version__, LEAST_VERSIONS[options.flavour]
    if tuple(map(int, found.split(".")[:2])) < least:
        raise ExportError(
            f"{MODULES[options.flavour]} {found} is too old: attention with key-value lengths needs "
            f"{least[0]}.{least[1]} or newer; pip install 'sssd[{EXTRAS[options.flavour]}]'"
        )
    _capability(options)


def add_plan(
    directory: Path, name: str, manifest: Manifest, options: PlanOptions, max_len: int | None, progress: Progress
) -> Manifest:
    """Write NAME.trt.onnx and NAME.plan into a bundle's directory; returns the manifest that tells of them.

    `max_len` is the most tokens that a slot may hold, by default as many as the graph allows.

    Raises ExportError, UnsupportedModel or MissingExtra.
    """
    job = prepare_job(directory, name, manifest, options, max_len or manifest.spec.max_len)
    build_apart(job, lambda phase, done, of: progress(f"TensorRT: {phase}", done, of))
    return replace(manifest, plan=job.plan, tools=manifest.tools | {MODULES[options.flavour]: job.plan.version})


def prepare_job(directory: Path, name: str, manifest: Manifest, options: PlanOptions, max_len: int) -> BuildJob:
    """Write NAME.trt.onnx and say what is to be built of it. Raises as add_plan."""
    from onnx import load

    if manifest.decoder is not None:
        require_head_size(manifest.decoder)
    portable = load(directory / GRAPH, load_external_data=False)
    half = _half_type(portable)
    plan = _plan(name, manifest, options, max_len, half)
    (directory / plan.graph).write_bytes(tensorrt_graph(portable, half, plan.cache_len).SerializeToString())
    return BuildJob(str(directory), plan, manifest.spec, _timing_cache(plan))


def _plan(name: str, manifest: Manifest, options: PlanOptions, max_len: int, half: HalfType) -> PlanInfo:
    spec, profiles = manifest.spec, plan_profiles(options)
    if spec.scores != "topk":
        raise ExportError(f"its graph gives all logits, which would cross the bus in every step: {_AGAIN}")
    if max_len > spec.max_len:
        raise ExportError(f"max_len {max_len} is not possible: the bundle's graph goes to {spec.max_len}; {_AGAIN}")
    return PlanInfo(
        file=f"{name}.plan",
        graph=f"{name}.trt.onnx",
        flavour=options.flavour,
        version=import_module(MODULES[options.flavour]).__version__,
        compute_capability=_capability(options),
        profiles=profiles,
        n_slots=options.n_slots,
        max_len=max_len,
        cache_len=cache_length(max_len, profiles),
        max_width=options.max_width,
        chunk=options.chunk,
        kv_dtype=half,
    )


def _capability(options: PlanOptions) -> str:
    return PORTABLE if options.flavour == "rtx" else compute_capability()


def _half_type(portable: Any) -> HalfType:
    """The 16-bit type that the graph's weights are stored in. Raises ExportError for weights of other targets."""
    from onnx import TensorProto

    kinds = {t.data_type for t in portable.graph.initializer if t.external_data}
    if kinds & {TensorProto.UINT8, TensorProto.UINT4}:
        raise ExportError(f"its weights have zero points, which TensorRT does not know: {_AGAIN}")
    if TensorProto.BFLOAT16 in kinds:
        return "bfloat16"
    if TensorProto.FLOAT16 in kinds:
        return "float16"
    raise ExportError(f"its weights are float32, which TensorRT has no fused attention for: {_AGAIN}")


def _timing_cache(plan: PlanInfo) -> str | None:
    """Timings of kernels stay valid for one GPU and one version. RTX chooses its kernels where the plan runs."""
    if plan.flavour == "rtx":
        return None
    name = f"tensorrt-{plan.version}-sm{plan.compute_capability}.timing"
    return str(Path.home() / ".cache" / "sssd" / name)
