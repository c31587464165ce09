"""Engines by name: a bundle and a device become an Engine. The only file of the engines that knows all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from sssd.engines.base import Engine
from sssd.engines.device import Device
from sssd.engines.resident import Executor
from sssd.errors import EngineError
from sssd.plan import PlanInfo
from sssd.spec import Bundle, EngineSpec

# where a bundle runs: ONNX Runtime on the CPU, on a GPU, on a GPU with captured graphs; TensorRT
DeviceName = Literal["cpu", "cuda", "cuda-graphs", "tensorrt"]


def choose_device(bundle: Bundle, device: str | None) -> DeviceName:
    """The device that was asked for, or the one that the bundle was made for. Raises EngineError."""
    if device is None and bundle.manifest.plan is not None:
        return "tensorrt"
    if device is None:
        return "cpu" if bundle.spec.kv_dtype == "float32" else "cuda"
    for name in get_args(DeviceName):
        if device == name:
            return name  # type: ignore[no-any-return]
    raise EngineError(f"device is {device!r}: allowed are {', '.join(get_args(DeviceName))}")


def open_engine(bundle: Bundle, *, n_slots: int, device: str | None = None, threads: int = 0) -> Engine:
    """Start the engine of a bundle. `threads` is the CPU's alone.

    Raises EngineError for a device that is not here, OutOfMemory saying how many slots fit, BundleError and its kinds
    for a graph or a plan that does not load, MissingExtra. There is no silent fallback to another device.
    """
    name = choose_device(bundle, device)
    if name == "cpu":
        from sssd.engines.ort import OrtEngine

        return OrtEngine(bundle, n_slots=n_slots, threads=threads)
    from sssd.engines.cuda import CudaDevice
    from sssd.engines.resident import ResidentEngine

    if name == "tensorrt":
        _require_plan(bundle)
    gpu = CudaDevice()
    try:
        spec = on_a_gpu(bundle.spec, bundle.manifest.plan if name == "tensorrt" else None)
        return ResidentEngine(spec, gpu, _executor(bundle, name, gpu), n_slots=n_slots)
    except BaseException:
        gpu.close()
        raise


def on_a_gpu(spec: EngineSpec, plan: PlanInfo | None) -> EngineSpec:
    """The spec of a bundle on another device than the CPU that it was measured on; a plan has limits of its own.

    How far scores behind a branch are off is not known there, so no choice is made there: trees are cut to their first
    path, unless the user allows other bits.
    """
    if plan is not None:
        spec = replace(spec, max_len=plan.max_len, kv_dtype=plan.kv_dtype)
    return replace(spec, branch_noise=None)


def _executor(bundle: Bundle, name: DeviceName, gpu: Device) -> Executor:
    plan = bundle.manifest.plan
    if name == "tensorrt":
        from sssd.engines.trt import TrtExecutor, load_tensorrt

        assert plan is not None
        return TrtExecutor(bundle, plan, gpu, load_tensorrt(plan.flavour))
    from sssd.engines.ort_cuda import OrtExecutor

    return OrtExecutor(bundle, gpu, cuda_graphs=name == "cuda-graphs")


def _require_plan(bundle: Bundle) -> None:
    if bundle.manifest.plan is None:
        raise EngineError(
            f"{bundle.path} has no TensorRT plan: export its model with --target tensorrt, or use --device cpu"
        )
