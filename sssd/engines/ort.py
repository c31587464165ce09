"""The ONNX Runtime engine on a CPU: a bundle's graph, run in place on the KV cache that it owns.

Knows no scheduling and no drafts. The cache is one array

    float32 [2 * layers, slots, Hkv, S, D]        (k of layer 0, v of layer 0, k of layer 1, ...)

whose parts are bound to the graph as past and as present at once, so that nothing is copied in a step. S grows in
buckets; rows of a batch are consecutive slots, so that each part is one contiguous piece of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.errors import BundleError, EngineError, MissingExtra, OutOfMemory
from sssd.spec import GRAPH, Bundle, EngineSpec
from sssd.types import EngineOutput, Float32, Int32, Int64, VerifyBatch

_BUCKET = 256  # the cache's length is a multiple of this


class _Outputs(NamedTuple):
    """Arrays that one forward writes to."""

    next_ids: Int64  # int64 [B, R]
    logits: Float32 | None  # float32 [B, R, V]
    top_ids: Int64 | None  # int64 [B, R, K]
    top_scores: Float32 | None  # float32 [B, R, K]
    lse: Float32 | None  # float32 [B, R]


class OrtEngine:
    """An Engine over ONNX Runtime.

    `threads` 0 takes one a physical core. `exact` keeps activations in float32 where ONNX Runtime would round them to
    8 bits for quantized weights: many times slower, and what parity is measured with. Raises MissingExtra without
    onnxruntime, BundleError for a graph that does not load.
    """

    def __init__(self, bundle: Bundle, *, n_slots: int = 4, threads: int = 0, exact: bool = False) -> None:
        if n_slots < 1:
            raise EngineError(f"n_slots is {n_slots}: allowed is 1 or more")
        self._spec = bundle.spec
        self._n_slots = n_slots
        self._session = _session(bundle, threads, exact=exact)
        self._ort = onnxruntime()
        self._kv = self._allocate(_BUCKET)
        # (first slot, rows, scores wanted) -> an IOBinding with the cache bound; all else is bound anew at every
        # forward, so that none ever points to an array that is gone
        self._bindings: dict[tuple[int, int, bool], Any] = {}

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""
        return self._spec

    @property
    def n_slots(self) -> int:
        """Sequences whose KV the cache holds."""
        return self._n_slots

    @property
    def cache_len(self) -> int:
        """Tokens a slot holds without growing."""
        return int(self._kv.shape[3])

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        """Score a batch; only what `batch.needs_scores` asks for leaves the graph. Raises EngineError."""
        rows, width = batch.input_ids.shape
        assert batch.first_slot + rows <= self._n_slots, "a row has no slot"
        self._reserve(int(batch.past_lens.max()) + width)
        binding = self._binding(batch.first_slot, rows, batch.needs_scores)
        for name, array in (
            ("input_ids", batch.input_ids),
            ("position_ids", batch.position_ids),
            ("past_lens", batch.past_lens),
            ("tree_mask", batch.tree_mask),
            ("logit_rows", batch.logit_rows),
        ):
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        outputs = self._outputs(rows, batch.logit_rows.shape[1], scores=batch.needs_scores)
        for name, out in outputs._asdict().items():
            if out is not None:
                binding.bind_ortvalue_output(name, self._value(out))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as e:  # ONNX Runtime's exceptions share no base class
            raise EngineError(f"ONNX Runtime failed on {rows} rows of {width} columns: {e}") from e
        return EngineOutput(*outputs)

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        """Gather the kept columns where they are not in front already."""
        for b, keep in enumerate(keeps):
            if len(keep) and int(keep[-1]) != len(keep) - 1:
                slot, past = batch.first_slot + b, int(batch.past_lens[b])
                moved = np.flatnonzero(keep != np.arange(len(keep)))
                self._kv[:, slot, :, past + moved] = self._kv[:, slot, :, past + keep[moved]]

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Copy the KV of the first n tokens of slot `src` to slot `dst`."""
        self._kv[:, dst, :, :n] = self._kv[:, src, :, :n]

    def close(self) -> None:
        """Release the session and the cache."""
        self._bindings.clear()
        self._session = None
        self._kv = self._kv[:, :0]

    def _allocate(self, length: int) -> npt.NDArray[Any]:
        spec = self._spec
        shape = (2 * spec.n_layers, self._n_slots, spec.n_kv_heads, length, spec.head_dim)
        try:
            return np.zeros(shape, np.dtype(spec.kv_dtype))
        except MemoryError:
            needed = int(np.prod(shape, dtype=np.int64)) * np.dtype(spec.kv_dtype).itemsize >> 20
            raise OutOfMemory(
                f"the KV cache needs {needed} MiB for {self._n_slots} slots of {length}: use fewer slots"
            ) from None

    def _reserve(self, needed: int) -> None:
        """Grow the cache to `needed` tokens a slot, by half at least so that growing stays rare."""
        if needed <= self.cache_len:
            return
        length = max(needed, self.cache_len * 3 // 2)
        grown = self._allocate(-(-length // _BUCKET) * _BUCKET)
        grown[:, :, :, : self.cache_len] = self._kv
        self._kv = grown
        self._bindings.clear()

    def _binding(self, first: int, rows: int, scores: bool) -> Any:
        binding = self._bindings.get((first, rows, scores))
        if binding is None:
            binding = self._bindings[first, rows, scores] = self._session.io_binding()
            for i, part in enumerate(self._kv[:, first : first + rows]):
                name = f"{'kv'[i % 2]}_{i // 2}"
                value = self._value(part)
                assert value.data_ptr() == part.ctypes.data, "the cache must be bound, not copied"
                binding.bind_ortvalue_input(f"past_{name}", value)
                binding.bind_ortvalue_output(f"present_{name}", value)
        return binding

    def _value(self, array: npt.NDArray[Any]) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def _outputs(self, rows: int, scored: int, *, scores: bool) -> _Outputs:
        next_ids = np.empty((rows, scored), np.int64)
        if not scores:
            return _Outputs(next_ids, None, None, None, None)
        if self._spec.scores == "logits":
            return _Outputs(next_ids, np.empty((rows, scored, self._spec.vocab_size), np.float32), None, None, None)
        shape = (rows, scored, self._spec.n_scores)
        return _Outputs(
            next_ids, None, np.empty(shape, np.int64), np.empty(shape, np.float32), np.empty((rows, scored), np.float32)
        )


def onnxruntime(extra: str = "cpu") -> Any:
    """The package. Raises MissingExtra, which names the extra that brings it."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("onnxruntime", extra) from None
    return onnxruntime


def _session(bundle: Bundle, threads: int, *, exact: bool) -> Any:
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if exact:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # 1 = float32, 4 = int8
    # parity runs a few narrow forwards: widening 16-bit weights anew in each costs less than holding them all wide
    unfolded = ["ConstantFolding"] if exact and bundle.spec.weights in ("fp16", "bf16") else []
    try:
        return ort.InferenceSession(
            bundle.file(GRAPH), options, providers=["CPUExecutionProvider"], disabled_optimizers=unfolded
        )
    except Exception as e:  # ONNX Runtime's exceptions share no base class
        raise BundleError(f"ONNX Runtime cannot load {bundle.file(GRAPH)}: {e}") from e
