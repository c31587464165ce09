"""Engines by name: a bundle and a device become an Engine. The only file of the engines that knows all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from sssd.engines.base import Engine
from sssd.errors import EngineError
from sssd.spec import Bundle, EngineSpec

# where a bundle runs: ONNX Runtime on the CPU, on a GPU, on a GPU with captured graphs
DeviceName = Literal["cpu", "cuda", "cuda-graphs"]


def choose_device(bundle: Bundle, device: str | None) -> DeviceName:
    """The device that was asked for, or the bundle's own. Raises EngineError."""
    if device is None:
        return "cpu"
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
    from sssd.engines.ort_cuda import OrtExecutor
    from sssd.engines.resident import ResidentEngine

    gpu = CudaDevice()
    try:
        executor = OrtExecutor(bundle, gpu, cuda_graphs=name == "cuda-graphs")
        return ResidentEngine(on_a_gpu(bundle.spec), gpu, executor, n_slots=n_slots)
    except BaseException:
        gpu.close()
        raise


def on_a_gpu(spec: EngineSpec) -> EngineSpec:
    """The spec of a bundle on another device than the CPU that it was measured on.

    How far scores behind a branch are off is not known there, so no choice is made there: trees are cut to their first
    path, unless the user allows other bits.
    """
    return replace(spec, branch_noise=None)
