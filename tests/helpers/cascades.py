"""Cascades over scripts: draft models that agree with a target now and then, and what is known in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sssd.config import CascadeConfig
from sssd.drafting.base import Drafter
from sssd.drafting.cascade import Cascade
from sssd.drafting.level import Level
from sssd.engines.scripted import ScriptedEngine
from sssd.tree import chain_tree
from sssd.types import DraftJob, DraftTree, Int32, Source
from tests.helpers.scripts import VOCAB, HistoryDrafter

Script = Callable[[Int32], np.ndarray]


def close_to(target: Script, other: Script, share: float) -> Script:
    """A draft model: `share` of the target's scores, the rest another script's."""
    return lambda context: (share * target(context) + (1 - share) * other(context)).astype(np.float32)


def probabilities(script: Script) -> Callable[[Sequence[int]], list[float]]:
    """The script as a plain cascade's model."""

    def model(text: Sequence[int]) -> list[float]:
        scores = script(np.array(text, np.int32)).astype(np.float64)
        weights = np.exp(scores - scores.max())
        return list((weights / weights.sum()).tolist())

    return model


def slow_max_gram(text: Sequence[int], n: int) -> list[int]:
    """The earliest place of the longest suffix that occurred before, copied on into the copy."""
    best, end = 0, 0
    for e in range(1, len(text)):
        m = 0
        while m < e and text[e - 1 - m] == text[len(text) - 1 - m]:
            m += 1
        if m > best:
            best, end = m, e
    period = len(text) - end
    return [text[end + i % period] for i in range(n)] if best else []


class AheadOracle(HistoryDrafter):
    """Knows every request's full text, also behind guesses that are right so far."""

    def __init__(self, full: dict[int, list[int]]) -> None:
        super().__init__()
        self.full = full

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._chain(job) for job in jobs]

    def _chain(self, job: DraftJob) -> DraftTree:
        ahead = [] if job.ahead is None else job.ahead.tolist()
        known = [*self.history[job.request_id], *ahead]
        full = self.full[job.request_id]
        path = full[len(known) : len(known) + job.budget] if full[: len(known)] == known else []
        ones = np.ones(len(path), np.float32)
        return chain_tree(np.array(path, np.int32), ones, np.full(len(path), Source.CONTEXT, np.uint8))


def cascade(
    scripts: Sequence[Script],
    below: Drafter,
    config: CascadeConfig,
    *,
    n_slots: int = 4,
    fails_at: frozenset[int] = frozenset(),
    max_len: int = 256,
) -> Cascade:
    levels = [
        Level(
            f"draft {i}",
            ScriptedEngine(script, vocab_size=VOCAB, n_slots=n_slots, max_len=max_len, fails_at=fails_at),
            lenience=config.lenience,
            children=config.children,
        )
        for i, script in enumerate(scripts)
    ]
    return Cascade(levels, below, config)


def random_k(rng: np.random.Generator, n_levels: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in rng.integers(1, 7, n_levels + 1 - row)) for row in range(n_levels + 1))
