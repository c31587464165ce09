from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sssd.drafting.store_live import LiveStats
from sssd.drafting.store_shelf import Holdings
from sssd.runtime.budget import BudgetStats
from sssd.runtime.loop import PhaseTimes
from sssd.server.gauges import DatastoreGauges, Gauges, LoopGauges
from sssd.server.meter import Histogram, Meter
from sssd.server.prometheus import registry
from sssd.types import Source, StepOutput

BUDGET = BudgetStats(n_speculating=7, n_plain=3, n_switches=2, n_probes=1, trust=0.5, widths=((2, 3), (9, 7)))
LOOP = LoopGauges(4, 3, 5, 64, 1, 2, 6, PhaseTimes(steps=12, propose=2_000_000_000), BUDGET)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def counts(**by_source: int) -> tuple[int, ...]:
    return tuple(by_source.get(s.name.lower(), 0) for s in Source)


def step(n_tokens: int, drafted: tuple[int, ...] = (), accepted: tuple[int, ...] = ()) -> StepOutput:
    return StepOutput(0, tuple(range(n_tokens)), n_drafted=drafted or counts(), n_accepted=accepted or counts())


def ended(meter: Meter, clock: Clock) -> None:
    """One request: 3 tokens after 0.5 s, 2 more 0.2 s later, 1 more 0.1 s later."""
    request = meter.arrived()
    clock.now += 0.5
    request.step(step(3, counts(context=4, datastore=2), counts(context=1, datastore=1)), 3)
    clock.now += 0.2
    request.step(step(2, counts(context=5), counts(context=1)), 2)
    clock.now += 0.1
    request.step(step(1), 1)
    request.ended("stop", prompt_tokens=40, cached_tokens=16, queue_seconds=0.3)
    request.ended("cancelled", prompt_tokens=40, cached_tokens=16, queue_seconds=0.3)  # counted once


def scraped(meter: Meter, gauges: Gauges) -> dict[str, float]:
    """Every sample by its name and label values, without those of buckets."""
    text = generate_latest(registry(meter, lambda: gauges)).decode()
    return {
        " ".join((s.name, *(v for k, v in s.labels.items() if k != "model_name"))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if not s.name.endswith("_bucket")
    }


def test_a_histogram_counts_each_value_under_the_first_bound_that_covers_it() -> None:
    h = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        h.observe(value)
    h.observe(2.5, 3)
    assert h.counts == [2, 2, 4]
    assert (h.n, h.total) == (8, 21.5)


def test_steps_are_counted_by_source_and_by_position() -> None:
    clock = Clock()
    meter = Meter(clock)
    ended(meter, clock)
    assert (meter.n_steps, meter.n_drafts, meter.tokens) == (3, 2, 6)
    assert meter.drafted == list(counts(context=9, datastore=2))
    assert meter.accepted == list(counts(context=2, datastore=1))
    assert meter.steps_with == list(counts(context=2, datastore=1))
    assert meter.by_position == [2, 1]


def test_times_are_a_tokens_share_of_its_step() -> None:
    clock = Clock()
    meter = Meter(clock)
    ended(meter, clock)
    assert (meter.to_first_token.n, round(meter.to_first_token.total, 6)) == (1, 0.5)
    assert (meter.between_tokens.n, round(meter.between_tokens.total, 6)) == (3, 0.3)
    assert round(meter.per_output_token.total, 6) == 0.1
    assert round(meter.end_to_end.total, 6) == 0.8
    assert meter.n_active == 0
    assert dict(meter.finished) == {"stop": 1}


def test_tokens_behind_a_stop_string_are_not_delivered() -> None:
    meter = Meter(Clock())
    meter.arrived().step(step(5), 2)
    assert meter.tokens == 2


def test_a_request_that_never_ran_has_no_queue_time() -> None:
    meter = Meter(Clock())
    meter.arrived().ended("cancelled", prompt_tokens=1, cached_tokens=0, queue_seconds=None)
    assert meter.in_queue.n == 0
    assert meter.per_output_token.n == 0


def test_a_scrape_says_the_same_under_both_names() -> None:
    clock = Clock()
    meter = Meter(clock)
    ended(meter, clock)
    meter.refused["429"] += 2
    found = scraped(meter, Gauges("toy", True, LOOP))
    for ours, theirs in (
        ("requests_running", "num_requests_running"),
        ("requests_waiting", "num_requests_waiting"),
        ("prompt_tokens_total", "prompt_tokens_total"),
        ("generation_tokens_total", "generation_tokens_total"),
        ("drafts_total", "spec_decode_num_drafts_total"),
        ("prefix_cache_hits_total", "prefix_cache_hits_total"),
        ("time_to_first_token_seconds_sum", "time_to_first_token_seconds_sum"),
        ("request_seconds_count", "e2e_request_latency_seconds_count"),
        ("queue_seconds_sum", "request_queue_time_seconds_sum"),
        ("accepted_at_total 0", "spec_decode_num_accepted_tokens_per_pos_total 0"),
    ):
        assert found[f"sssd:{ours}"] == found[f"vllm:{theirs}"], ours
    assert found["vllm:spec_decode_num_draft_tokens_total"] == 11
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == 3
    assert found["vllm:request_success_total abort"] == 0
    assert found["vllm:request_success_total stop"] == 1
    assert found["sssd:draft_tokens_total context"] == 9
    assert found["sssd:draft_hits_total datastore"] == 1
    assert found["sssd:http_errors_total 429"] == 2
    assert found["vllm:kv_cache_usage_perc"] == 0.75


def test_a_scrape_shows_the_loop_and_what_has_failed() -> None:
    holdings = Holdings(("default",), 3, 70, 2, 1, 4, 0, 9000, None)
    store = DatastoreGauges(Path("x"), n_tokens=50, n_bytes=700, present=False)
    found = scraped(Meter(), Gauges("toy", False, LOOP, store, LiveStats(holdings, 1, 2, "disk full")))
    assert found["sssd:ready"] == 0
    assert found["sssd:draft_seconds_total"] == 2
    assert found["sssd:width_steps_total 9"] == 7
    assert found["sssd:speculation_switches_total"] == 2
    assert found["sssd:engine_failures_total"] == 2
    assert found["sssd:drafter_failures_total"] == 6
    assert found["sssd:datastore_present"] == 0
    assert found["sssd:live_tokens"] == 70
    assert found["sssd:live_lost_documents_total"] == 4
    assert found["sssd:live_failures_total"] == 2


def test_while_the_model_loads_a_scrape_says_only_that() -> None:
    assert scraped(Meter(), Gauges("", False, None)) == {"sssd:ready": 0}


def test_two_servers_in_one_process_do_not_share_numbers() -> None:
    one, other = Meter(), Meter()
    one.tokens = 5
    gauges = Gauges("toy", True, LOOP)
    assert scraped(one, gauges)["sssd:generation_tokens_total"] == 5
    assert scraped(other, gauges)["sssd:generation_tokens_total"] == 0
