"""The target's own walk down a draft tree. Pure; owns acceptance and nothing else.

At a node the row's `choose` picks a token from the target's scores. Where a child carries it the walk descends, else
the token is emitted and the walk ends. Every emitted token is the target's own choice, so the output cannot depend on
the draft, greedy or sampled.

Exact to the bit, too. While the accepted path stands in consecutive columns its keys lie where plain decoding puts
them, and every sum over keys rounds the same way. Behind a branch that skips columns they do not: scores there are off
by up to the engine's `branch_noise`. Where that is not 0, such a node's choice counts only if the noise cannot change
it, and its column is not kept: the token becomes a forced column of the next step and gets the KV of plain decoding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sssd.sampling import token_logprob
from sssd.tree import first_scored
from sssd.types import EngineOutput, Row, StepPlan, TokenLogprob, Verdict, VerifyBatch


def walk_all(batch: VerifyBatch, out: EngineOutput, plan: StepPlan, *, branch_noise: float = 0.0) -> list[Verdict]:
    """One verdict a row, in row order: what `walk` gives.

    Rows that take the argmax are followed together, in some ten numpy calls; others cost one `choose` an emitted token.
    """
    argmaxes = _follow_argmax(batch, out)
    return [
        _argmax_verdict(row, way)
        if row.samples and not row.needs_scores and (branch_noise == 0 or way.straight)
        else walk(batch, out, row, b, branch_noise=branch_noise)
        for b, (row, way) in enumerate(zip(plan.rows, argmaxes, strict=True))
    ]


class _Way(NamedTuple):
    """Where the argmax leads in one row."""

    path: list[int]  # tree columns, in order
    tokens: list[int]  # those of the path
    next_id: int  # the argmax behind the path
    straight: bool  # the path stands in consecutive columns behind the root


def _follow_argmax(batch: VerifyBatch, out: EngineOutput) -> list[_Way]:
    """The path of every row whose columns all are their parent's argmax; children differ, so there is one at most."""
    ids, root = batch.input_ids, batch.n_forced[:, None] - 1
    columns = np.arange(ids.shape[1])
    in_tree = (columns > root) & (columns < batch.n_nodes[:, None])
    above = np.minimum(np.maximum(batch.parents - root, 0), out.next_ids.shape[1] - 1)
    wrong = in_tree & (np.take_along_axis(out.next_ids, above, axis=1) != ids)
    on_path = in_tree & ~(batch.tree_mask & wrong[:, None, :]).any(axis=2)
    rows, path = np.nonzero(on_path)
    counts = np.bincount(rows, minlength=len(ids))
    ends = counts.cumsum()
    last = root[:, 0].copy()
    found = counts > 0
    last[found] = path[ends[found] - 1]
    next_ids = out.next_ids[np.arange(len(ids)), last - root[:, 0]]
    straight = last == root[:, 0] + counts
    every, tokens = path.tolist(), ids[rows, path].tolist()
    return [
        _Way(every[end - n : end], tokens[end - n : end], next_id, is_straight)
        for n, end, next_id, is_straight in zip(
            counts.tolist(), ends.tolist(), next_ids.tolist(), straight.tolist(), strict=True
        )
    ]


def _argmax_verdict(row: Row, way: _Way) -> Verdict:
    """The walk down the way, cut where the row's room or a stop id ends it."""
    assert row.room > 0, "a row without room must not sample"
    tokens = [*way.tokens, way.next_id][: row.room]
    if not row.stop_ids.isdisjoint(tokens):
        tokens = tokens[: 1 + next(i for i, token in enumerate(tokens) if token in row.stop_ids)]
    path = way.path[: len(tokens) - 1]
    n_forced = len(row.forced)
    if way.straight:
        keep = np.arange(n_forced + len(path), dtype=np.int32)
    else:
        keep = np.array([*range(n_forced), *path], np.int32)
    return Verdict(keep, tuple(path), tuple(tokens))


def walk(batch: VerifyBatch, out: EngineOutput, row: Row, b: int, *, branch_noise: float = 0.0) -> Verdict:
    """The walk of one row.

    Ends where no child carries the choice, at a stop id, when the row's room is used up, or behind a branch where
    noise could change the choice.
    """
    n_forced, n_nodes = int(batch.n_forced[b]), int(batch.n_nodes[b])
    echoed = _echoed(out, row, b)
    if not row.samples:
        return Verdict(np.arange(n_forced, dtype=np.int32), (), (), (), echoed)
    assert row.room > 0, "a row without room must not sample"
    root = n_forced - 1
    first = first_scored(row)
    ids = batch.input_ids[b, :n_nodes].tolist()
    parents = batch.parents[b, :n_nodes].tolist()
    position = row.past_len + n_forced
    keep = list(range(n_forced))
    path: list[int] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    node: int | None = root
    noise = 0.0
    while node is not None:
        scores = out.node(b, node - first)
        token = row.choose(scores, position + len(tokens), tokens, noise)
        if token is None:
            break
        tokens.append(token)
        if row.n_logprobs is not None:
            logprobs.append(token_logprob(scores, token, row.n_logprobs))
        if token in row.stop_ids or len(tokens) == row.room:
            break
        child = _child(ids, parents, node, token)
        if child != node + 1:
            noise = branch_noise
        if child is not None:
            path.append(child)
            if noise == 0:
                keep.append(child)
        node = child
    used = path[: len(tokens) - 1]  # a last column where nothing was chosen has saved nothing
    return Verdict(np.array(keep, np.int32), tuple(used), tuple(tokens), tuple(logprobs), echoed)


def _echoed(out: EngineOutput, row: Row, b: int) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of the row's echo: column i predicts token i of it."""
    if row.echo is None:
        return ()
    return tuple(token_logprob(out.node(b, i), t, row.echo.n_top) for i, t in enumerate(row.echo.tokens.tolist()))


def _child(ids: list[int], parents: list[int], node: int, token: int) -> int | None:
    for c in range(node + 1, len(ids)):  # children stand after their parent
        if parents[c] == node and ids[c] == token:
            return c
    return None
