"""One tree step through a Hugging Face decoder's own forward: KV written in place, visibility from the tree mask.

Owns what a step must know and the cache that a model is handed; knows no exporter, and of models only what they share.
Runs on the torch side only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache

from sssd.export.optimum.operators import scatter


class KeyValue(NamedTuple):
    """One layer's KV cache."""

    keys: torch.Tensor  # float32 [B, Hkv, S, D]
    values: torch.Tensor  # float32 [B, Hkv, S, D]


class StepInputs(NamedTuple):
    """The graph's inputs, in the contract's order."""

    input_ids: torch.Tensor  # int64 [B, T]
    position_ids: torch.Tensor  # int64 [B, T]
    past_lens: torch.Tensor  # int64 [B]
    tree_mask: torch.Tensor  # bool [B, T, T]
    logit_rows: torch.Tensor  # int64 [B, R]
    past_key_values: Sequence[KeyValue]


class StepOutputs(NamedTuple):
    """The graph's outputs, in the contract's order."""

    logits: torch.Tensor  # float32 [B, R, V]
    present: list[KeyValue]


class Step:
    """Who sees whom in one step, and at which position every key stands; the same rules as export/mask.py.

    seen: bool [B, 1, T, S]; key_positions: int64 [B, S]; positions: int64 [B, T]
    """

    def __init__(self, inputs: StepInputs) -> None:
        width, slots = inputs.tree_mask.shape[1], inputs.past_key_values[0][0].shape[2]
        relative = torch.arange(slots)[None] - inputs.past_lens[:, None]  # [B, S] a slot's column, below 0: committed
        column = relative.clamp(min=0).minimum(torch.zeros_like(relative) + (width - 1))
        is_past, is_column = relative < 0, (relative >= 0) & (relative < width)
        # gathered as float: booleans cannot be gathered everywhere
        tree = inputs.tree_mask.to(torch.float32).gather(2, column[:, None].expand(-1, width, -1)) > 0.5
        self.seen = (is_past[:, None] | (tree & is_column[:, None]))[:, None]
        past_position = relative + inputs.past_lens[:, None]
        self.key_positions = torch.where(is_past, past_position, inputs.position_ids.gather(1, column))
        self.positions = inputs.position_ids

    def mask(self, rule: Callable[..., torch.Tensor] | None) -> torch.Tensor:
        """What is seen and allowed by a rule of transformers (batch, head, query, key), told positions for indices.

        So windows and chunks are measured between positions, as in the model's own text, and stay right in a tree.
        """
        if rule is None:
            return self.seen
        zero = torch.zeros((), dtype=torch.long)
        return self.seen & rule(zero, zero, self.positions[:, None, :, None], self.key_positions[:, None, None])


class CurrentStep:
    """The step that is being traced, for the functions that a model calls while it runs."""

    def __init__(self) -> None:
        self._step: Step | None = None

    def begin(self, step: Step) -> None:
        """Every later call belongs to this step."""
        self._step = step

    @property
    def step(self) -> Step:
        """The step; a model calls back only while its forward runs."""
        assert self._step is not None
        return self._step


class SlotCache(Cache):
    """A cache whose rows are written at their own lengths; attention sees the whole of it, masked."""

    def __init__(self, layers: Sequence[KeyValue], at: torch.Tensor) -> None:
        self.present = [KeyValue(*layer) for layer in layers]
        self.at = at
        self.layers: list[Any] = []  # the base class reads it

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> KeyValue:
        """Write the columns' KV [B, Hkv, T, D]; returns the whole layer."""
        keys, values = self.present[layer_idx]
        self.present[layer_idx] = KeyValue(scatter(keys, key_states, self.at), scatter(values, value_states, self.at))
        return self.present[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: it only feeds default positions, and the step has its own."""
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """No limit."""
        return -1

    def get_mask_sizes(self, query: Any, layer_idx: int = 0) -> tuple[int, int]:
        """Number of keys, and the first one's index."""
        return self.present[0].keys.shape[2], 0

    def __len__(self) -> int:
        return len(self.present)


@dataclass(frozen=True)
class TreeModel:
    """A model that takes tree steps; to be called inside `patches.taught`."""

    model: Any
    forward: Callable[..., Any]  # the model's own, or what an exporter made of it
    current: CurrentStep
    n_positions: int | None  # positions that the model has tables for

    def step(self, inputs: StepInputs) -> StepOutputs:
        """One verification step."""
        self.current.begin(Step(inputs))
        cache = SlotCache(inputs.past_key_values, inputs.past_lens)
        options: dict[str, Any] = {"past_key_values": cache, "use_cache": True, "return_dict": True}
        accepted = inspect.signature(self.forward).parameters
        if "position_ids" in accepted:
            options["position_ids"] = self._within_tables(inputs.position_ids)
        batch, slots = inputs.past_lens.shape[0], cache.present[0].keys.shape[2]
        # models with ALiBi only ask for it, and the answer is ours; elsewhere the registered mask functions ignore it
        options["attention_mask"] = torch.ones(batch, slots, dtype=torch.long) if _has_alibi(self.model) else None
        hook = self.model.get_output_embeddings().register_forward_pre_hook(_rows(inputs.logit_rows))
        try:
            logits = self.forward(input_ids=inputs.input_ids, **options).logits
        finally:
            hook.remove()
        return StepOutputs(logits, cache.present)

    def _within_tables(self, positions: torch.Tensor) -> torch.Tensor:
        """Draft columns may stand behind the last position though they are never kept: they read its entry."""
        return positions if self.n_positions is None else positions.clamp(max=self.n_positions - 1)


def _has_alibi(model: Any) -> bool:
    return any(hasattr(m, "build_alibi_tensor") for m in model.modules())


def _rows(logit_rows: torch.Tensor) -> Callable[..., Any]:
    """A hook before the head: hidden states [B, T, H] of the scored columns only; soft caps behind the head stay."""

    def gather(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = args[0]
        return (hidden.gather(1, logit_rows[..., None].expand(-1, -1, hidden.shape[-1])), *args[1:])

    return gather
