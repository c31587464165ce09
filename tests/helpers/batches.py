"""Batches made by hand: rows of tokens and parents, no plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sssd.types import VerifyBatch


def chain_batch(rows: Sequence[Sequence[int]], past: Sequence[int], *, first_slot: int = 0) -> VerifyBatch:
    """Rows of equal length, each a chain behind its past; every column is scored."""
    return tree_batch(rows, [list(range(-1, len(row) - 1)) for row in rows], past, first_slot=first_slot)


def tree_batch(
    rows: Sequence[Sequence[int]], parents: Sequence[Sequence[int]], past: Sequence[int], *, first_slot: int = 0
) -> VerifyBatch:
    """Rows of equal length with a parent column each (-1 = none); every column is scored."""
    ids, up = np.array(rows, np.int64), np.array(parents, np.int32)
    n_rows, width = ids.shape
    mask = np.zeros((n_rows, width, width), bool)
    for b in range(n_rows):
        for i in range(width):
            above = i
            while above >= 0:
                mask[b, i, above] = True
                above = int(up[b, above])
    lens = np.array(past, np.int64)
    return VerifyBatch(
        first_slot=first_slot,
        input_ids=ids,
        position_ids=lens[:, None] + mask.sum(axis=2) - 1,
        past_lens=lens,
        tree_mask=mask,
        logit_rows=np.arange(width)[None].repeat(n_rows, axis=0),
        parents=up,
        n_forced=np.ones(n_rows, np.int32),
        n_nodes=np.full(n_rows, width, np.int32),
        needs_scores=True,
    )
