"""The device kernels: their compiled form (PTX), which the package ships, and how they are called.

commit.cu says what each does; scripts/make_kernels.py compiles it. Knows no device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

Argument = Literal["address", "int32"]


class Kernel(NamedTuple):
    """A kernel's name in the PTX, and what it is called with."""

    name: str
    arguments: tuple[Argument, ...]


ACCEPT = Kernel("accept_greedy", ("address",) * 7 + ("int32",) * 3)
COMMIT = Kernel("kv_commit", ("address",) * 4 + ("int32",) * 5)
COPY = Kernel("kv_copy", ("address",) + ("int32",) * 6)
KERNELS = {kernel.name: kernel for kernel in (ACCEPT, COMMIT, COPY)}

SOURCE = Path(__file__).with_name("commit.cu")
PTX = Path(__file__).with_name("commit.ptx")


def ptx() -> bytes:
    """The compiled kernels, ending in the zero byte that drivers want."""
    return PTX.read_bytes() + b"\0"
