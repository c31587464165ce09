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

import numpy as np

from sssd.sampling import token_logprob
from sssd.types import EngineOutput, Row, StepPlan, TokenLogprob, Verdict, VerifyBatch


def walk_all(batch: VerifyBatch, out: EngineOutput, plan: StepPlan, *, branch_noise: float = 0.0) -> list[Verdict]:
    """One verdict a row, in row order. Cost: one `choose` an emitted token, one pass over each tree."""
    return [walk(batch, out, row, b, branch_noise=branch_noise) for b, row in enumerate(plan.rows)]


def walk(batch: VerifyBatch, out: EngineOutput, row: Row, b: int, *, branch_noise: float = 0.0) -> Verdict:
    """The walk of one row.

    Ends where no child carries the choice, at a stop id, when the row's room is used up, or behind a branch where
    noise could change the choice.
    """
    n_forced, n_nodes = int(batch.n_forced[b]), int(batch.n_nodes[b])
    if not row.samples:
        return Verdict(np.arange(n_forced, dtype=np.int32), (), ())
    assert row.room > 0, "a row without room must not sample"
    root = n_forced - 1
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
        scores = out.node(b, node - root)
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
    return Verdict(np.array(keep, np.int32), tuple(used), tuple(tokens), tuple(logprobs))


def _child(ids: list[int], parents: list[int], node: int, token: int) -> int | None:
    for c in range(node + 1, len(ids)):  # children stand after their parent
        if parents[c] == node and ids[c] == token:
            return c
    return None
