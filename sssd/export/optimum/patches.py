"""What a Hugging Face model is told while it is traced, so that it computes a tree step; all of it undone afterwards.

Owns the replaced functions of transformers; knows no exporter. Runs on the torch side only. A model asks others for
four things, and gets our answers: attention (a registry, or torch's own function), the mask (a registry, or a method of
older classes), ALiBi, and in one class a triangle of its own. A mask is boolean where our attention takes it, and added
where a model's own arithmetic does.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import masking_utils
from transformers.modeling_utils import AttentionInterface

from sssd.export.optimum.operators import attend
from sssd.export.optimum.tree_model import CurrentStep

_NAME = "sssd_tree"  # our attention in the registries


@contextmanager
def taught(model: Any, current: CurrentStep) -> Iterator[None]:
    """Inside the block the model's forward computes the current step. Changes tables of transformers and torch."""
    with ExitStack() as undo:
        kind = _attention_kind(model)
        _replace_attention(undo, model, kind)
        _replace_masks(undo, current)
        for module in model.modules():
            if hasattr(module, "_update_causal_mask"):
                undo.enter_context(_replaced(module, "_update_causal_mask", _older_mask(module, model, kind, current)))
            owner = _alibi_owner(module)
            if owner is not None:
                undo.enter_context(_replaced(owner, "build_alibi_tensor", _alibi(owner, module, current)))
            if type(module).__name__ == "GPTNeoSelfAttention":
                undo.enter_context(_own_triangle(module, current))
        yield


def _attention_kind(model: Any) -> str:
    """Which implementation the configs name: ours, or the model's own where ours lacks what it needs."""
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) or config.model_type == "gpt_oss":
        return "eager"  # soft caps and attention sinks
    if type(model)._supports_attention_backend:
        return _NAME
    return str(model.config._attn_implementation)  # older classes chose their attention when they were built


# ---- attention ----------------------------------------------------------------------------------


def _replace_attention(undo: ExitStack, model: Any, kind: str) -> None:
    AttentionInterface.register(_NAME, _tree_attention)
    undo.callback(AttentionInterface._global_mapping.pop, _NAME)
    for config in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        undo.enter_context(_replaced(config, "_attn_implementation_internal", kind))
    undo.enter_context(_replaced(torch.nn.functional, "scaled_dot_product_attention", _tree_sdpa))


def _tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: [B, heads, T, D] in, [B, T, heads, D] out."""
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("attention with a soft cap or with sinks is not one operator")
    return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None


def _tree_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """For classes that call torch's function themselves."""
    assert attn_mask is not None, "a shortcut without a mask would be baked into the graph"
    assert not is_causal, "a causal shortcut would be baked into the graph"
    return attend(query, key, value, attn_mask, scale)


# ---- masks --------------------------------------------------------------------------------------


def _replace_masks(undo: ExitStack, current: CurrentStep) -> None:
    def seen(mask_function: Any = None, **ignored: Any) -> torch.Tensor:
        return current.step.mask(_unless_causal(mask_function))

    def added(mask_function: Any = None, **ignored: Any) -> torch.Tensor:
        return _hiding(current.step.mask(_unless_causal(mask_function)))

    table = masking_utils.AttentionMaskInterface._global_mapping
    undo.callback(table.update, dict(table))
    table.update({_NAME: seen, "sdpa": seen, "eager": added})
    undo.callback(table.pop, _NAME)


def _unless_causal(rule: Any) -> Any:
    """A mask function of transformers, None for the plain causal one: a tree mask says no less."""
    return None if rule is masking_utils.causal_mask_function else rule


def _hiding(seen: torch.Tensor) -> torch.Tensor:
    """What is added to scores: zero where seen, float32's lowest number elsewhere."""
    return torch.zeros((), dtype=torch.float32).masked_fill(~seen, torch.finfo(torch.float32).min)


def _older_mask(module: Any, model: Any, kind: str, current: CurrentStep) -> Callable[..., torch.Tensor]:
    """`_update_causal_mask` of classes older than the mask registry."""
    folds_alibi = getattr(module, "use_alibi", False) and kind == "sdpa"

    def mask(*args: Any, **ignored: Any) -> torch.Tensor:
        step = current.step
        if not folds_alibi:
            return step.seen if type(model)._supports_attention_backend else _hiding(step.seen)
        rows, slots = step.key_positions.shape  # falcon: ALiBi, scaled as the scores are, is part of the mask
        alibi = args[-1].view(rows, -1, 1, slots) / math.sqrt(module.config.hidden_size // module.num_heads)
        return torch.where(step.seen, alibi, torch.finfo(alibi.dtype).min)

    return mask


# ---- ALiBi and triangles ------------------------------------------------------------------------


def _alibi_owner(module: Any) -> Any:
    """Where a model finds build_alibi_tensor: on itself, or in its Python module. None where it uses none."""
    if hasattr(module, "build_alibi_tensor"):
        return module
    home = inspect.getmodule(type(module))
    return home if getattr(module, "use_alibi", False) and hasattr(home, "build_alibi_tensor") else None


def _alibi(owner: Any, module: Any, current: CurrentStep) -> Callable[..., torch.Tensor]:
    """Slope times key position, [B * heads, 1, S]: a softmax does not see the shift that is the same for all keys.

    The slopes are the model's own. Where the function belongs to a Python module (falcon) positions, slopes and
    products are bfloat16; the product itself is made in float32 and rounded, since CPUs have no other.
    """
    original, rounded = owner.build_alibi_tensor, torch.float32 if owner is module else torch.bfloat16

    def alibi(mask: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
        slopes = original(torch.ones(1, 2, dtype=torch.long), heads, dtype=torch.float32)[None, :, 0, 1:]
        positions = current.step.key_positions[:, None, :].to(rounded).float()
        bias: torch.Tensor = (slopes * positions).reshape(-1, 1, positions.shape[-1]).to(rounded).to(dtype)
        return bias

    return alibi


@contextmanager
def _own_triangle(module: Any, current: CurrentStep) -> Iterator[None]:
    """GPT-Neo cuts its own triangle, or band, out of a buffer by cache index: whatever it cuts is our mask."""
    is_local = module.config.attention_layers[module.layer_id] == "local"
    rule = masking_utils.sliding_window_causal_mask_function(module.config.window_size) if is_local else None
    buffer = module._buffers.pop("bias")
    module.__dict__["bias"] = _Cut(lambda: current.step.mask(rule))
    try:
        yield
    finally:
        del module.__dict__["bias"]
        module._buffers["bias"] = buffer


class _Cut:
    """Something that gives the same whatever is cut out of it."""

    def __init__(self, make: Callable[[], torch.Tensor]) -> None:
        self._make = make

    def __getitem__(self, _: Any) -> torch.Tensor:
        return self._make()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute replaced inside the block, on the object itself; a class's stays."""
    had, old = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, old)
        else:
            delattr(owner, name)
