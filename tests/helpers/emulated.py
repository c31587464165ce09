"""The device kernels line by line in Python: blocks and threads, on memory given as numpy arrays.

Given an `order`, threads run one random step after the other: a kernel that needed an order among threads would come
out differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.engines.device import Grid

Ints = npt.NDArray[np.integer[Any]]


class Thread(NamedTuple):
    """Where a thread stands: blockIdx, gridDim, threadIdx.x and blockDim.x."""

    x: int
    y: int
    z: int
    grid: Grid
    lane: int
    lanes: int


def threads(grid: Grid, lanes: int) -> Iterator[Thread]:
    for z in range(grid.z):
        for y in range(grid.y):
            for x in range(grid.x):
                for lane in range(lanes):
                    yield Thread(x, y, z, grid, lane, lanes)


def run(
    kernel: Callable[..., Iterator[None]], grid: Grid, lanes: int, *args: Any, order: np.random.Generator | None = None
) -> None:
    """Run every thread to its end, mixed in a random order or one after the other."""
    if order is None:
        for t in threads(grid, lanes):
            for _ in kernel(t, *args):
                pass
        return
    alive = [kernel(t, *args) for t in threads(grid, lanes)]
    while alive:
        chosen = int(order.integers(len(alive)))
        if next(alive[chosen], StopIteration) is StopIteration:
            alive[chosen] = alive[-1]
            alive.pop()


def accept_greedy(
    t: Thread,
    input_ids: Ints,
    parents: Ints,
    n_forced: Ints,
    n_nodes: Ints,
    next_ids: Ints,
    keep: Ints,
    n_keep: Ints,
    rows: int,
    width: int,
    scored: int,
) -> Iterator[None]:
    b = t.x * t.lanes + t.lane
    if b >= rows:
        return
    root = n_forced[b] - 1
    for i in range(root + 1):
        keep[b * width + i] = i
    node = root
    kept = root + 1
    for c in range(root + 1, n_nodes[b]):
        is_child = parents[b * width + c] == node
        if is_child and input_ids[b * width + c] == next_ids[b * scored + node - root]:
            node = c
            keep[b * width + kept] = c
            kept += 1
        yield
    n_keep[b] = kept


def kv_commit(
    t: Thread,
    kv: Ints,
    past_lens: Ints,
    keep: Ints,
    n_keep: Ints,
    width: int,
    first_slot: int,
    slots: int,
    cache_len: int,
    words: int,
) -> Iterator[None]:
    b = t.y
    head = (t.z * slots + first_slot + b) * t.grid.x + t.x
    columns = (head * cache_len + past_lens[b]) * words
    for w in range(t.lane, words, t.lanes):
        for j in range(n_keep[b]):
            source = keep[b * width + j]
            if source != j:
                kv[columns + j * words + w] = kv[columns + source * words + w]
            yield


def kv_copy(t: Thread, kv: Ints, src: int, dst: int, n: int, slots: int, cache_len: int, words: int) -> Iterator[None]:
    per_head = cache_len * words
    part = t.z * slots
    source = ((part + src) * t.grid.x + t.x) * per_head
    target = ((part + dst) * t.grid.x + t.x) * per_head
    step = t.grid.y * t.lanes
    for i in range(t.y * t.lanes + t.lane, n * words, step):
        kv[target + i] = kv[source + i]
        yield
