"""The two operators that a tree step needs beyond a model's own, as torch functions that exporters write as ONNX.

Knows no model. Runs on the torch side only. Each operator has one meaning in torch (what tracing computes with) and two
ways into a graph: torch's newer exporter takes a symbolic operator, the older one an autograd function's `symbolic`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from sssd.export.optimum.names import DOMAIN

_OPSET = 24


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        columns = at[:, None] + torch.arange(new.shape[2])
        return cache.scatter(2, columns[:, None, :, None].expand_as(new), new)

    @staticmethod
    def symbolic(g: Any, cache: Any, new: Any, at: Any) -> Any:
        # the type is said, or later views lose the rank
        return g.op(f"{DOMAIN}::TensorScatter", cache, new, at, axis_i=2).setType(cache.type())


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
    ) -> torch.Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        hidden = torch.zeros(mask.shape).masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else mask
        return torch.softmax(query @ key.transpose(2, 3) * scale + hidden, -1) @ value

    @staticmethod
    def symbolic(g: Any, query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
        return g.op(f"{DOMAIN}::Attention", query, key, value, mask, scale_f=scale).setType(query.type())


def scatter(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The cache [B, Hkv, S, D] with `new` [B, Hkv, T, D] written at each row's own length `at` int64 [B]."""
    if not torch.compiler.is_exporting():
        return _applied(_Scatter, cache, new, at)
    return torch.onnx.ops.symbolic(
        "TensorScatter", (cache, new, at), {"axis": 2}, dtype=cache.dtype, shape=cache.shape, version=_OPSET
    )


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Attention [B, H, T, D] under a mask [B, 1 or H, T, S], boolean or added; key-value heads are shared evenly."""
    factor = float(query.shape[-1] ** -0.5 if scale is None else scale)
    if not torch.compiler.is_exporting():
        return _applied(_Attention, query, key, value, mask, factor)
    shape = (*query.shape[:3], value.shape[-1])
    operands = (query, key, value, mask)
    return torch.onnx.ops.symbolic(
        "Attention", operands, {"scale": factor}, dtype=query.dtype, shape=shape, version=_OPSET
    )


def _applied(function: type[torch.autograd.Function], *operands: Any) -> torch.Tensor:
    out: torch.Tensor = function.apply(*operands)  # type: ignore[no-untyped-call]
    return out
