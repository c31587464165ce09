from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from sssd.bench.compare import compare, read_old
from sssd.bench.html import page, write_html
from sssd.bench.machine import Machine, this_machine
from sssd.bench.plots import Bar, Bars, Curve, Point, bar_plot, curve_plot, ticks
from sssd.bench.report import HEADS, LOAD_HEADS, About, Report, facts, load_row, records_json, row
from sssd.bench.samples import Belief, Measurements, Place, RunSample
from sssd.bench.summary import Record, inter_token_seconds, merge_bins, speedup_of, summarize
from sssd.bench.validity import warnings
from sssd.bench.workload import PassedOver, Workload
from sssd.drafting.confidence import ReliabilityBin
from sssd.errors import SssdError
from tests.helpers.bench import answer, measured, run, workload

QUIET = Machine("cpu", 2, "system", 0.1)


def of(records: tuple[Record, ...], mode: str, task: str) -> Record:
    (found,) = [r for r in records if (r.mode, r.task) == (mode, task)]
    return found


# ---- summary ------------------------------------------------------------------------------------


def test_the_speed_up_over_tasks_is_the_geometric_mean_of_ratios_of_sums() -> None:
    runs = [
        run("null", task="a", unit=0, seconds=3.0),
        run("null", task="a", unit=1, seconds=5.0),
        run("null", task="b", seconds=2.0),
        run("maxgram", task="a", unit=0, seconds=1.0),
        run("maxgram", task="a", unit=1, seconds=1.0),
        run("maxgram", task="b", seconds=2.0),
    ]
    records = summarize(measured(*runs))
    assert of(records, "maxgram", "a").speedup == pytest.approx(4)
    assert of(records, "maxgram", "b").speedup == pytest.approx(1)
    total = of(records, "maxgram", "all")
    assert total.speedup == pytest.approx(2)
    assert (total.tokens, total.seconds, total.samples) == (12, 4.0, ())
    assert of(records, "null", "all").speedup == 1


def test_repeats_are_summed_and_one_task_has_no_mean_over_tasks() -> None:
    runs = [run(m, repeat=i, seconds=s) for i, (m, s) in enumerate([("null", 3.0), ("null", 5.0)])]
    runs += [run("maxgram", repeat=i, seconds=s) for i, s in enumerate([1.0, 3.0])]
    records = summarize(measured(*runs))
    assert [(r.mode, r.speedup) for r in records] == [("null", 1.0), ("maxgram", pytest.approx(2))]
    assert records[1].prompts == 1
    assert records[1].speedup_low == records[1].speedup_high == pytest.approx(2)  # one prompt has no spread


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    random = np.random.default_rng(3)
    pairs = random.uniform(1, 3, (12, 2))
    found = speedup_of([pairs])
    assert found.value == pytest.approx(pairs[:, 0].sum() / pairs[:, 1].sum())
    twin = []
    for _ in range(4000):
        chosen = [pairs[random.integers(12)] for _ in range(12)]
        twin.append(sum(c[0] for c in chosen) / sum(c[1] for c in chosen))
    low, high = np.percentile(twin, [2.5, 97.5])
    assert found.low == pytest.approx(low, rel=0.03)
    assert found.high == pytest.approx(high, rel=0.03)
    assert found == speedup_of([pairs])


def test_tokens_of_one_step_share_the_time_since_the_one_before() -> None:
    made = run("null", answers=(answer(tokens=5, step_tokens=(2, 1, 2), step_seconds=(9.0, 3.0, 1.0)),))
    assert inter_token_seconds([made]) == [3.0, 0.5, 0.5]


def test_answers_that_differ_are_counted_and_histograms_added() -> None:
    other = answer("t/0", token_ids=(5, 6, 7, 9), accepted_lengths={0: 1, 1: 1})
    runs = [run("null", unit=0), run("null", unit=1), run("maxgram", unit=0, answers=(other,)), run("maxgram", unit=1)]
    record = of(summarize(measured(*runs)), "maxgram", "t")
    assert record.differing == 1
    assert record.accepted_lengths == {0: 1, 1: 3}
    assert record.widths == {2: 4}
    assert record.tokens_per_step == 2
    assert [(p.name, p.mean_us) for p in record.phases] == [("plan", 10.0), ("forward", 900.0)]


def test_bins_of_equal_bounds_are_joined_by_weight() -> None:
    bins = [
        ReliabilityBin(0.5, 0.6, 3, 0.5, 0.0),
        ReliabilityBin(0.1, 0.2, 1, 0.1, 0.0),
        ReliabilityBin(0.5, 0.6, 1, 0.58, 1.0),
    ]
    assert merge_bins(bins) == (
        ReliabilityBin(0.1, 0.2, 1, 0.1, 0.0),
        ReliabilityBin(0.5, 0.6, 4, pytest.approx(0.52), pytest.approx(0.25)),
    )


# ---- validity -----------------------------------------------------------------------------------


def said(*runs: RunSample, machine: Machine = QUIET, work: Workload | None = None) -> list[str]:
    found = measured(*runs)
    return list(warnings(machine, work or workload(t=1), found, summarize(found)))


def sound(mode: str = "null", *, paces: tuple[float, ...] = (1.0,) * 8) -> list[RunSample]:
    return [run(mode, unit=i, decode_seconds=p) for i, p in enumerate(paces)]


def test_a_sound_benchmark_has_nothing_against_it() -> None:
    assert said(*sound(), *sound("maxgram")) == []


def test_a_busy_machine_is_named() -> None:
    (text,) = said(*sound(), machine=Machine("cpu", 2, "system", 1.5))
    assert text.startswith("the machine was busy before the start (load 1.5 on 2 cores)")
    assert said(*sound(), machine=Machine("cpu", 2, "system", None)) == []


def test_prompts_passed_over_are_counted_and_named() -> None:
    passed = tuple(PassedOver(f"t/{i}", "t", "too long") for i in range(5))
    (text,) = said(*sound(), work=Workload(workload(t=1).prompts, passed))
    assert text == "t: prompts passed over: 5 (t/0, t/1, t/2, ...); of t/0: too long"


def test_few_prompts_and_short_batches_are_named() -> None:
    few, short = said(run("null", batch=4), run("maxgram", batch=4))[::-1]
    assert few.startswith("fewer than 5 prompts of t")
    assert short == "t: a batch holds fewer than 4 prompts: make --limit a multiple of --batch"


def test_a_cold_first_run_is_named() -> None:
    (text,) = said(*sound(paces=(2.0, *(1.0,) * 7)))
    assert "took 2.00 times as long a token as the others" in text


def test_a_drifting_baseline_is_named() -> None:
    (text,) = said(*sound(paces=(1.0,) * 4 + (1.3,) * 4))
    assert "changed by +30% from the first half" in text


def test_answers_that_differ_are_a_warning_unless_that_is_the_price_of_fastest() -> None:
    other = [replace(r, answers=(answer(f"t/{r.place.unit}", token_ids=(1, 2, 3, 4)),)) for r in sound("maxgram")]
    (text,) = said(*sound(), *other)
    assert text.startswith("maxgram: 8 of 8 answers differ from the baseline's (first: t/0)")
    fastest = [replace(r, mode="null@fastest") for r in other]
    found = measured(*sound(), *fastest)
    assert warnings(QUIET, workload(t=1), found, summarize(found)) == ()
    assert of(summarize(found), "null@fastest", "t").differing == 8


def test_a_mode_without_drafts_is_named() -> None:
    idle = [replace(r, answers=(answer(f"t/{r.place.unit}", drafted=0, accepted=0),)) for r in sound("retrieval")]
    (text,) = said(*sound(), *idle)
    assert text == "retrieval: not one token was drafted, so it was measured as plain decoding"


def test_a_wide_spread_is_named() -> None:
    uneven = [run("maxgram", unit=i, seconds=0.5 if i % 2 else 4.0) for i in range(8)]
    (text,) = said(*sound(), *uneven)
    assert text.startswith("maxgram, t, batch 1: the speed-up's spread is ")


# ---- reports ------------------------------------------------------------------------------------


def about(**fields: object) -> About:
    made = About(
        command="sssd bench --data 'a <b>.jsonl'",
        sssd="0",
        model="tiny",
        weights="fp32",
        machine=this_machine(),
        device="cpu",
        threads=0,
        max_tokens=4,
        stops_at_eos=False,
        temperature=0.0,
        max_draft_tokens=7,
        fixed_width=None,
        chat=True,
        repeat=1,
        seconds=3.0,
        warnings=("beware of <angles>",),
    )
    return replace(made, **fields)


def full() -> Report:
    """Two tasks, two modes, one rate, and a drafter that judges itself."""
    runs = [run(m, task=t, unit=i) for t in ("t", "u") for i in range(3) for m in ("null", "maxgram")]
    load = Place("all", 2, 1.5, 0, 0)
    runs += [run(m, place=load) for m in ("null", "maxgram")]
    runs = [replace(r, place=load) if r.place.rate else r for r in runs]
    belief = Belief("maxgram", "t", 1, None, (ReliabilityBin(0.5, 0.55, 9, 0.52, 0.4),))
    return Report(about(), summarize(Measurements("fp32", tuple(runs), (belief,))))


def test_json_is_a_list_of_records_with_raw_samples() -> None:
    rows = json.loads(records_json(full()))
    assert {(r["mode"], r["task"], r["rate"]) for r in rows} == {
        (mode, task, rate)
        for mode in ("null", "maxgram")
        for task, rate in (("t", None), ("u", None), ("all", None), ("all", 1.5))
    }
    for r in rows:
        assert r.keys() >= {"mode", "weights", "batch", "task", "tokens_per_s", "speedup", "tokens_per_step"}
        assert r["about"]["warnings"] == ["beware of <angles>"]
    first = next(r for r in rows if r["task"] == "t" and r["mode"] == "maxgram")
    assert len(first["samples"]) == 3
    assert first["samples"][0]["answers"][0]["step_seconds"] == [1.0, 1.0]
    assert first["first_token_ms"] == {"p50": 1000.0, "p99": 1000.0}
    assert first["accepted_lengths"] == {"1": 6}
    assert first["reliability"][0]["n_nodes"] == 9


def test_rows_have_a_cell_for_every_head() -> None:
    for r in full().records:
        assert len(row(r)) == len(HEADS)
        if r.rate is not None:
            assert len(load_row(r)) == len(LOAD_HEADS)


def test_facts_say_what_a_figure_has_to_be_read_with() -> None:
    found = dict(facts(about(temperature=0.5, fixed_width=8, threads=3, chat=False, stops_at_eos=True, repeat=2)))
    assert "temperature 0.5; plain prompts" in found["answers"]
    assert "where the model ends it" in found["answers"]
    assert "every step 8 columns wide" in found["drafts"]
    assert "with 3 threads" in found["model"]
    assert "everything run 2 times" in found["took"]


class Tags(HTMLParser):
    """Open tags must be closed in order; collects what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_every_plot_escapes_and_loads_nothing() -> None:
    text = page(full())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.loads == []
    assert tags.seen.count("svg") == 4
    for heading in ("Speed-up by task, batch 1", "Latency against throughput", "Accepted draft", "Reliability"):
        assert f"<h2>{heading}" in text
    assert "<b>" not in text
    assert "beware of &lt;angles&gt;" in text
    assert "http" not in text


def test_a_page_is_renamed_into_place_or_refused(tmp_path: Path) -> None:
    write_html(full(), tmp_path / "r.html")
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(SssdError, match="cannot write"):
        write_html(full(), tmp_path / "absent" / "r.html")


@pytest.mark.parametrize("top", [0.003, 0.9, 1.0, 1.37, 2.0, 7.0, 99.0, 12345.0])
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    marks = ticks(top)
    assert marks[0] == 0
    assert marks[-2] < top <= marks[-1] * (1 + 1e-9)
    assert 4 <= len(marks) <= 11
    step = marks[1]
    assert round(step / 10 ** np.floor(np.log10(step * (1 + 1e-9))), 6) in (1, 2, 5)


def test_bars_and_curves_stand_where_their_values_are() -> None:
    bars = bar_plot(["a"], [Bars("m", (Bar(2.0, 1.0, 2.0),)), Bars("n", (None,))], y_label="y", line_at=1.0)
    rects = [line for line in bars.splitlines() if line.startswith("<rect") and "<title>" in line]
    assert len(rects) == 1
    assert 'y="34.0"' in rects[0]  # the top of the plot, which 2 reaches
    assert 'height="222.0"' in rects[0]
    curves = curve_plot([Curve("c", (Point(0.0, 0.0), Point(1.0, 1.0)))], x_label="x", y_label="y", diagonal=True)
    assert 'points="56.0,256.0 744.0,34.0"' in curves
    assert "stroke-dasharray" in curves
    assert curve_plot([], x_label="x", y_label="y").startswith("<svg")


# ---- compare ------------------------------------------------------------------------------------


def test_records_are_compared_place_by_place(tmp_path: Path) -> None:
    report = full()
    (tmp_path / "old.json").write_bytes(records_json(report))
    same = compare(read_old(tmp_path / "old.json"), report.records)
    assert len(same.changes) == len(report.records)
    assert {c.verdict for c in same.changes} == {"baseline", "same"}
    assert {c.rate_ratio for c in same.changes} == {1.0}
    assert (same.only_old, same.only_new) == ((), ())


def test_a_change_counts_when_the_intervals_do_not_meet(tmp_path: Path) -> None:
    new = [r for r in full().records if r.mode == "maxgram" and r.task == "t"]
    old = [{k: getattr(new[0], k) for k in ("mode", "weights", "batch", "task", "tokens_per_s", "tokens_per_step")}]
    verdicts = []
    for speedup in (0.8, 1.0, 1.3):
        (tmp_path / "old.json").write_text(json.dumps([old[0] | {"speedup": speedup}]))
        (change,) = compare(read_old(tmp_path / "old.json"), new).changes
        verdicts.append(change.verdict)
    assert verdicts == ["faster", "same", "slower"]
    (tmp_path / "old.json").write_text(json.dumps([old[0] | {"speedup": 1.0, "batch": 9}]))
    apart = compare(read_old(tmp_path / "old.json"), new)
    assert apart.changes == ()
    assert apart.only_old == ("maxgram, fp32, batch 9, t",)
    assert apart.only_new == ("maxgram, fp32, batch 1, t",)


def test_an_older_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"mode": "null"}]')
    with pytest.raises(SssdError, match=r"is no benchmark: .*weights"):
        read_old(tmp_path / "x.json")
    with pytest.raises(SssdError, match="cannot read"):
        read_old(tmp_path / "absent.json")
