"""The two optimization profiles of a plan, and the shapes that they give its tensors. Pure; knows no builder."""

from __future__ import annotations

from collections.abc import Sequence

from sssd.plan import LEAST_COLUMNS, PlanOptions, PlanProfile, Span
from sssd.spec import TensorSpec
from sssd.types import TensorShape

_STEP = 64  # cache lengths are multiples of this, so that a slot's keys begin at an even address


def plan_profiles(options: PlanOptions) -> tuple[PlanProfile, PlanProfile]:
    """Prompt chunks of one row, then trees of many.

    The tree profile is widened where few slots are asked for: see LEAST_COLUMNS.
    """
    widest = max(options.max_width, -(-LEAST_COLUMNS // options.n_slots))
    usual = min(16, options.max_width)
    one, scored = Span(1, 1, 1), Span(1, 1, widest)
    rows = Span(1, -(-options.n_slots // 2), options.n_slots)
    return (
        PlanProfile("prompt", one, Span(1, options.chunk, options.chunk), scored),
        PlanProfile("tree", rows, Span(1, usual, widest), Span(1, usual, widest)),
    )


def cache_length(max_len: int, profiles: Sequence[PlanProfile]) -> int:
    """S: `max_len` and the widest forward behind it, since a forward writes all its columns, padding too."""
    widest = max(profile.width.most for profile in profiles)
    return -(-(max_len + widest) // _STEP) * _STEP


def shape_of(tensor: TensorSpec, profile: PlanProfile, cache_len: int, which: int) -> TensorShape:
    """The tensor's shape at the least (0), the usual (1) or the most (2) of a profile."""
    axes = {"B": profile.rows[which], "T": profile.width[which], "R": profile.scored[which], "S": cache_len}
    return tuple(axes[d] if isinstance(d, str) else d for d in tensor.dims)
