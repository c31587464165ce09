"""An NVIDIA GPU behind the device seam, through cuda-python. Owns every call of CUDA; knows no model.

The driver is probed before anything else touches CUDA: constructing a TensorRT runtime without one ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from sssd.engines.device import Graph, Grid, Memory, Pieces, Traffic
from sssd.engines.kernels import KERNELS, ptx
from sssd.errors import EngineError, MissingExtra, OutOfMemory
from sssd.types import Uint8

LEAST_DRIVER = (13, 0)  # the CUDA version of ONNX Runtime, of TensorRT and of the kernels' PTX
LEAST_CAPABILITY = (8, 0)
_TYPES = {"address": ctypes.c_void_p, "int32": ctypes.c_int32}


class Gpu(NamedTuple):
    """A GPU that the driver sees."""

    number: int  # counted from 0
    name: str
    compute_capability: str  # "9.0"
    memory: int  # bytes


class Probe(NamedTuple):
    """What the driver says; nothing else of CUDA was touched."""

    driver: str | None  # the newest CUDA version that it runs, such as "13.0"; None without one
    gpus: tuple[Gpu, ...]
    problem: str | None  # why nothing can run here, and what to do; None where something can


def probe() -> Probe:
    """Ask the driver. Never raises for what is wrong with it. Raises MissingExtra without cuda-python."""
    runtime, driver = _bindings()
    try:
        driver.cuInit(0)
    except Exception:  # cuda-python has an exception of its own for a driver library that is not there
        return Probe(None, (), "there is no NVIDIA driver here: install one (R580 or newer), or use --device cpu")
    error, version = runtime.cudaDriverGetVersion()
    if _failed(error) or not version:
        return Probe(None, (), "the NVIDIA driver does not answer: reinstall it (R580 or newer), or use --device cpu")
    found = (version // 1000, version % 1000 // 10)
    told = f"{found[0]}.{found[1]}"
    if found < LEAST_DRIVER:
        least = f"{LEAST_DRIVER[0]}.{LEAST_DRIVER[1]}"
        return Probe(told, (), f"the NVIDIA driver is too old: it runs CUDA {told}, needed is {least} (driver R580)")
    error, count = runtime.cudaGetDeviceCount()
    if _failed(error) or not count:
        return Probe(told, (), f"the NVIDIA driver sees no GPU ({_name(runtime, error)}): see what nvidia-smi says")
    return Probe(told, tuple(_gpu(runtime, i) for i in range(count)), None)


def _gpu(runtime: Any, index: int) -> Gpu:
    error, properties = runtime.cudaGetDeviceProperties(index)
    if _failed(error):
        return Gpu(index, _name(runtime, error), "0.0", 0)
    name = properties.name.decode(errors="replace").rstrip("\0")
    return Gpu(index, name, f"{properties.major}.{properties.minor}", int(properties.totalGlobalMem))


def _bindings() -> tuple[Any, Any]:
    try:
        from cuda.bindings import driver, runtime
    except ImportError:
        raise MissingExtra("cuda-bindings", "gpu") from None
    return runtime, driver


def _failed(error: Any) -> bool:
    return int(error) != 0


def _name(runtime: Any, error: Any) -> str:
    return getattr(error, "name", str(error))


class CudaDevice:
    """A GPU. Raises EngineError where there is none that can be used, or MissingExtra."""

    def __init__(self, index: int = 0) -> None:
        probed = probe()
        if probed.problem is not None:
            raise EngineError(probed.problem)
        if index >= len(probed.gpus):
            raise EngineError(f"GPU {index} was asked for: this machine has {len(probed.gpus)}, counted from 0")
        self._gpu = probed.gpus[index]
        if tuple(map(int, self._gpu.compute_capability.split("."))) < LEAST_CAPABILITY:
            raise EngineError(
                f"{self._gpu.name} has compute capability {self._gpu.compute_capability}: needed is 8.0 (Ampere) or "
                "newer; use --device cpu"
            )
        self._runtime, self._driver = _bindings()
        self._thread: int | None = None
        self.use()
        (self._stream,) = self._call(self._runtime.cudaStreamCreateWithFlags(self._runtime.cudaStreamNonBlocking))
        self._ptx = np.frombuffer(ptx(), np.uint8)
        (self._module,) = self._call(self._driver.cuModuleLoadData(self._ptx.ctypes.data))
        self._kernels = {
            name: self._call(self._driver.cuModuleGetFunction(self._module, name.encode()))[0] for name in KERNELS
        }
        self.traffic = Traffic()
        self._allocated: set[int] = set()
        self._pinned: set[int] = set()

    @property
    def name(self) -> str:
        """What a user calls the GPU."""
        return self._gpu.name

    @property
    def kind(self) -> str:
        """ONNX Runtime's word for where its memory is."""
        return "cuda"

    @property
    def compute_capability(self) -> str:
        """Such as "9.0"."""
        return self._gpu.compute_capability

    @property
    def stream(self) -> int:
        """The stream's handle."""
        return int(self._stream)

    def use(self) -> None:
        """Make this GPU the calling thread's."""
        if self._thread != get_ident():
            self._call(self._runtime.cudaSetDevice(self._gpu.number))
            self._thread = get_ident()

    def memory(self) -> Memory:
        """What is free and what there is."""
        free, total = self._call(self._runtime.cudaMemGetInfo())
        return Memory(int(free), int(total))

    def allocate(self, n_bytes: int) -> int:
        """New memory; cudaMalloc aligns it to 256 bytes. Raises OutOfMemory."""
        (address,) = self._call(self._runtime.cudaMalloc(n_bytes))
        self._allocated.add(int(address))
        return int(address)

    def free(self, address: int) -> None:
        """Give memory back."""
        self._call(self._runtime.cudaFree(address))
        self._allocated.remove(address)

    def pin(self, n_bytes: int) -> Uint8:
        """New page-locked host memory, uint8 [n_bytes]."""
        (address,) = self._call(self._runtime.cudaMallocHost(n_bytes))
        self._pinned.add(int(address))
        return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(int(address)))

    def unpin(self, array: Uint8) -> None:
        """Give page-locked memory back."""
        self._call(self._runtime.cudaFreeHost(array.ctypes.data))
        self._pinned.remove(array.ctypes.data)

    def zero(self, address: int, n_bytes: int) -> None:
        """Enqueue clearing memory."""
        self._call(self._runtime.cudaMemsetAsync(address, 0, n_bytes, self._stream))

    def upload(self, address: int, source: Uint8) -> None:
        """Enqueue a copy from page-locked memory."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call(self._runtime.cudaMemcpyAsync(address, source.ctypes.data, source.nbytes, kind, self._stream))
        self.traffic.uploaded += source.nbytes

    def download(self, target: Uint8, address: int) -> None:
        """Enqueue a copy to page-locked memory."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call(self._runtime.cudaMemcpyAsync(target.ctypes.data, address, target.nbytes, kind, self._stream))
        self.traffic.downloaded += target.nbytes

    def copy(self, target: Pieces, source: Pieces, *, n_bytes: int, count: int) -> None:
        """Enqueue copying the first n_bytes of `count` pieces."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call(
            self._runtime.cudaMemcpy2DAsync(
                target.address, target.pitch, source.address, source.pitch, n_bytes, count, kind, self._stream
            )
        )

    def launch(self, kernel: str, grid: Grid, threads: int, args: Sequence[int]) -> None:
        """Enqueue one of the kernels."""
        types = tuple(_TYPES[a] for a in KERNELS[kernel].arguments)
        assert len(types) == len(args), kernel
        function, stream = self._kernels[kernel], self._driver.CUstream(self.stream)
        self._call(self._driver.cuLaunchKernel(function, *grid, threads, 1, 1, 0, stream, (tuple(args), types), 0))

    def capture(self, work: Callable[[], None]) -> Graph:
        """What `work` enqueues, captured and not run."""
        mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        before = Traffic(self.traffic.uploaded, self.traffic.downloaded)
        self._call(self._runtime.cudaStreamBeginCapture(self._stream, mode))
        try:
            work()
        finally:  # a stream left in capture could do nothing else
            ended = self._runtime.cudaStreamEndCapture(self._stream)
        (graph,) = self._call(ended)
        try:
            (executable,) = self._call(self._runtime.cudaGraphInstantiate(graph, 0))
        finally:
            self._runtime.cudaGraphDestroy(graph)
        crossed = Traffic(self.traffic.uploaded - before.uploaded, self.traffic.downloaded - before.downloaded)
        self.traffic.uploaded, self.traffic.downloaded = before.uploaded, before.downloaded
        return _CudaGraph(self, executable, crossed)

    def synchronize(self) -> None:
        """Wait until all that was enqueued has run."""
        self._call(self._runtime.cudaStreamSynchronize(self._stream))

    def close(self) -> None:
        """Release everything; what a lost device cannot release any more is passed over."""
        self._runtime.cudaStreamSynchronize(self._stream)
        for address in self._allocated:
            self._runtime.cudaFree(address)
        for address in self._pinned:
            self._runtime.cudaFreeHost(address)
        self._allocated.clear()
        self._pinned.clear()
        self._driver.cuModuleUnload(self._module)
        self._runtime.cudaStreamDestroy(self._stream)

    def launch_graph(self, executable: Any, crossed: Traffic) -> None:
        """Enqueue a captured graph; for `Graph.launch`."""
        self._call(self._runtime.cudaGraphLaunch(executable, self._stream))
        self.traffic.uploaded += crossed.uploaded
        self.traffic.downloaded += crossed.downloaded

    def close_graph(self, executable: Any) -> None:
        """Release a captured graph; for `Graph.close`."""
        self._runtime.cudaGraphExecDestroy(executable)

    def _call(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of a CUDA call, which are a tuple whose first item is the error code."""
        error, *values = result
        if not _failed(error):
            return tuple(values)
        name = _name(self._runtime, error)
        if name in ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"):
            raise OutOfMemory(f"{self.name} is out of memory ({name})")
        raise EngineError(f"{self.name} failed with {name}")


class _CudaGraph:
    def __init__(self, device: CudaDevice, executable: Any, crossed: Traffic) -> None:
        self._device = device
        self._executable = executable
        self._crossed = crossed

    def launch(self) -> None:
        self._device.launch_graph(self._executable, self._crossed)

    def close(self) -> None:
        self._device.close_graph(self._executable)
