"""How a batch gets to the device and its scores back: one pinned block each way. Owns their layout; knows no graph.

All of a step's inputs cross in one copy, and all that is wanted of its outputs in another:

    up    input_ids position_ids past_lens logit_rows tree_mask parents n_forced n_nodes
    down  next_ids keep n_keep | scores, which cross when a row reads them
    table past_lens keep n_keep: what a commit keeps, where the device has not decided it

Where a field stands follows from the batch's shape alone, so a captured graph finds its tensors again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.engines.device import Device, Tensor
from sssd.engines.slab import Keeps
from sssd.spec import EngineSpec
from sssd.types import EngineOutput, Int32, TensorShape, Uint8, VerifyBatch

_ALIGNMENT = 256
_GRAPH_INPUTS = 5  # of the fields that go up
_SCORES = 3  # of the fields that come down, those before the scores
_DTYPES = {"bool": np.bool_, "int32": np.int32, "int64": np.int64, "float32": np.float32}


class BatchShape(NamedTuple):
    """The shape of a forward."""

    rows: int
    width: int  # columns of a row
    scored: int  # scored columns of a row


class Described(NamedTuple):
    """A field before it has a place."""

    name: str
    dtype: str
    shape: TensorShape


def place(described: Sequence[Described], start: int) -> tuple[Tensor, ...]:
    """The fields one behind the other from the address `start` on, each aligned."""
    placed = []
    for field in described:
        placed.append(Tensor(*field, start))
        start = -(-(start + placed[-1].n_bytes) // _ALIGNMENT) * _ALIGNMENT
    return tuple(placed)


class Block:
    """Page-locked host memory and as much device memory."""

    def __init__(self, device: Device, n_bytes: int) -> None:
        self._device = device
        self.host: Uint8 = device.pin(n_bytes)
        self.address = device.allocate(n_bytes)

    def array(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A field's host side; writing to it changes what the next upload carries."""
        start = tensor.address - self.address
        flat = self.host[start : start + tensor.n_bytes]
        return flat.view(_DTYPES[tensor.dtype]).reshape(tensor.shape)

    def upload(self, last: Tensor) -> None:
        """Enqueue copying everything up to the end of a field."""
        self._device.upload(self.address, self.host[: self._end(last)])

    def download(self, last: Tensor) -> None:
        """Enqueue copying back everything up to the end of a field."""
        self._device.download(self.host[: self._end(last)], self.address)

    def close(self) -> None:
        """Give both back."""
        self._device.free(self.address)
        self._device.unpin(self.host)

    def _end(self, last: Tensor) -> int:
        return last.address - self.address + last.n_bytes


class Staging:
    """The blocks of one engine. `reserve` a shape before it is used."""

    def __init__(self, device: Device, spec: EngineSpec) -> None:
        self._device = device
        self._spec = spec
        self._up = Block(device, _ALIGNMENT)
        self._down = Block(device, _ALIGNMENT)
        self._table = Block(device, _ALIGNMENT)

    def reserve(self, shape: BatchShape) -> bool:
        """Make room for a shape; True when addresses have changed. Raises OutOfMemory."""
        moved = False
        for name, described in (("_up", self._fields_up(shape)), ("_down", self._fields_down(shape))):
            block: Block = getattr(self, name)
            if block.host.nbytes < (needed := n_bytes(described)):
                setattr(self, name, Block(self._device, needed))
                self._device.synchronize()
                block.close()
                moved = True
        return moved

    def tensors(self, shape: BatchShape) -> tuple[Tensor, ...]:
        """The graph's inputs and outputs, but for the cache."""
        down = self._places_down(shape)
        return (*self._places_up(shape)[:_GRAPH_INPUTS], down[0], *down[_SCORES:])

    def fill(self, batch: VerifyBatch, shape: BatchShape) -> None:
        """Write a batch into the block that goes up; columns beyond the batch's are padding, never scored."""
        ids, positions, past, rows, mask, parents, n_forced, n_nodes = (
            self._up.array(t) for t in self._places_up(shape)
        )
        width, scored = batch.input_ids.shape[1], batch.logit_rows.shape[1]
        ids[:, :width], ids[:, width:] = batch.input_ids, 0
        positions[:, :width], positions[:, width:] = batch.position_ids, batch.past_lens[:, None]
        past[:] = batch.past_lens
        rows[:, :scored], rows[:, scored:] = batch.logit_rows, batch.logit_rows[:, -1:]
        mask[:] = np.eye(shape.width, dtype=bool)  # padding sees itself, else its softmax has nothing to add up
        mask[:, :width, :width] = batch.tree_mask
        parents[:, :width], parents[:, width:] = batch.parents, -1
        n_forced[:], n_nodes[:] = batch.n_forced, batch.n_nodes

    def upload(self, shape: BatchShape) -> None:
        """Enqueue the batch."""
        self._up.upload(self._places_up(shape)[-1])

    def download(self, shape: BatchShape, *, scores: bool) -> None:
        """Enqueue the way back of the ids and, where wanted, of the scores."""
        self._down.download(self._places_down(shape)[-1 if scores else _SCORES - 1])

    def accept_args(self, shape: BatchShape) -> tuple[int, ...]:
        """What the kernel that accepts greedily is called with."""
        up, down = self._places_up(shape), self._places_down(shape)
        inputs = (up[0].address, *(t.address for t in up[_GRAPH_INPUTS:]))
        return (*inputs, *(t.address for t in down[:_SCORES]), shape.rows, shape.width, shape.scored)

    def accepted(self, shape: BatchShape) -> Keeps:
        """What that kernel has decided, for a commit."""
        past, keep, n_keep = self._places_up(shape)[2], *self._places_down(shape)[1:_SCORES]
        return Keeps(past.address, keep.address, n_keep.address, shape.rows, shape.width)

    def accepted_columns(self, shape: BatchShape, b: int) -> Int32:
        """What it has decided for a row, downloaded: int32 [k]."""
        keep, n_keep = (self._down.array(t) for t in self._places_down(shape)[1:_SCORES])
        columns: Int32 = keep[b, : n_keep[b]]
        return columns

    def upload_keeps(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> Keeps:
        """Enqueue the host's own decision; the last one must have arrived."""
        rows, width = len(keeps), max(len(keep) for keep in keeps)
        described = (
            Described("past_lens", "int64", (rows,)),
            Described("keep", "int32", (rows, width)),
            Described("n_keep", "int32", (rows,)),
        )
        if self._table.host.nbytes < n_bytes(described):
            old, self._table = self._table, Block(self._device, n_bytes(described))
            old.close()
        places = place(described, self._table.address)
        past, keep, n_keep = (self._table.array(t) for t in places)
        past[:] = batch.past_lens
        for b, columns in enumerate(keeps):
            keep[b, : len(columns)], n_keep[b] = columns, len(columns)
        self._table.upload(places[-1])
        return Keeps(places[0].address, places[1].address, places[2].address, rows, width)

    def output(self, batch: VerifyBatch, shape: BatchShape) -> EngineOutput:
        """What has come down, as views that the next forward overwrites."""
        scored = batch.logit_rows.shape[1]
        places = self._places_down(shape)
        next_ids = self._down.array(places[0])[:, :scored]
        if not batch.needs_scores:
            return EngineOutput(next_ids)
        scores = [self._down.array(t)[:, :scored] for t in places[_SCORES:]]
        if self._spec.scores == "logits":
            return EngineOutput(next_ids, logits=scores[0])
        return EngineOutput(next_ids, None, *scores)

    def _places_up(self, shape: BatchShape) -> tuple[Tensor, ...]:
        return place(self._fields_up(shape), self._up.address)

    def _places_down(self, shape: BatchShape) -> tuple[Tensor, ...]:
        return place(self._fields_down(shape), self._down.address)

    def _fields_up(self, shape: BatchShape) -> tuple[Described, ...]:
        rows, width, scored = shape
        return (
            Described("input_ids", "int64", (rows, width)),
            Described("position_ids", "int64", (rows, width)),
            Described("past_lens", "int64", (rows,)),
            Described("logit_rows", "int64", (rows, scored)),
            Described("tree_mask", "bool", (rows, width, width)),
            Described("parents", "int32", (rows, width)),
            Described("n_forced", "int32", (rows,)),
            Described("n_nodes", "int32", (rows,)),
        )

    def _fields_down(self, shape: BatchShape) -> tuple[Described, ...]:
        rows, width, scored = shape
        fields = (
            Described("next_ids", "int64", (rows, scored)),
            Described("keep", "int32", (rows, width)),
            Described("n_keep", "int32", (rows,)),
        )
        if self._spec.scores == "logits":
            return (*fields, Described("logits", "float32", (rows, scored, self._spec.vocab_size)))
        k = self._spec.n_scores
        return (
            *fields,
            Described("top_ids", "int64", (rows, scored, k)),
            Described("top_scores", "float32", (rows, scored, k)),
            Described("lse", "float32", (rows, scored)),
        )


def n_bytes(described: Sequence[Described]) -> int:
    """Bytes that fields take one behind the other."""
    last = place(described, 0)[-1]
    return last.address + last.n_bytes
