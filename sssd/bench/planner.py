"""What speculation would bring on this machine, before anything is served: costs measured, acceptance replayed.

Owns the forecast. Knows no engine: costs are a curve, acceptance comes from recorded answers or from an assumption.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sssd.bench.replay import Pair, accepted_path
from sssd.drafting.base import Drafter
from sssd.errors import SssdError
from sssd.runtime.costs import CostCurve, Float64
from sssd.spec import WEIGHTS, Bundle
from sssd.types import DraftJob, DraftOptions

BUDGETS = (1, 3, 7, 15, 31)  # draft nodes that are tried
ASSUMED_RATE = 0.4  # chance that the next draft token is accepted, where nothing is replayed
_RAM_SHARE = 0.9  # of the machine's memory, for weights and KV


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What trees of at most `nodes` draft nodes bring to one row."""

    nodes: int
    tokens_per_step: float
    sizes: tuple[float, ...]  # [nodes + 1] share of the steps whose tree has so many nodes


@dataclass(frozen=True, slots=True)
class BatchForecast:
    """The best choice at one batch size, against plain decoding."""

    batch: int
    width: int  # columns of a row, one for the last token and the rest for drafts
    pays: bool  # whether a width beyond the narrowest one is best
    tokens_per_step: float  # a row
    tokens_per_second: float  # the whole batch
    speedup: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; `slots` is how many full-length slots fit beside the weights in 90 % of the machine's memory."""

    weights: int
    kv_slot: int
    ram: int
    slots: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What `sssd plan` says."""

    name: str
    weights: str
    acceptance_from: str  # what the acceptance comes from, in words
    context: int  # tokens of the longest row
    narrowest: int  # columns of a plain step; drafts that fit in there are free
    acceptance: tuple[Acceptance, ...]
    batches: tuple[BatchForecast, ...]
    break_even: int | None  # smallest batch where no wider step pays; None = not within what was measured
    memory: Memory


def assumed_acceptance(rate: float = ASSUMED_RATE) -> tuple[Acceptance, ...]:
    """Chains whose tokens are each accepted with chance `rate` after the one before."""
    if not 0 <= rate < 1:
        raise SssdError(f"the acceptance is {rate}: allowed is 0 to below 1")
    return tuple(
        Acceptance(k, (1 - rate ** (k + 1)) / (1 - rate), tuple(float(n == k) for n in range(k + 1))) for k in BUDGETS
    )


def replayed_acceptance(pairs: Sequence[Pair], make: Callable[[], Drafter]) -> tuple[Acceptance, ...]:
    """Recorded answers replayed with a fresh drafter for every budget. Raises SssdError when there is no answer."""
    if not pairs:
        raise SssdError("no recorded answer to replay: give a file whose records have prompt or turns, and answer")
    return tuple(_replay(pairs, make(), k) for k in BUDGETS)


def _replay(pairs: Sequence[Pair], drafter: Drafter, budget: int) -> Acceptance:
    sizes = np.zeros(budget + 1)
    n_tokens = 0
    for request_id, pair in enumerate(pairs):
        drafter.begin(request_id, pair.prompt, DraftOptions(remember=False))
        answer = pair.answer.tolist()
        done = 0
        while done < len(answer):
            (tree,) = drafter.propose([DraftJob(request_id, budget)])
            n = len(accepted_path(tree, answer, done)) + 1
            drafter.accept(request_id, pair.answer[done : done + n], tree)
            sizes[len(tree)] += 1
            done += n
        n_tokens += len(answer)
        drafter.end(request_id)
    drafter.close()
    return Acceptance(budget, n_tokens / float(sizes.sum()), tuple((sizes / sizes.sum()).tolist()))


def forecast(
    bundle: Bundle, curve: CostCurve, acceptance: Sequence[Acceptance], *, acceptance_from: str, context: int
) -> Forecast:
    """The best fixed budget at every batch size that was measured, what it brings, and where it stops to pay.

    A step is as wide as its largest tree, so its cost is expected over the largest of `batch` independent trees. The
    budget of a running loop decides every step by its own scores and does better than any fixed one.
    """
    spec = bundle.spec
    most = curve.batches[-1]
    every = [_best(curve, acceptance, batch, spec.min_width, context) for batch in range(1, most + 1)]
    return Forecast(
        name=spec.name,
        weights=spec.weights,
        acceptance_from=acceptance_from,
        context=context,
        narrowest=spec.min_width,
        acceptance=tuple(acceptance),
        batches=tuple(every[batch - 1] for batch in curve.batches),
        break_even=next((f.batch for f in every if not f.pays), None),
        memory=_memory(bundle),
    )


def _best(
    curve: CostCurve, acceptance: Sequence[Acceptance], batch: int, narrowest: int, context: int
) -> BatchForecast:
    plain = curve.seconds(batch, narrowest, context)
    best = BatchForecast(batch, narrowest, False, 1.0, batch / plain, 1.0)
    for a in acceptance:
        seconds = _expected_seconds(curve, a, batch, narrowest, context)
        speedup = a.tokens_per_step * plain / seconds
        if speedup > best.speedup:
            width = max(narrowest, 1 + a.nodes)
            rate = batch * a.tokens_per_step / seconds
            best = BatchForecast(batch, width, width > narrowest, a.tokens_per_step, rate, speedup)
    return best


def _expected_seconds(curve: CostCurve, a: Acceptance, batch: int, narrowest: int, context: int) -> float:
    costs = [curve.seconds(batch, max(narrowest, 1 + n), context) for n in range(a.nodes + 1)]
    largest: Float64 = np.diff(np.cumsum(a.sizes) ** batch, prepend=0.0)  # chance that the largest tree has n nodes
    return float(largest @ np.array(costs))


def _memory(bundle: Bundle) -> Memory:
    weights = sum(entry.size for entry in bundle.manifest.files if entry.name == WEIGHTS)
    kv_slot = bundle.spec.max_len * bundle.spec.kv_bytes_per_token()
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Memory(weights, kv_slot, ram, max(int(_RAM_SHARE * ram - weights), 0) // kv_slot)
