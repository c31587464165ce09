"""What a Hugging Face model itself says after sequences of tokens. Runs on the torch side only; knows no graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sssd.types import Float32


@torch.no_grad()
def step_by_step(model: Any, sequences: Sequence[tuple[int, ...]]) -> Float32:
    """Logits float32 [sequences, V], each sequence decoded one token at a time. For small models: a forward a token."""
    answers = []
    for sequence in sequences:
        cache = None
        for token in sequence:
            out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
        answers.append(out.logits[0, -1].numpy())
    return np.stack(answers).astype(np.float32)


@torch.no_grad()
def at_once(model: Any, sequences: Sequence[tuple[int, ...]]) -> Float32:
    """The same with one plain forward for every sequence that no other one begins with."""
    index: dict[tuple[int, ...], Float32] = {}
    for longest in sorted(set(sequences), key=len, reverse=True):
        if longest in index:
            continue
        logits = model(torch.tensor([longest]), use_cache=False).logits[0].numpy()
        wanted = {s for s in sequences if s == longest[: len(s)]}
        index |= {s: logits[len(s) - 1].astype(np.float32) for s in wanted if s not in index}
    return np.stack([index[s] for s in sequences])
