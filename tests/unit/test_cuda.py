# ruff: noqa: N815 - names are CUDA's own
"""The GPU behind its seam: what the driver's answers become, and that every CUDA call is the real binding's."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sssd.engines import cuda
from sssd.engines.cuda import CudaDevice, probe
from sssd.engines.device import Grid, Pieces
from sssd.errors import EngineError, MissingExtra, OutOfMemory


class Error(IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorNoDevice = 100
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureInvalidated = 901


class FakeCuda:
    """CUDA's runtime and driver in one: every call is noted and succeeds, unless an error is set for its name."""

    cudaStreamNonBlocking = 1
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self) -> None:
        self.version = 13000
        self.gpus = [SimpleNamespace(name=b"RTX\0\0", major=8, minor=9, totalGlobalMem=20 << 30)]
        self.errors: dict[str, Error] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.host = np.zeros(4096, np.uint8)
        self.no_library = False

    def cuInit(self, flags: int) -> tuple[Error]:  # noqa: N802
        if self.no_library:
            raise RuntimeError("libcuda.so.1 was not found")
        return (Error.cudaSuccess,)

    def CUstream(self, handle: int) -> int:  # noqa: N802
        return handle

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, args))
            error = self.errors.get(name, Error.cudaSuccess)
            return (error, *self._values(name, args)) if error == 0 else (error, None)

        return call

    def _values(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        fixed: dict[str, tuple[Any, ...]] = {
            "cudaDriverGetVersion": (self.version,),
            "cudaGetDeviceCount": (len(self.gpus),),
            "cudaMemGetInfo": (5, 9),
            "cudaMallocHost": (self.host.ctypes.data,),
            "cudaMalloc": (0x1000 * (1 + len(self.calls)),),
        }
        if name == "cudaGetDeviceProperties":
            return (self.gpus[args[0]],)
        makes = ("cudaStreamCreateWithFlags", "cuModuleLoadData", "cuModuleGetFunction", "cudaStreamEndCapture")
        return fixed.get(name, (77,) if name in (*makes, "cudaGraphInstantiate") else ())

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda()
    monkeypatch.setattr(cuda, "_bindings", lambda: (made, made))
    return made


# ---- what the driver says -------------------------------------------------------------------------


def test_a_driver_with_a_gpu_has_no_problem(fake: FakeCuda) -> None:
    assert probe() == ("13.0", ((0, "RTX", "8.9", 20 << 30),), None)


def test_no_driver_is_told_and_nothing_else_is_touched(fake: FakeCuda) -> None:
    fake.no_library = True
    with pytest.raises(EngineError, match=r"there is no NVIDIA driver here: install one \(R580 or newer\), or use"):
        CudaDevice()
    assert fake.calls == []


def test_a_driver_that_is_too_old_is_told_with_both_versions(fake: FakeCuda) -> None:
    fake.version = 12040
    with pytest.raises(EngineError, match=r"driver is too old: it runs CUDA 12\.4, needed is 13\.0"):
        CudaDevice()


def test_a_driver_that_sees_no_gpu_or_does_not_answer_is_told(fake: FakeCuda) -> None:
    fake.errors["cudaGetDeviceCount"] = Error.cudaErrorNoDevice
    with pytest.raises(EngineError, match=r"sees no GPU \(cudaErrorNoDevice\): see what nvidia-smi says"):
        CudaDevice()
    fake.version = 0
    with pytest.raises(EngineError, match="does not answer"):
        CudaDevice()


def test_a_gpu_that_is_too_old_or_not_there_is_told(fake: FakeCuda) -> None:
    fake.gpus[0].major = 7
    with pytest.raises(EngineError, match=r"RTX has compute capability 7\.9: needed is 8\.0 \(Ampere\) or newer"):
        CudaDevice()
    with pytest.raises(EngineError, match="GPU 1 was asked for: this machine has 1, counted from 0"):
        CudaDevice(1)


def test_without_cuda_python_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(MissingExtra, match=r"cuda-bindings: install it with .*sssd\[gpu\]"):
        probe()


# ---- what calls become ----------------------------------------------------------------------------


@pytest.fixture
def device(fake: FakeCuda) -> CudaDevice:
    made = CudaDevice()
    fake.calls.clear()
    return made


def test_no_memory_is_out_of_memory_and_all_else_an_engine_error(fake: FakeCuda, device: CudaDevice) -> None:
    fake.errors["cudaMalloc"] = Error.cudaErrorMemoryAllocation
    with pytest.raises(OutOfMemory, match=r"RTX is out of memory \(cudaErrorMemoryAllocation\)"):
        device.allocate(100)
    fake.errors["cudaStreamSynchronize"] = Error.cudaErrorIllegalAddress
    with pytest.raises(EngineError, match="RTX failed with cudaErrorIllegalAddress"):
        device.synchronize()


def test_a_kernel_is_launched_with_the_types_that_it_was_compiled_for(fake: FakeCuda, device: CudaDevice) -> None:
    device.launch("kv_copy", Grid(2, 3, 4), 256, (0x1000, 1, 2, 3, 4, 5, 6))
    ((name, args),) = fake.calls
    assert name == "cuLaunchKernel"
    assert args[1:9] == (2, 3, 4, 256, 1, 1, 0, 77)
    assert args[9] == ((0x1000, 1, 2, 3, 4, 5, 6), (ctypes.c_void_p, *[ctypes.c_int32] * 6))


def test_a_replayed_graph_counts_its_traffic_and_capturing_counts_none(device: CudaDevice) -> None:
    pinned = device.pin(64)
    graph = device.capture(lambda: (device.upload(0x1000, pinned[:48]), device.download(pinned[:8], 0x1000)))
    assert (device.traffic.uploaded, device.traffic.downloaded) == (0, 0)
    graph.launch()
    graph.launch()
    assert (device.traffic.uploaded, device.traffic.downloaded) == (96, 16)
    graph.close()


def test_a_capture_that_fails_leaves_the_stream_free(fake: FakeCuda, device: CudaDevice) -> None:
    def work() -> None:
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        device.capture(work)
    assert fake.names() == ["cudaStreamBeginCapture", "cudaStreamEndCapture"]
    fake.errors["cudaStreamEndCapture"] = Error.cudaErrorStreamCaptureInvalidated
    with pytest.raises(EngineError, match="CaptureInvalidated"):
        device.capture(lambda: None)


def test_closing_gives_back_what_was_not(fake: FakeCuda, device: CudaDevice) -> None:
    kept, freed = device.allocate(10), device.allocate(20)
    pinned = device.pin(30)
    device.free(freed)
    fake.calls.clear()
    device.close()
    assert ("cudaFree", (kept,)) in fake.calls
    assert ("cudaFreeHost", (pinned.ctypes.data,)) in fake.calls
    assert fake.names().count("cudaFree") == 1


def test_copies_of_pieces_keep_their_pitches_apart(fake: FakeCuda, device: CudaDevice) -> None:
    device.copy(Pieces(1000, 64), Pieces(2000, 32), n_bytes=16, count=5)
    assert fake.calls == [("cudaMemcpy2DAsync", (1000, 64, 2000, 32, 16, 5, 3, 77))]


# ---- the real bindings ----------------------------------------------------------------------------


def calls_in(path: Path) -> Iterator[tuple[str, int]]:
    """(function, arguments) of every call on the runtime or the driver; *grid stands for three."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name.strip("_") in ("runtime", "driver"):
                yield node.func.attr, sum(3 if isinstance(a, ast.Starred) else 1 for a in node.args)


def test_every_call_is_one_of_cuda_pythons_with_as_many_arguments() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    driver = pytest.importorskip("cuda.bindings.driver")
    found = dict(calls_in(Path(cuda.__file__)))
    assert len(found) > 20
    for name, n in found.items():
        real = getattr(runtime, name, None) or getattr(driver, name, None)
        assert real is not None, name
        signature = re.match(rf"{name}\((.*?)\)$", (real.__doc__ or "").splitlines()[0])
        if signature is not None and not isinstance(real, type):
            parameters = re.sub(r"\[.*?\]", "", signature[1])
            assert n == (len(parameters.split(",")) if parameters else 0), name
    for name in ("cudaStreamNonBlocking", "cudaMemcpyKind", "cudaStreamCaptureMode"):
        assert hasattr(runtime, name)
    assert runtime.cudaError_t.cudaErrorMemoryAllocation.name == "cudaErrorMemoryAllocation"
    assert driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY.name == "CUDA_ERROR_OUT_OF_MEMORY"
