"""The body of GET /stats: the server at a glance, as the page at / reads it. Owns its JSON; counts nothing."""

from __future__ import annotations

import msgspec

from sssd.drafting.store_live import LiveStats
from sssd.server.gauges import DatastoreGauges, Gauges, LoopGauges
from sssd.server.lifecycle import Phase
from sssd.server.meter import Meter


class LoopStatistics(msgspec.Struct, kw_only=True):
    """Queue, slots and steps."""

    slots: int
    running: int
    waiting: int
    queue_limit: int
    steps: int
    steps_speculating: int
    steps_plain: int
    engine_failures: int
    drafter_failures: int


class DatastoreStatistics(msgspec.Struct, kw_only=True):
    """A datastore file."""

    tokens: int
    bytes: int
    present: bool


class LiveStatistics(msgspec.Struct, kw_only=True):
    """The live datastore."""

    tokens: int
    documents: int
    bytes: int
    failures: int


class Statistics(msgspec.Struct, kw_only=True):
    """All of it; parts that are not there yet, or not used, are null."""

    phase: Phase
    model: str
    active_requests: int
    generated_tokens: int
    loop: LoopStatistics | None
    datastore: DatastoreStatistics | None
    live: LiveStatistics | None


def statistics(phase: Phase, gauges: Gauges, meter: Meter) -> Statistics:
    """What /stats answers now."""
    store, live = gauges.datastore, gauges.live
    return Statistics(
        phase=phase,
        model=gauges.model,
        active_requests=meter.n_active,
        generated_tokens=meter.tokens,
        loop=None if gauges.loop is None else _loop(gauges.loop),
        datastore=None if store is None else _datastore(store),
        live=None if live is None else _live(live),
    )


def _datastore(g: DatastoreGauges) -> DatastoreStatistics:
    return DatastoreStatistics(tokens=g.n_tokens, bytes=g.n_bytes, present=g.present)


def _live(s: LiveStats) -> LiveStatistics:
    held = s.holdings
    return LiveStatistics(
        tokens=held.n_tokens, documents=held.n_documents, bytes=held.file_bytes, failures=s.n_failures
    )


def _loop(g: LoopGauges) -> LoopStatistics:
    return LoopStatistics(
        slots=g.n_slots,
        running=g.n_running,
        waiting=g.n_waiting,
        queue_limit=g.max_waiting,
        steps=g.times.steps,
        steps_speculating=g.budget.n_speculating,
        steps_plain=g.budget.n_plain,
        engine_failures=g.n_engine_failures,
        drafter_failures=g.n_drafter_failures,
    )
