"""What every engine can do. Owns the seam between the step loop and whatever computes a forward pass.

Knows no ONNX, no device and no scheduling: an engine is handed whole batches and told which columns to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sssd.spec import EngineSpec
from sssd.types import EngineOutput, Int32, VerifyBatch


class Engine(Protocol):
    """One model with the KV cache of `n_slots` sequences. Not safe for use from two threads at once."""

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""

    @property
    def n_slots(self) -> int:
        """Sequences whose KV the cache holds."""

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        """Score a batch of trees, one a slot.

        Writes the KV of all T columns behind each row's `past_lens`; what stood there is lost. The arrays of the
        result may be reused by the next forward. Raises EngineError when the batch does not fit or the device fails.
        """

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        """Make the kept columns of the last forward contiguous behind each row's `past_lens`.

        `keeps[b]` is int32 [k], ascending. Columns that are not kept need no undo: KV beyond
        `past_lens[b] + len(keeps[b])` is garbage by definition. Free when every `keeps[b]` is 0, 1, ..., k - 1.
        """

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Copy the KV of the first n tokens of slot `src` to slot `dst`."""

    def close(self) -> None:
        """Release the model and its cache; calling it again does nothing."""
