"""What an engine needs of a GPU: one stream, memory by address, the kernels, captured graphs. Owns that seam.

Knows no model and no ONNX. `cuda.CudaDevice` is the GPU; tests put host memory behind the same calls. What is enqueued
runs in order, and only `synchronize` waits. A call may raise EngineError for what went wrong in an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sssd.types import TensorShape, Uint8

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}


def item_bytes(dtype: str) -> int:
    """Bytes of one item of a dtype, by its name."""
    return _ITEM_BYTES[dtype]


class Memory(NamedTuple):
    """Device memory, in bytes."""

    free: int
    total: int


class Grid(NamedTuple):
    """Blocks of a launch."""

    x: int
    y: int = 1
    z: int = 1


class Pieces(NamedTuple):
    """Equal pieces of memory, the same distance apart."""

    address: int
    pitch: int  # bytes from the start of one to the start of the next


class Tensor(NamedTuple):
    """A contiguous tensor in device memory."""

    name: str
    dtype: str
    shape: TensorShape
    address: int

    @property
    def n_bytes(self) -> int:
        """Bytes that it takes."""
        n = item_bytes(self.dtype)
        for dim in self.shape:
            n *= dim
        return n


class Graph(Protocol):
    """Work that was captured once and can be enqueued again by one call."""

    def launch(self) -> None:
        """Enqueue all of it."""

    def close(self) -> None:
        """Release it."""


@dataclass(slots=True)
class Traffic:
    """Bytes that crossed the bus since the device was opened."""

    uploaded: int = 0
    downloaded: int = 0


class Device(Protocol):
    """One GPU and one stream. Not safe for use from two threads at once."""

    @property
    def name(self) -> str:
        """What a user calls the GPU."""

    @property
    def kind(self) -> str:
        """ONNX Runtime's word for where its memory is: "cuda", or "cpu" for a fake."""

    @property
    def compute_capability(self) -> str:
        """Such as "9.0"."""

    @property
    def stream(self) -> int:
        """The stream's handle, for libraries that enqueue on it."""

    @property
    def traffic(self) -> Traffic:
        """Counts itself up with every upload and download, replayed ones too."""

    def use(self) -> None:
        """Make this GPU the calling thread's; what is not called from the thread that opened it begins with this."""

    def memory(self) -> Memory:
        """What is free and what there is."""

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory, a multiple of 256. Raises OutOfMemory."""

    def free(self, address: int) -> None:
        """Give memory back; nothing enqueued may still use it."""

    def pin(self, n_bytes: int) -> Uint8:
        """New page-locked host memory, uint8 [n_bytes]: what uploads and downloads go through."""

    def unpin(self, array: Uint8) -> None:
        """Give page-locked memory back."""

    def zero(self, address: int, n_bytes: int) -> None:
        """Enqueue clearing memory."""

    def upload(self, address: int, source: Uint8) -> None:
        """Enqueue a copy from page-locked memory, which must stay as it is until the stream has passed."""

    def download(self, target: Uint8, address: int) -> None:
        """Enqueue a copy to page-locked memory."""

    def copy(self, target: Pieces, source: Pieces, *, n_bytes: int, count: int) -> None:
        """Enqueue copying the first n_bytes of `count` pieces."""

    def launch(self, kernel: str, grid: Grid, threads: int, args: Sequence[int]) -> None:
        """Enqueue one of `kernels.KERNELS`."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """What `work` enqueues, captured and not run. Raises EngineError where it cannot be captured."""

    def synchronize(self) -> None:
        """Wait until all that was enqueued has run. Raises EngineError for what failed in it."""

    def close(self) -> None:
        """Release the stream and all memory that was not given back."""
