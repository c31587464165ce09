"""The engine whose model and KV cache live on a GPU: cache, staging, commit, captured graphs. Owns one step's order.

Knows neither TensorRT nor ONNX Runtime: what computes is an `Executor` (trt.py, ort_cuda.py), the GPU is a `Device`.

    upload -> executor -> [all rows greedy: accept, commit] -> download -> synchronize

Where no row reads scores, the walk down the trees is the argmax's, so the device walks and commits by itself, in the
same stream and the same captured graph; the host's own walk can only end sooner (at a stop id, for want of room), and
what it keeps is then a beginning of what the device has kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sssd.engines.device import Device, Graph, Grid, Tensor
from sssd.engines.kernels import ACCEPT
from sssd.engines.slab import Slab
from sssd.engines.staging import BatchShape, Staging
from sssd.errors import EngineError, OutOfMemory
from sssd.spec import EngineSpec
from sssd.types import EngineOutput, Int32, VerifyBatch

_log = logging.getLogger("sssd.engines")
_ACCEPT_THREADS = 32
_BUCKET = 256  # a cache that grows has a multiple of this


class CacheForm(NamedTuple):
    """What an executor's graph wants of the KV cache."""

    kv_dtype: str
    cache_len: int | None  # S, columns that are not kept included; None where it may have any length, and grow
    alignment: int  # bytes that a slot's address must be a multiple of


class Executor(Protocol):
    """A model on a device: enqueues its forward, and nothing else."""

    @property
    def form(self) -> CacheForm:
        """What it wants of the cache."""

    @property
    def largest(self) -> tuple[BatchShape, ...]:
        """The largest shapes that it takes, for memory that is reserved at the start; empty where there is no limit."""

    def fit(self, shape: BatchShape) -> BatchShape:
        """The shape that a batch is padded to. Raises EngineError naming the limits when nothing fits."""

    def is_capturable(self, shape: BatchShape) -> bool:
        """Whether a forward of this shape may be captured once it has run."""

    def bind(self, shape: BatchShape, tensors: Sequence[Tensor]) -> None:
        """Take the addresses of all inputs and outputs for the runs to come."""

    def run(self) -> None:
        """Enqueue the forward of what was bound last. Raises EngineError."""

    def close(self) -> None:
        """Release the model."""


class _Key(NamedTuple):
    """What a captured graph holds for."""

    first_slot: int
    shape: BatchShape
    scores: bool


class ResidentEngine:
    """An Engine on a GPU. Takes over `device` and `executor`, and closes them.

    Raises OutOfMemory saying how many slots fit. A forward that fails on the device leaves an engine that refuses all
    further ones: a GPU that has failed gives nothing back.
    """

    def __init__(self, spec: EngineSpec, device: Device, executor: Executor, *, n_slots: int) -> None:
        if n_slots < 1:
            raise EngineError(f"n_slots is {n_slots}: allowed is 1 or more")
        self._spec = spec
        self._device = device
        self._executor = executor
        self._staging = Staging(device, spec)
        for shape in executor.largest:
            self._staging.reserve(shape)
        form = executor.form
        length = _BUCKET if form.cache_len is None else form.cache_len
        self._slab = Slab(device, spec, n_slots=n_slots, cache_len=length, kv_dtype=form.kv_dtype)
        if n_slots > 1 and self._slab.slot_bytes % form.alignment:
            raise EngineError(
                f"a slot of a layer takes {self._slab.slot_bytes} bytes, which is no multiple of {form.alignment}: "
                "export again with a --max-len that is a multiple of 64"
            )
        self._ran: set[_Key] = set()
        self._graphs: dict[_Key, Graph | None] = {}  # None where capturing failed
        self._committed: BatchShape | None = None  # shape of the last forward where the device has committed it
        self._lost: str | None = None
        self._closed = False

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""
        return self._spec

    @property
    def n_slots(self) -> int:
        """Sequences whose KV the cache holds."""
        return self._slab.n_slots

    @property
    def cache_len(self) -> int:
        """Tokens a slot holds without growing."""
        return self._slab.cache_len

    @property
    def n_captured(self) -> int:
        """Shapes of forward that one launch enqueues."""
        return sum(graph is not None for graph in self._graphs.values())

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        """Score a batch; only what `batch.needs_scores` asks for crosses the bus. Raises EngineError."""
        self._require_alive()
        rows, width = batch.input_ids.shape
        assert batch.first_slot + rows <= self.n_slots, "a row has no slot"
        shape = self._executor.fit(BatchShape(rows, width, batch.logit_rows.shape[1]))
        tokens, longest = int(batch.past_lens.max()) + shape.width, self._executor.form.cache_len
        if longest is not None and tokens > longest:
            raise EngineError(f"a row would hold {tokens} tokens, and a slot holds {longest}")
        self._committed = None
        try:
            self._reserve(tokens, shape)
            self._staging.fill(batch, shape)
            self._enqueue(_Key(batch.first_slot, shape, batch.needs_scores))
            self._device.synchronize()
        except OutOfMemory:
            raise
        except EngineError as e:
            self._lost = str(e)
            raise EngineError(f"the GPU failed on {rows} rows of {width} columns: {e}; restart sssd") from e
        self._committed = None if batch.needs_scores else shape
        return self._staging.output(batch, shape)

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        """Gather the kept columns where they are not in front already, and the device has not done so."""
        self._require_alive()
        moves = [len(keep) > 0 and int(keep[-1]) != len(keep) - 1 for keep in keeps]
        shape, self._committed = self._committed, None
        if shape is not None:
            for b, keep in enumerate(keeps):
                done = self._staging.accepted_columns(shape, b)[: len(keep)]
                if not np.array_equal(done, keep):
                    raise EngineError(f"row {b} keeps columns {keep.tolist()}, but its argmax walk is {done.tolist()}")
        elif any(moves):
            self._slab.commit(batch.first_slot, self._staging.upload_keeps(batch, keeps))

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Copy the KV of the first n tokens of slot `src` to slot `dst`."""
        self._require_alive()
        if n and src != dst:
            self._slab.copy_prefix(src, dst, n)

    def close(self) -> None:
        """Release model, cache and device."""
        if self._closed:
            return
        self._closed = True
        try:
            self._device.synchronize()
        except EngineError as e:  # a GPU that is lost says so again
            _log.warning("while closing: %s", e)
        self._drop_graphs()
        self._executor.close()
        self._device.close()

    def _enqueue(self, key: _Key) -> None:
        """Replay what was captured; run everything else, and capture it when it has come twice.

        It is captured right behind a run of its own, which has left nothing to settle for its shapes.
        """
        graph = self._graphs.get(key)
        if graph is not None:
            graph.launch()
            return
        tensors = (*self._staging.tensors(key.shape), *self._slab.tensors(key.first_slot, key.shape.rows))
        self._executor.bind(key.shape, tensors)
        self._step(key)
        if self._may_capture(key):
            self._capture(key)
        self._ran.add(key)

    def _may_capture(self, key: _Key) -> bool:
        """Forwards that come again and again: those of the decoding rows, whose slots are a prefix."""
        fresh = key in self._ran and key not in self._graphs
        return fresh and key.first_slot == 0 and self._executor.is_capturable(key.shape)

    def _capture(self, key: _Key) -> None:
        try:
            self._graphs[key] = self._device.capture(lambda: self._step(key))
        except EngineError as e:
            self._graphs[key] = None
            _log.warning("forwards of %s are not captured: %s", key.shape, e)

    def _step(self, key: _Key) -> None:
        staging, shape = self._staging, key.shape
        staging.upload(shape)
        self._executor.run()
        if not key.scores:
            blocks = Grid(-(-shape.rows // _ACCEPT_THREADS))
            self._device.launch(ACCEPT.name, blocks, _ACCEPT_THREADS, staging.accept_args(shape))
            self._slab.commit(key.first_slot, staging.accepted(shape))
        staging.download(shape, scores=key.scores)

    def _reserve(self, tokens: int, shape: BatchShape) -> None:
        """Room for the batch in the blocks and for `tokens` a slot in the cache. Raises EngineError, OutOfMemory."""
        moved = self._staging.reserve(shape)
        if tokens > self.cache_len:  # by half at least, so that growing stays rare
            length = max(tokens, self.cache_len * 3 // 2)
            self._slab.grow(-(-length // _BUCKET) * _BUCKET)
            moved = True
        if moved:  # addresses have changed
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        for graph in self._graphs.values():
            if graph is not None:
                graph.close()
        self._graphs.clear()
        self._ran.clear()

    def _require_alive(self) -> None:
        assert not self._closed
        self._device.use()
        if self._lost is not None:
            raise EngineError(f"the GPU has failed before ({self._lost}): restart sssd")
