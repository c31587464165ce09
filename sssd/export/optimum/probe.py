"""A model's random copy with few layers: the same config, so small that trees can be checked token by token.

Owns which layers stand for all; knows no exporter. Runs on the torch side only.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from transformers import AutoModelForCausalLM

_VOCAB = 101  # of the copy: its head then costs nothing
_WINDOW = 6  # of the copy: short enough that the checks' texts leave it
_TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def with_layers(config: Any, keep: list[int]) -> Any:
    """The config with these layers only, in all the lists that have an entry a layer."""
    kept = copy.deepcopy(config)
    text = kept.get_text_config()
    n_layers = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == n_layers and name != "eos_token_id":
            setattr(text, name, [value[i] for i in keep])
    text.num_hidden_layers = len(keep)
    return kept


def standing_for_all(config: Any) -> list[int]:
    """The first layer of each type, two layers at least where the model has them."""
    text = config.get_text_config()
    types = getattr(text, "layer_types", None) or ["same"] * text.num_hidden_layers
    first = {kind: i for i, kind in reversed(list(enumerate(types)))}
    keep = set(first.values())
    keep |= set([i for i in range(text.num_hidden_layers) if i not in keep][: max(0, 2 - len(keep))])
    return sorted(keep)


def random_copy(config: Any) -> Any:
    """A model of few layers and tokens and short windows, with random weights that make attention matter."""
    small = with_layers(config, standing_for_all(config))
    text = small.get_text_config()
    text.vocab_size = _VOCAB
    for name in _TOKEN_FIELDS:
        if getattr(text, name, None) is not None:
            setattr(text, name, 0)
    if getattr(text, "sliding_window", None):
        text.sliding_window = _WINDOW
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(small, dtype=torch.float32)  # type: ignore[no-untyped-call]
    model.eval()
    _randomize(model)
    return model


@torch.no_grad()
def _randomize(model: Any) -> None:
    """Norms and biases away from one and zero; matrices so large that what attention sees moves every logit."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() < 2:
            weight.add_(0.1 * noise)
        else:
            weight.copy_(1.2 / math.sqrt(min(weight.shape[-2:])) * noise)
