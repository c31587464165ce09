"""The body of GET /stats: the server at a glance, as the page at / reads it. Owns its JSON; counts nothing."""

from __future__ import annotations

import msgspec

from sssd.server.gauges import Gauges, LoopGauges
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
        datastore=store and DatastoreStatistics(tokens=store.n_tokens, bytes=store.n_bytes, present=store.present),
        live=live
        and LiveStatistics(
            tokens=live.holdings.n_tokens,
            documents=live.holdings.n_documents,
            bytes=live.holdings.file_bytes,
            failures=live.n_failures,
        ),
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
