from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sssd.bench.calibrate import calibrate
from sssd.bench.planner import Acceptance, assumed_acceptance, forecast, replayed_acceptance
from sssd.bench.replay import Pair
from sssd.cli import main
from sssd.drafting.simple import MaxGram
from sssd.engines.scripted import scripted_spec
from sssd.errors import BundleError, EngineError, SssdError
from sssd.runtime.calibration import (
    CALIBRATION,
    Calibration,
    FoundCurve,
    fingerprint,
    load_calibration,
    save_calibration,
)
from sssd.runtime.costs import WIDTHS, CostCurve, measured
from sssd.spec import Bundle, EngineSpec, open_bundle, verify_files
from sssd.types import EngineOutput, Int32, VerifyBatch
from tests.helpers.toy import text_bundle


class TimedEngine:
    """Forwards that take base + columns * each + context * rows * token milliseconds of a clock of its own."""

    def __init__(self, *, n_slots: int = 4, max_len: int = 1024, noise: float = 0.0) -> None:
        self.n_slots = n_slots
        self.spec: EngineSpec = scripted_spec(100, max_len=max_len)
        self.now = 0.0
        self.noise = noise
        self.random = np.random.default_rng(0)
        self.contexts: list[int] = []
        self.shapes: list[tuple[int, ...]] = []

    def clock(self) -> float:
        return self.now

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        rows, width = batch.input_ids.shape
        context = int(batch.past_lens[0])
        assert batch.logit_rows.shape == (rows, width), "every column is scored, as in a step that verifies"
        assert (batch.position_ids == context + np.arange(width)).all()
        assert context + width <= self.spec.max_len
        self.contexts.append(context)
        self.shapes.append((rows, width))
        spike = 20 if self.random.random() < self.noise else 1
        self.now += spike * (5 + 0.5 * rows * width + 0.001 * context * rows) / 1000
        return EngineOutput(np.zeros((rows, width), np.int64))

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        raise AssertionError("nothing is generated")

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        raise AssertionError("nothing is generated")

    def close(self) -> None:
        pass


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return text_bundle(tmp_path / "toy")


def calibrated(bundle: Bundle, engine: TimedEngine, **options: float) -> Calibration:
    here = fingerprint(bundle, device="cpu", threads=0)
    return calibrate(engine, here, seconds=options.get("seconds", 10.0), clock=engine.clock)


def sssd(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


# ---- measuring --------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_curve_is_what_the_engine_takes_whatever_a_few_outliers_say(bundle: Bundle, noise: float) -> None:
    figures = calibrated(bundle, TimedEngine(noise=noise), seconds=60.0)
    assert figures.batches == (1, 2, 4)
    assert figures.widths == WIDTHS
    assert figures.contexts == (64, 512)
    curve = figures.curve()
    for rows, width, context in ((1, 1, 64), (4, 32, 64), (3, 7, 300), (2, 16, 512)):
        took = (5 + 0.5 * rows * width + 0.001 * context * rows) / 1000
        assert curve.seconds(rows, width, context) == pytest.approx(took, rel=0.001)


def test_a_grown_cache_comes_last_and_points_are_taken_in_turns(bundle: Bundle) -> None:
    engine = TimedEngine()
    figures = calibrated(bundle, engine)
    half = len(engine.contexts) // 2
    assert engine.contexts == sorted(engine.contexts)
    points = len(figures.batches) * len(figures.widths)
    rounds = [engine.shapes[i : i + points] for i in range(0, half, points)]
    assert all(len(set(r)) == points for r in rounds), "each round has every point once"
    assert rounds[1] != rounds[2], "in another order"


def test_time_spent_is_what_was_asked_for_within_the_bounds_of_rounds(bundle: Bundle) -> None:
    engine = TimedEngine()
    figures = calibrated(bundle, engine, seconds=0.0)
    assert figures.rounds == 5
    assert calibrated(bundle, TimedEngine(), seconds=1e6).rounds == 25


def test_progress_ends_with_all_of_it(bundle: Bundle) -> None:
    engine = TimedEngine()
    said: list[tuple[str, int, int]] = []
    here = fingerprint(bundle, device="cpu", threads=0)
    calibrate(
        engine,
        here,
        seconds=20,
        clock=engine.clock,
        progress=lambda stage, done, total: said.append((stage, done, total)),
    )
    assert said[-1] == ("context 512", 10, 10)
    assert all(0 <= done <= total for _, done, total in said)


def test_a_short_bundle_is_measured_within_its_length(bundle: Bundle) -> None:
    figures = calibrated(bundle, TimedEngine(max_len=40, n_slots=1))
    assert figures.widths == (1, 2, 4, 8, 16)
    assert figures.contexts == (24,)
    assert figures.curve().seconds(2, 4, 24) > figures.curve().seconds(1, 4, 24)


@pytest.mark.parametrize("rows", [0, 5])
def test_rows_without_slots_are_refused(bundle: Bundle, rows: int) -> None:
    here = fingerprint(bundle, device="cpu", threads=0)
    with pytest.raises(EngineError, match=f"cannot calibrate {rows} rows: the engine has slots for 1 to 4"):
        calibrate(TimedEngine(), here, max_rows=rows)


# ---- keeping ----------------------------------------------------------------------------------


def load(bundle: Bundle, **changed: str | int) -> FoundCurve:
    here = fingerprint(bundle, device="cpu", threads=0)
    return load_calibration(bundle, dataclasses.replace(here, **changed))  # type: ignore[arg-type]


def test_a_saved_calibration_gives_its_curve_again_and_leaves_the_bundle_sound(bundle: Bundle) -> None:
    figures = calibrated(bundle, TimedEngine())
    save_calibration(bundle, figures)
    found = load(bundle)
    assert found.reason == ""
    assert found.curve is not None
    assert np.array_equal(found.curve.seconds_at, figures.curve().seconds_at)
    reopened = open_bundle(bundle.path)
    assert verify_files(reopened) == []
    assert not reopened.has(CALIBRATION)
    assert [p.name for p in bundle.path.iterdir() if "calibration" in p.name] == [CALIBRATION]


def test_without_a_file_the_reason_says_what_to_do(bundle: Bundle) -> None:
    found = load(bundle)
    assert found.curve is None
    assert found.reason.endswith(f"run `sssd calibrate {bundle.path}`")
    assert "not calibrated" in found.reason


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cpu": "Another CPU"}, "it was made with cpu .*, here it is Another CPU"),
        ({"cores": 96}, "cores .*, here it is 96"),
        ({"device": "cuda"}, "device cpu, here it is cuda"),
        ({"threads": 3}, "threads 0, here it is 3"),
        ({"onnxruntime": "0.1"}, "onnxruntime .*, here it is 0.1"),
        ({"weights": "f" * 64}, "it was made with other weights"),
    ],
)
def test_a_calibration_of_another_machine_or_bundle_is_not_used(
    bundle: Bundle, changed: dict[str, str | int], says: str
) -> None:
    save_calibration(bundle, calibrated(bundle, TimedEngine()))
    found = load(bundle, **changed)
    assert found.curve is None
    assert len(found.reason.splitlines()) == 1
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(found.reason)


@pytest.mark.parametrize("damage", ["cut", "binary", "empty", "shape", "negative", "order", "revision", "axes"])
def test_a_damaged_file_is_named_and_not_used(bundle: Bundle, damage: str) -> None:
    path = save_calibration(bundle, calibrated(bundle, TimedEngine()))
    content = json.loads(path.read_bytes())
    if damage == "shape":
        content["seconds"][0].pop()
    elif damage == "negative":
        content["seconds"][0][0][0] = -1.0
    elif damage == "order":
        content["batches"] = [1, 4, 2]
    elif damage == "revision":
        content["revision"] = 99
    elif damage == "axes":
        content["contexts"] = content["seconds"] = []
    raw = json.dumps(content).encode()
    path.write_bytes({"cut": raw[:100], "binary": b"\xff\xfe\x00", "empty": b""}.get(damage, raw))
    found = load(bundle)
    assert found.curve is None
    assert str(path) in found.reason
    assert "damaged" in found.reason or "revision" in found.reason
    assert "sssd calibrate" in found.reason


def test_a_place_that_cannot_be_written_is_an_error_and_nothing_is_left(bundle: Bundle) -> None:
    (bundle.path / CALIBRATION).mkdir()
    with pytest.raises(BundleError, match=r"cannot write .*calibration.json"):
        save_calibration(bundle, calibrated(bundle, TimedEngine()))
    assert load(bundle).curve is None


# ---- planning ---------------------------------------------------------------------------------

GRID = np.outer((1, 2, 4, 8), WIDTHS)
CHEAP = measured((1, 2, 4, 8), WIDTHS, (64,), [0.02 + 0.0001 * GRID])
DEAR = measured((1, 2, 4, 8), WIDTHS, (64,), [0.001 + 0.01 * GRID])
BETWEEN = measured((1, 2, 4, 8), WIDTHS, (64,), [0.02 + 0.002 * GRID])


def simulated(curve: CostCurve, a: Acceptance, batch: int, steps: int = 3000) -> float:
    """Speed-up over plain steps, by drawing tree sizes."""
    sizes = np.random.default_rng(0).choice(len(a.sizes), p=a.sizes, size=(steps, batch)).max(axis=1)
    seconds = np.mean([curve.seconds(batch, 1 + int(n), 64) for n in sizes])
    return float(a.tokens_per_step * curve.seconds(batch, 1, 64) / seconds)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_forecast_is_what_a_simulation_of_the_sizes_gives(bundle: Bundle, batch: int) -> None:
    a = Acceptance(7, 2.2, (0.4, 0.1, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1))
    made = forecast(bundle, BETWEEN, [a], acceptance_from="test", context=64)
    found = next(b for b in made.batches if b.batch == batch)
    assert found.speedup == pytest.approx(max(simulated(BETWEEN, a, batch), 1), rel=0.04)


def test_it_says_where_speculation_stops_to_pay(bundle: Bundle) -> None:
    def break_even(curve: CostCurve) -> int | None:
        return forecast(bundle, curve, assumed_acceptance(), acceptance_from="test", context=64).break_even

    assert break_even(CHEAP) is None
    assert break_even(DEAR) == 1
    middle = break_even(BETWEEN)
    assert middle is not None
    assert 1 < middle <= 8


def test_columns_that_run_in_any_case_are_free(bundle: Bundle) -> None:
    spec = dataclasses.replace(bundle.spec, min_width=2)
    wider = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, spec=spec))
    made = forecast(wider, DEAR, assumed_acceptance(), acceptance_from="test", context=64)
    assert made.break_even == 1
    assert all(b.width == 2 and not b.pays and b.speedup == pytest.approx(1.4) for b in made.batches)


def test_replayed_acceptance_counts_every_answer_token_once() -> None:
    text = np.array([1, 2, 3, 4, 5, 6, 7, 8] * 4, np.int32)
    found = replayed_acceptance([Pair(text, text)], MaxGram)
    assert [a.nodes for a in found] == [1, 3, 7, 15, 31]
    assert [a.tokens_per_step for a in found] == [2, 4, 8, 16, 32], "a period is copied to the end"
    assert all(sum(a.sizes) == pytest.approx(1) for a in found)
    lost = replayed_acceptance([Pair(np.array([1], np.int32), np.arange(2, 30, dtype=np.int32))], MaxGram)
    assert [a.tokens_per_step for a in lost] == [1] * 5


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_an_impossible_acceptance_is_refused(rate: float) -> None:
    with pytest.raises(SssdError, match="allowed is 0 to below 1"):
        assumed_acceptance(rate)


def test_memory_counts_slots_beside_the_weights(bundle: Bundle) -> None:
    memory = forecast(bundle, CHEAP, assumed_acceptance(), acceptance_from="test", context=64).memory
    assert memory.kv_slot == 4096 * 8
    assert memory.slots == pytest.approx(0.9 * memory.ram / memory.kv_slot, rel=1e-3)


def test_the_commands_speak_plainly(bundle: Bundle, tmp_path: Path) -> None:
    refused = sssd("plan", str(bundle.path))
    assert refused.exit_code == 1
    assert "not calibrated" in refused.stderr
    save_calibration(bundle, calibrated(bundle, TimedEngine()))
    assumed = sssd("plan", str(bundle.path))
    assert "assumed: each next draft token is accepted with a chance of 40%" in assumed.stdout
    assert "break-even: " in assumed.stdout
    data = tmp_path / "answers.jsonl"
    data.write_text(json.dumps({"prompt": "copy: abcdefgh abcdefgh", "answer": "abcdefgh abcdefgh"}) + "\n", "utf-8")
    replayed = sssd("plan", str(bundle.path), "--data", str(data), "--json")
    assert (
        json.loads(replayed.stdout)["acceptance_from"] == "1 recorded answers of answers.jsonl, replayed with maxgram"
    )
    assert json.loads(replayed.stdout)["batches"][0]["speedup"] > 1
    data.write_text("", "utf-8")
    nothing = sssd("plan", str(bundle.path), "--data", str(data))
    assert nothing.exit_code == 1
    assert "no recorded answer" in nothing.stderr
    assert sssd("plan", str(bundle.path), "--threads", "3").exit_code == 1, "another number of threads"
