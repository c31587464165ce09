"""What a running server is like at one moment. Owns the value that /metrics and /stats show beside the meter's counts.

Knows neither HTTP nor text. Read from another thread than the loop's: every part is one number or made in one go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sssd.drafting.datastore import Datastore
from sssd.drafting.store_live import LiveStats
from sssd.runtime.budget import BudgetStats
from sssd.runtime.loop import Loop, PhaseTimes


@dataclass(frozen=True, slots=True)
class LoopGauges:
    """The loop, its queue and its slots."""

    n_slots: int
    n_running: int
    n_waiting: int
    max_waiting: int
    n_preempted: int
    n_engine_failures: int
    n_drafter_failures: int
    times: PhaseTimes
    budget: BudgetStats


@dataclass(frozen=True, slots=True)
class DatastoreGauges:
    """A datastore file that drafts come from."""

    path: Path
    n_tokens: int  # when it was opened
    n_bytes: int
    present: bool  # whether the file still stands where it was opened; drafting goes on without it until a restart


@dataclass(frozen=True, slots=True)
class Gauges:
    """All of it."""

    model: str
    ready: bool
    loop: LoopGauges | None  # None while the model is loading
    datastore: DatastoreGauges | None = None
    live: LiveStats | None = None


def loop_gauges(loop: Loop) -> LoopGauges:
    """A loop as it is now; its thread goes on meanwhile."""
    return LoopGauges(
        n_slots=loop.scheduler.n_slots,
        n_running=loop.scheduler.n_running,
        n_waiting=loop.scheduler.n_waiting,
        max_waiting=loop.scheduler.max_waiting,
        n_preempted=loop.scheduler.n_preempted,
        n_engine_failures=loop.n_engine_failures,
        n_drafter_failures=loop.n_drafter_failures,
        times=loop.times,
        budget=loop.budget.stats(),
    )


def datastore_gauges(path: Path, tokenizer: str) -> DatastoreGauges:
    """A datastore file as it is when it is opened. Raises DatastoreError or SpecMismatch."""
    with Datastore(path, tokenizer=tokenizer) as store:
        n_tokens = sum(len(s.tokens) for name in store.namespaces for s in store.segments(name))
    return DatastoreGauges(path, n_tokens, path.stat().st_size, present=True)
