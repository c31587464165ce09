"""The server's numbers as Prometheus reads them. Owns the names, ours and the `vllm:` ones that dashboards know.

Counts nothing itself. Every scrape builds the families anew from the meter and the gauges; there is no global registry.

An alias says the same number under the name that vLLM gives it, so that its dashboards and benchmark clients work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sssd.runtime.loop import PHASES
from sssd.server.gauges import DatastoreGauges, Gauges, LoopGauges
from sssd.server.meter import Histogram, Meter
from sssd.types import Source

ABORTED = {"cancelled": "abort"}  # vLLM's word for ours; `timeout` it does not have


class _Number(NamedTuple):
    name: str  # without prefix; `_total` is added to counters
    help: str
    value: Callable[[Meter, LoopGauges], float]
    alias: str | None = None


_COUNTERS = (
    _Number(
        "prompt_tokens", "Prompt tokens of requests that have ended.", lambda m, g: m.prompt_tokens, "prompt_tokens"
    ),
    _Number("generation_tokens", "Tokens delivered.", lambda m, g: m.tokens, "generation_tokens"),
    _Number(
        "prefix_cache_queries",
        "Prompt tokens that were looked up.",
        lambda m, g: m.prompt_tokens,
        "prefix_cache_queries",
    ),
    _Number(
        "prefix_cache_hits",
        "Of them, copied instead of computed.",
        lambda m, g: m.cached_tokens,
        "prefix_cache_hits",
    ),
    _Number("request_steps", "Steps that emitted tokens, counted once a request.", lambda m, g: m.n_steps),
    _Number("drafts", "Of them, with a draft.", lambda m, g: m.n_drafts, "spec_decode_num_drafts"),
    _Number("steps", "Steps of the loop.", lambda m, g: g.times.steps),
    _Number("steps_speculating", "Steps wider than they had to be.", lambda m, g: g.budget.n_speculating),
    _Number("steps_plain", "Decoding steps as narrow as the engine allows.", lambda m, g: g.budget.n_plain),
    _Number("speculation_switches", "Times speculation went on or off.", lambda m, g: g.budget.n_switches),
    _Number(
        "speculation_probes", "Steps that tried another width, to stay up to date.", lambda m, g: g.budget.n_probes
    ),
    _Number("preemptions", "Requests put back to be computed again.", lambda m, g: g.n_preempted, "num_preemptions"),
    _Number("engine_failures", "Forward passes that failed.", lambda m, g: g.n_engine_failures),
    _Number(
        "drafter_failures",
        "Steps that went without drafts because the drafter failed.",
        lambda m, g: g.n_drafter_failures,
    ),
)
_GAUGES = (
    _Number("requests_running", "Requests with a slot.", lambda m, g: g.n_running, "num_requests_running"),
    _Number("requests_waiting", "Requests without a slot.", lambda m, g: g.n_waiting, "num_requests_waiting"),
    _Number("queue_limit", "Requests that may wait.", lambda m, g: g.max_waiting),
    _Number("slots", "Requests that can run at once.", lambda m, g: g.n_slots),
    _Number(
        "slots_used_ratio", "Share of the slots in use.", lambda m, g: g.n_running / g.n_slots, "kv_cache_usage_perc"
    ),
    _Number("draft_trust", "Accepted draft tokens over promised ones, lately.", lambda m, g: g.budget.trust),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Meter], Histogram], str], ...] = (
    (
        "time_to_first_token_seconds",
        "From arrival to the first token.",
        lambda m: m.to_first_token,
        "time_to_first_token_seconds",
    ),
    (
        "inter_token_latency_seconds",
        "Between tokens; a step's time shared by its tokens.",
        lambda m: m.between_tokens,
        "inter_token_latency_seconds",
    ),
    (
        "time_per_output_token_seconds",
        "A request's mean time between tokens.",
        lambda m: m.per_output_token,
        "request_time_per_output_token_seconds",
    ),
    ("request_seconds", "From arrival to the end.", lambda m: m.end_to_end, "e2e_request_latency_seconds"),
    ("queue_seconds", "From arrival to a slot.", lambda m: m.in_queue, "request_queue_time_seconds"),
)


def registry(meter: Meter, gauges: Callable[[], Gauges]) -> CollectorRegistry:
    """A registry of its own whose every collection reads `meter` and calls `gauges`."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Numbers(meter, gauges))
    return made


class _Numbers(Collector):
    def __init__(self, meter: Meter, gauges: Callable[[], Gauges]) -> None:
        self._meter = meter
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        meter, gauges = self._meter, self._gauges()
        model = gauges.model
        yield _gauge("sssd:ready", "1 while requests are taken in.", [((), gauges.ready)])
        if gauges.loop is None:
            return
        for n in _COUNTERS:
            value = n.value(meter, gauges.loop)
            yield _counter(f"sssd:{n.name}", n.help, [((), value)])
            if n.alias:
                yield _counter(f"vllm:{n.alias}", n.help, [((model,), value)], ("model_name",))
        for n in _GAUGES:
            value = n.value(meter, gauges.loop)
            yield _gauge(f"sssd:{n.name}", n.help, [((), value)])
            if n.alias:
                yield _gauge(f"vllm:{n.alias}", n.help, [((model,), value)], ("model_name",))
        for name, text, histogram, alias in _HISTOGRAMS:
            yield _histogram(f"sssd:{name}", text, histogram(meter), ())
            yield _histogram(f"vllm:{alias}", text, histogram(meter), (model,))
        yield from _ends(meter, model)
        yield from _drafts(meter, model)
        yield from _time_and_width(gauges.loop)
        yield from _stores(gauges)


_Samples = Sequence[tuple[tuple[str, ...], float]]  # (label values, value)


def _counter(name: str, text: str, samples: _Samples, labels: Sequence[str] = ()) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _gauge(name: str, text: str, samples: _Samples, labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _histogram(name: str, text: str, h: Histogram, model: tuple[str, ...]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("model_name",) if model else ())
    bounds = [*map(str, h.bounds), "+Inf"]
    family.add_metric(model, list(zip(bounds, accumulate(map(float, h.counts)), strict=True)), h.total)
    return family


def _ends(meter: Meter, model: str) -> Iterator[Metric]:
    ends = {"stop": 0, "length": 0, "timeout": 0, "cancelled": 0, "error": 0} | meter.finished
    text = "Requests that have ended, by why."
    yield _counter("sssd:requests", text, [((why,), n) for why, n in ends.items()], ("finish",))
    yield _counter(
        "vllm:request_success",
        text,
        [((model, ABORTED.get(why, why)), n) for why, n in ends.items()],
        ("model_name", "finished_reason"),
    )
    refused = [((status,), float(n)) for status, n in sorted(meter.refused.items())]
    yield _counter("sssd:http_errors", "HTTP requests that were answered with an error.", refused, ("status",))


def _drafts(meter: Meter, model: str) -> Iterator[Metric]:
    for name, text, counts in (
        ("draft_tokens", "Draft tokens verified, by source.", meter.drafted),
        ("accepted_tokens", "Draft tokens accepted, by source.", meter.accepted),
        ("draft_hits", "Drafts to which a source gave a token; over sssd:drafts its hit rate.", meter.steps_with),
    ):
        yield _counter(f"sssd:{name}", text, [((s.name.lower(),), counts[s]) for s in Source], ("source",))
    for name, text, total in (
        ("num_draft_tokens", "Draft tokens verified.", sum(meter.drafted)),
        ("num_accepted_tokens", "Draft tokens accepted.", sum(meter.accepted)),
    ):
        yield _counter(f"vllm:spec_decode_{name}", text, [((model,), total)], ("model_name",))
    text = "Drafts whose token at this position was accepted."
    places = list(enumerate(meter.by_position))
    yield _counter("sssd:accepted_at", text, [((str(i),), n) for i, n in places], ("position",))
    yield _counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        text,
        [((model, str(i)), n) for i, n in places],
        ("model_name", "position"),
    )


def _time_and_width(g: LoopGauges) -> Iterator[Metric]:
    spent = [((phase,), getattr(g.times, phase) / 1e9) for phase in PHASES]
    yield _counter("sssd:phase_seconds", "Time of the loop, by phase of a step.", spent, ("phase",))
    yield _counter("sssd:draft_seconds", "Of it, drafting.", [((), g.times.propose / 1e9)])
    widths = [((str(width),), float(n)) for width, n in g.budget.widths]
    yield _counter("sssd:width_steps", "Decoding steps, by their width in columns.", widths, ("columns",))


def _stores(gauges: Gauges) -> Iterator[Metric]:
    if gauges.datastore is not None:
        yield from _datastore(gauges.datastore)
    if gauges.live is None:
        return
    held = gauges.live.holdings
    for name, text, value in (
        ("tokens", "Tokens that can be found.", held.n_tokens),
        ("documents", "Finished requests that can be found.", held.n_documents),
        ("bytes", "Size of the file.", held.file_bytes),
        ("segments", "Segments, over all namespaces.", held.n_segments),
        ("unsaved_documents", "Documents that the file does not hold yet.", held.n_unsaved),
    ):
        yield _gauge(f"sssd:live_{name}", f"Live datastore: {text}", [((), value)])
    yield _counter("sssd:live_failures", "Live datastore: failed writes and jobs.", [((), gauges.live.n_failures)])
    yield _counter("sssd:live_lost_documents", "Live datastore: neither saved nor kept.", [((), held.n_lost)])


def _datastore(d: DatastoreGauges) -> Iterator[Metric]:
    yield _gauge("sssd:datastore_tokens", "Tokens of the datastore file.", [((), d.n_tokens)])
    yield _gauge("sssd:datastore_bytes", "Size of the datastore file.", [((), d.n_bytes)])
    yield _gauge("sssd:datastore_present", "0 when the file has vanished since it was opened.", [((), d.present)])
