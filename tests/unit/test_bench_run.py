from __future__ import annotations

from pathlib import Path

import pytest

from sssd.bench.modes import choose_modes, make_drafter
from sssd.bench.run import BenchConfig, Turn, turns
from sssd.bench.summary import summarize
from sssd.config import SamplingParams
from sssd.drafting.base import NullDrafter
from sssd.drafting.simple import MaxGram
from sssd.errors import DatastoreError, SssdError
from tests.helpers.bench import FORWARD, Ahead, timed, workload


def test_modes_take_turns_at_every_batch_and_begin_with_another_each_time() -> None:
    assert list(turns(["a", "b"], n_units=2, repeat=2)) == [
        Turn(0, 0, "a"),
        Turn(0, 0, "b"),
        Turn(0, 1, "b"),
        Turn(0, 1, "a"),
        Turn(1, 0, "a"),
        Turn(1, 0, "b"),
        Turn(1, 1, "b"),
        Turn(1, 1, "a"),
    ]


def test_what_runs_is_in_the_order_of_the_turns(tmp_path: Path) -> None:
    found = timed(tmp_path, {"maxgram": NullDrafter}, workload(t=2, u=1), repeat=2)
    assert [(r.order, r.place.task, r.place.repeat, r.place.unit, r.mode) for r in found.runs] == [
        (0, "t", 0, 0, "null"),
        (1, "t", 0, 0, "maxgram"),
        (2, "t", 0, 1, "maxgram"),
        (3, "t", 0, 1, "null"),
        (4, "t", 1, 0, "null"),
        (5, "t", 1, 0, "maxgram"),
        (6, "t", 1, 1, "maxgram"),
        (7, "t", 1, 1, "null"),
        (8, "u", 0, 0, "null"),
        (9, "u", 0, 0, "maxgram"),
        (10, "u", 1, 0, "maxgram"),
        (11, "u", 1, 0, "null"),
    ]


def test_tokens_steps_and_seconds_are_those_that_were(tmp_path: Path) -> None:
    plain, spec = timed(tmp_path, {"maxgram": lambda: Ahead(3)}, workload(t=1)).runs
    assert plain.answers[0].token_ids == spec.answers[0].token_ids == tuple(range(3, 19))
    assert (plain.steps, plain.seconds) == (16, 16 * FORWARD)
    assert (spec.steps, spec.seconds) == (4, 4 * FORWARD)
    assert plain.answers[0].step_tokens == (1,) * 16
    assert spec.answers[0].step_tokens == (4,) * 4
    assert spec.answers[0].step_seconds == pytest.approx((FORWARD,) * 4)
    assert spec.answers[0].first_token == FORWARD
    assert spec.answers[0].accepted_lengths == {3: 4}
    assert (spec.answers[0].drafted, spec.answers[0].accepted) == (12, 12)
    assert (spec.decode_tokens, spec.decode_seconds) == (12, 3 * FORWARD)
    assert plain.widths == {1: 15, 3: 1}
    assert spec.widths == {4: 3, 6: 1}
    assert {p.name for p in spec.phases} == {"plan", "propose", "pack", "forward", "verify", "commit", "apply"}
    assert all(p.mean_us > 0 for p in spec.phases)


def test_speed_ups_are_the_ratio_of_known_times(tmp_path: Path) -> None:
    modes = {"maxgram": NullDrafter, "retrieval": lambda: Ahead(3)}
    records = summarize(timed(tmp_path, modes, workload(t=3, u=2), pace=lambda n: 1 + (n % 7) / 1000))
    by_place = {(r.mode, r.task): r for r in records}
    assert set(by_place) == {(m, t) for m in ("null", *modes) for t in ("t", "u", "all")}
    for task in ("t", "u", "all"):
        same, fast = by_place["maxgram", task], by_place["retrieval", task]
        assert (same.speedup, same.decode_speedup) == (pytest.approx(1, rel=0.01), pytest.approx(1, rel=0.01))
        assert (fast.speedup, fast.tokens_per_step) == (pytest.approx(4, rel=0.01), 4)
        assert fast.speedup_low <= fast.speedup <= fast.speedup_high
        assert fast.decode_speedup == pytest.approx(4, rel=0.01)
        assert (same.differing, fast.differing) == (0, 0)
    assert by_place["retrieval", "t"].tokens == 48
    assert by_place["retrieval", "all"].tokens == 80
    assert by_place["null", "t"].tokens_per_s == pytest.approx(1 / FORWARD, rel=0.01)


def test_a_batch_reads_its_prompts_and_then_decodes_together(tmp_path: Path) -> None:
    (run,) = timed(tmp_path, {}, workload(t=3), batches=(3,)).runs
    assert [a.tokens for a in run.answers] == [16] * 3
    first = [a.first_token for a in run.answers]
    assert first == sorted(first)
    after = sum(n for a in run.answers for n, at in _when(a.step_tokens, a.step_seconds) if at > first[-1])
    assert run.decode_tokens == after
    assert run.decode_seconds == pytest.approx(run.seconds - first[-1])


def _when(tokens: tuple[int, ...], waits: tuple[float, ...]) -> list[tuple[int, float]]:
    return [(n, sum(waits[: i + 1])) for i, n in enumerate(tokens)]


def test_under_load_a_request_waits_from_when_it_comes(tmp_path: Path) -> None:
    work = workload(t=12)
    for run in timed(tmp_path, {}, work, rates=(0.1, 1.0)).runs:
        if run.place.rate is None:
            continue
        free = 0.0  # when the only slot is
        for answer in run.answers:
            free = max(free, answer.came) + 16 * FORWARD
            assert answer.seconds == pytest.approx(free - answer.came)
        assert run.seconds == pytest.approx(free)
        assert {a.prompt for a in run.answers} == {p.id for p in work.prompts}


def test_load_runs_compare_the_requests_seconds_at_the_same_arrivals(tmp_path: Path) -> None:
    found = timed(tmp_path, {"maxgram": lambda: Ahead(7)}, workload(t=6), rates=(0.25,), batches=(2,))
    plain, spec = [r for r in found.runs if r.place.rate]
    assert [a.came for a in plain.answers] == [a.came for a in spec.answers]
    record = next(r for r in summarize(found) if r.rate and r.mode == "maxgram")
    seconds = [sum(a.seconds for a in r.answers) for r in (plain, spec)]
    assert record.speedup == pytest.approx(seconds[0] / seconds[1])
    assert record.speedup > 2
    assert (record.task, record.batch, record.rate) == ("all", 2, 0.25)


def test_a_drafter_is_new_for_every_group_and_closed_after_it(tmp_path: Path) -> None:
    made: list[Ahead] = []
    closed: list[Ahead] = []

    class Watched(Ahead):
        def __init__(self) -> None:
            super().__init__(3)
            assert len(closed) == len(made)
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    timed(tmp_path, {"maxgram": Watched}, workload(t=2, u=1), batches=(1, 2), rates=(1.0,))
    assert made == closed
    assert len(made) == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batches": ()}, r"batch is \(\): allowed"),
        ({"batches": (1, 0)}, r"batch is \(1, 0\): allowed"),
        ({"rates": (0.0,)}, r"rate is \(0.0,\): allowed is arrivals a second, above 0"),
        ({"rates": (float("nan"),)}, "rate is"),
        ({"repeat": 0}, "repeat is 0"),
    ],
)
def test_a_configuration_out_of_range_is_refused(options: dict, says: str) -> None:
    with pytest.raises(SssdError, match=says):
        BenchConfig(modes=("null",), params=SamplingParams(seed=1), **options)


def test_the_baseline_always_runs_first() -> None:
    store = Path("s")
    assert choose_modes(None, datastore=None, fastest=False) == ("null", "maxgram", "retrieval")
    assert choose_modes(None, datastore=store, fastest=True) == (
        "null",
        "maxgram",
        "retrieval",
        "retrieval+datastore",
        "null@fastest",
    )
    assert choose_modes(["maxgram", "maxgram"], datastore=None, fastest=False) == ("null", "maxgram")


def test_a_mode_that_cannot_be_is_refused() -> None:
    with pytest.raises(SssdError, match="mode is 'eagle': allowed are null, maxgram, retrieval, retrieval\\+datastore"):
        choose_modes(["eagle"], datastore=None, fastest=False)
    with pytest.raises(SssdError, match="give it with --datastore FILE"):
        choose_modes(["retrieval+datastore"], datastore=None, fastest=False)
    with pytest.raises(SssdError, match="no mode drafts from s"):
        choose_modes(["retrieval"], datastore=Path("s"), fastest=False)


def test_each_mode_has_its_drafter(tmp_path: Path) -> None:
    from sssd.drafting.retrieval import Retrieval

    kinds = {m: make_drafter(m, datastore=None, fingerprint="f") for m in ("null", "maxgram", "retrieval")}
    assert [type(d) for d in kinds.values()] == [NullDrafter, MaxGram, Retrieval]
    assert type(make_drafter("null@fastest", datastore=None, fingerprint="f")) is NullDrafter
    with pytest.raises(DatastoreError):
        make_drafter("retrieval+datastore", datastore=tmp_path / "absent", fingerprint="f")
