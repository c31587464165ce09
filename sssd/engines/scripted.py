"""An engine without a model: a function from context to scores. For tests of everything above the engine.

Its KV cache holds token ids, and a column's context is rebuilt from exactly the cache entries and columns that past
lengths, mask and positions let it see. A wrong mask, position, verdict or commit therefore changes the output, and
what was not kept is poisoned. With a `branch_noise` it is as unkind as a real engine: scores behind skipped columns
are off, and such columns must not be kept. Knows nothing of numbers that a real model would compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sssd.errors import EngineError
from sssd.spec import EngineSpec
from sssd.types import EngineOutput, Float32, Int32, VerifyBatch

Script = Callable[[Int32], Float32]  # context int32 [n] -> scores float32 [V]
POISON = -7


def scripted_spec(
    vocab_size: int,
    *,
    max_len: int,
    eos_ids: tuple[int, ...] = (),
    min_width: int = 1,
    branch_noise: float | None = 0.0,
) -> EngineSpec:
    """Facts of an engine that has no model."""
    return EngineSpec(
        name="scripted",
        vocab_size=vocab_size,
        n_layers=1,
        n_kv_heads=1,
        head_dim=1,
        max_len=max_len,
        kv_dtype="float32",
        weights="fp32",
        scores="logits",
        n_scores=vocab_size,
        eos_ids=eos_ids,
        bos_id=None,
        min_width=min_width,
        branch_noise=branch_noise,
        inputs=(),
        outputs=(),
    )


class ScriptedEngine:
    """An Engine whose scores are `script(context)`; counts its calls in `n_forwards`.

    `fails_at` are forwards (counted from 0) that raise EngineError, as a lost device would.
    """

    def __init__(
        self,
        script: Script,
        *,
        vocab_size: int,
        n_slots: int = 4,
        max_len: int = 256,
        eos_ids: tuple[int, ...] = (),
        min_width: int = 1,
        branch_noise: float | None = 0.0,
        fails_at: frozenset[int] = frozenset(),
    ) -> None:
        self._script = script
        self._fails_at = fails_at
        self._random = np.random.default_rng(0)
        self._kv = np.full((n_slots, 2 * max_len), POISON, np.int32)
        self.n_forwards = 0
        self.widths: list[int] = []  # columns of each forward
        self._spec = scripted_spec(
            vocab_size, max_len=max_len, eos_ids=eos_ids, min_width=min_width, branch_noise=branch_noise
        )

    @property
    def spec(self) -> EngineSpec:
        """The facts given at construction."""
        return self._spec

    @property
    def n_slots(self) -> int:
        """Sequences whose tokens the cache holds."""
        return len(self._kv)

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        """Write every column's token behind its row's past, then script the scored columns. Raises EngineError."""
        rows, width = batch.input_ids.shape
        assert batch.first_slot + rows <= self.n_slots
        self.n_forwards += 1
        self.widths.append(width)
        if self.n_forwards - 1 in self._fails_at:
            raise EngineError(f"scripted failure of forward {self.n_forwards - 1}")
        for b in range(rows):
            past = int(batch.past_lens[b])
            self._kv[batch.first_slot + b, past : past + width] = batch.input_ids[b]
        logits = np.stack(
            [np.stack([self._scores(batch, b, int(c)) for c in batch.logit_rows[b]]) for b in range(rows)]
        )
        return EngineOutput(logits.argmax(axis=2), logits if batch.needs_scores else None)

    def _scores(self, batch: VerifyBatch, b: int, column: int) -> Float32:
        past = int(batch.past_lens[b])
        if column >= batch.n_nodes[b]:
            return np.zeros(self._spec.vocab_size, np.float32)
        seen = np.flatnonzero(batch.tree_mask[b, column])
        positions = batch.position_ids[b, seen]
        seen = seen[np.argsort(positions)]
        assert batch.position_ids[b, seen].tolist() == list(range(past, past + len(seen))), "positions are no path"
        kv = self._kv[batch.first_slot + b]
        context = np.concatenate([kv[:past], kv[past + seen]])
        assert POISON not in context, "a column sees KV that was never committed"
        skips = len(seen) != int(seen[-1]) + 1
        return self._script(context) + (self._error() if skips else np.float32(0))

    def _error(self) -> Float32:
        """How far off a column is whose path skips columns; unbounded noise is played by plus or minus 5."""
        bound = 5.0 if self._spec.branch_noise is None else self._spec.branch_noise
        signs: Float32 = self._random.choice(np.array([-bound, bound], np.float32), self._spec.vocab_size)
        return signs

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        """Make the kept columns contiguous; poison the rest."""
        for b, keep in enumerate(keeps):
            assert self._spec.branch_noise == 0 or keep.tolist() == list(range(len(keep))), (
                "kept behind skipped columns"
            )
            slot, past = batch.first_slot + b, int(batch.past_lens[b])
            self._kv[slot, past : past + len(keep)] = self._kv[slot, past + keep]
            self._kv[slot, past + len(keep) :] = POISON

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Copy the first n tokens of slot `src` to slot `dst`; poison the rest."""
        self._kv[dst, :n] = self._kv[src, :n]
        self._kv[dst, n:] = POISON

    def close(self) -> None:
        """Nothing to release."""
