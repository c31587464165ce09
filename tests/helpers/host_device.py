"""A Device whose memory is the host's: addresses are real, kernels emulated, every access must lie in an allocation.

With `lazy`, work is queued and runs when the stream is waited for, so that what forgets to wait reads old bytes;
without, it runs at once, for libraries that run at once too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from sssd.engines.device import Graph, Grid, Memory, Pieces, Traffic
from sssd.engines.kernels import KERNELS
from sssd.errors import EngineError, OutOfMemory
from sssd.types import Uint8
from tests.helpers import emulated

_ARRAYS: dict[str, tuple[Any, ...]] = {
    "accept_greedy": (np.int64, np.int32, np.int32, np.int32, np.int64, np.int32, np.int32),
    "kv_commit": (np.uint32, np.int64, np.int32, np.int32),
    "kv_copy": (np.uint32,),
}


class HostDevice:
    """`capacity` is its memory in bytes."""

    name = "fake GPU"
    kind = "cpu"
    compute_capability = "9.0"
    stream = 7

    def __init__(self, *, capacity: int = 1 << 30, lazy: bool = True) -> None:
        self.capacity = capacity
        self.lazy = lazy
        self.memories: dict[int, Uint8] = {}  # address -> bytes
        self.pinned: dict[int, Uint8] = {}
        self.traffic = Traffic()
        self.queue: list[Callable[[], None]] = []
        self.capturing: list[Callable[[], None]] | None = None
        self.launched_graphs = 0
        self.failure: str | None = None  # what the next wait raises, and every one after it
        self.capture_fails = False
        self.used_by: int | None = None  # the thread that has made this GPU its own
        self.closed = False

    def use(self) -> None:
        self.used_by = get_ident()

    def memory(self) -> Memory:
        return Memory(self.capacity - sum(m.nbytes for m in self.memories.values()), self.capacity)

    def allocate(self, n_bytes: int) -> int:
        assert self.capturing is None, "no allocation while capturing"
        if n_bytes > self.memory().free:
            raise OutOfMemory(f"{self.name} is out of memory")
        raw = np.full(n_bytes + 256, 0xAB, np.uint8)
        start = -raw.ctypes.data % 256
        aligned = raw[start : start + n_bytes]
        self.memories[aligned.ctypes.data] = aligned
        return int(aligned.ctypes.data)

    def free(self, address: int) -> None:
        assert not self.queue, "memory is given back while work may use it"
        del self.memories[address]

    def pin(self, n_bytes: int) -> Uint8:
        array = np.full(n_bytes, 0xCD, np.uint8)
        self.pinned[array.ctypes.data] = array
        return array

    def unpin(self, array: Uint8) -> None:
        del self.pinned[array.ctypes.data]

    def at(self, address: int, n_bytes: int) -> Uint8:
        """Memory by address; what reaches out of an allocation is an error."""
        for start, memory in self.memories.items():
            if start <= address and address + n_bytes <= start + memory.nbytes:
                return memory[address - start : address - start + n_bytes]
        raise AssertionError(f"{n_bytes} bytes at {address:#x} lie in no allocation")

    def rest(self, address: int) -> Uint8:
        """Memory from an address to the end of its allocation."""
        for start, memory in self.memories.items():
            if start <= address < start + memory.nbytes:
                return memory[address - start :]
        raise AssertionError(f"{address:#x} lies in no allocation")

    def zero(self, address: int, n_bytes: int) -> None:
        self._enqueue(lambda: self.at(address, n_bytes).fill(0))

    def upload(self, address: int, source: Uint8) -> None:
        self._require_pinned(source)

        def work() -> None:
            self.at(address, source.nbytes)[:] = source
            self.traffic.uploaded += source.nbytes

        self._enqueue(work)

    def download(self, target: Uint8, address: int) -> None:
        self._require_pinned(target)

        def work() -> None:
            target[:] = self.at(address, target.nbytes)
            self.traffic.downloaded += target.nbytes

        self._enqueue(work)

    def copy(self, target: Pieces, source: Pieces, *, n_bytes: int, count: int) -> None:
        def work() -> None:
            for i in range(count):
                piece = self.at(source.address + i * source.pitch, n_bytes)
                self.at(target.address + i * target.pitch, n_bytes)[:] = piece

        self._enqueue(work)

    def launch(self, kernel: str, grid: Grid, threads: int, args: Sequence[int]) -> None:
        kinds = KERNELS[kernel].arguments
        assert len(kinds) == len(args)
        assert all(abs(a) < 2**31 for a, kind in zip(args, kinds, strict=True) if kind == "int32")
        dtypes = _ARRAYS[kernel]

        def work() -> None:
            arrays = [_whole(self.rest(a), t) for a, t in zip(args, dtypes, strict=False)]
            emulated.run(getattr(emulated, kernel), grid, threads, *arrays, *args[len(dtypes) :])

        self._enqueue(work)

    def enqueue(self, work: Callable[[], None]) -> None:
        """For a fake library that runs on the stream."""
        self._enqueue(work)

    def capture(self, work: Callable[[], None]) -> Graph:
        assert self.capturing is None
        if self.capture_fails:
            raise EngineError("fake GPU failed with cudaErrorStreamCaptureUnsupported")
        self.capturing = []
        try:
            work()
            return _HostGraph(self, self.capturing)
        finally:
            self.capturing = None

    def synchronize(self) -> None:
        if self.failure is not None:
            self.queue.clear()
            raise EngineError(self.failure)
        for work in self.queue:
            work()
        self.queue.clear()

    def close(self) -> None:
        self.closed = True
        self.memories.clear()
        self.pinned.clear()

    def _enqueue(self, work: Callable[[], None]) -> None:
        assert not self.closed
        assert self.used_by in (None, get_ident()), "this thread has not asked for the GPU"
        if self.capturing is not None:
            self.capturing.append(work)
        elif self.lazy:
            self.queue.append(work)
        else:
            work()

    def _require_pinned(self, array: Uint8) -> None:
        address = array.ctypes.data
        assert any(a <= address and address + array.nbytes <= a + p.nbytes for a, p in self.pinned.items()), (
            "copies go through page-locked memory"
        )


class _HostGraph:
    def __init__(self, device: HostDevice, work: list[Callable[[], None]]) -> None:
        self._device = device
        self._work = work
        self.closed = False

    def launch(self) -> None:
        assert not self.closed
        self._device.launched_graphs += 1
        self._device.queue.extend(self._work)

    def close(self) -> None:
        self.closed = True


def _whole(memory: Uint8, dtype: Any) -> npt.NDArray[Any]:
    size = np.dtype(dtype).itemsize
    return memory[: memory.nbytes // size * size].view(dtype)


def host_array(address: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """A numpy array over memory at an address."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(address)).view(dtype).reshape(shape)
