"""`sssd check --engine`: passes for right engines, and names the corner of wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sssd.cli import main
from sssd.engines.ort import OrtEngine
from sssd.engines.ort_cuda import OrtExecutor
from sssd.engines.resident import ResidentEngine
from sssd.errors import BundleError, ParityError
from sssd.export.engine_check import Limits, apart, arithmetic, check_bundle_engine, check_engine, limits_of
from sssd.export.pipeline import silent
from sssd.spec import Bundle, ScoreKind
from sssd.types import EngineOutput, Int32, NodeScores, VerifyBatch
from tests.helpers.host_device import HostDevice
from tests.helpers.random_decoders import LLAMA, bundle

CORNERS = Limits(rows=3, width=6, chunk=16, context=40)


@pytest.fixture(scope="module", params=["logits", "topk"])
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bundle:
    scores: ScoreKind = request.param
    return bundle(tmp_path_factory.mktemp("check") / "b", LLAMA, scores=scores)


def twin(made: Bundle) -> OrtEngine:
    return OrtEngine(made, n_slots=2, threads=1, exact=True)


def resident(made: Bundle) -> ResidentEngine:
    device = HostDevice(lazy=False)
    executor = OrtExecutor(made, device, provider="CPUExecutionProvider")
    return ResidentEngine(made.spec, device, executor, n_slots=3)


def test_all_corners_are_tried(made: Bundle) -> None:
    found = check_engine(resident(made), twin(made), CORNERS, "float32", progress=silent)
    shapes = [f"{r} rows of {w} behind {c}" for c in (0, 40) for r in (1, 3) for w in (1, 6)]
    expected = [n for s in shapes for n in ([s] if " of 1 " in s else [s, f"{s}, greedy"])]
    prompts = ["prompt, 16 columns behind 0", "prompt, 16 columns behind 16", "prompt, 8 columns behind 32"]
    assert [c.name for c in found] == expected[:6] + prompts + expected[6:]
    assert all(c.agreement == 1 for c in found)


class NoCommit(ResidentEngine):
    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        pass


class NoCopy(ResidentEngine):
    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        pass


class NoTree(ResidentEngine):
    def forward(self, batch: VerifyBatch) -> EngineOutput:
        width = batch.input_ids.shape[1]
        return super().forward(replace(batch, tree_mask=np.tri(width, dtype=bool)[None].repeat(len(batch.parents), 0)))


class NoPast(ResidentEngine):
    def forward(self, batch: VerifyBatch) -> EngineOutput:
        return super().forward(replace(batch, past_lens=np.minimum(batch.past_lens, 39)))


@pytest.mark.parametrize(
    ("wrong", "corner"),
    [(NoCommit, "1 rows of 6 behind 0"), (NoCopy, "3 rows of 1 behind 40"), (NoTree, "of 6 behind 0"), (NoPast, "40")],
)
def test_an_engine_that_is_wrong_somewhere_is_refused_by_corner(
    made: Bundle, wrong: type[ResidentEngine], corner: str
) -> None:
    right = resident(made)
    engine = wrong(right._spec, right._device, right._executor, n_slots=3)
    with pytest.raises(ParityError, match=rf"differ at \d+ of 15 corners \(.*{corner}.*do not serve"):
        check_engine(engine, twin(made), CORNERS, "float32", progress=silent)


def test_a_bundle_of_the_cpu_is_checked_too(made: Bundle) -> None:
    found = check_bundle_engine(made.path, n_slots=2, context=10)
    assert {c.name for c in found} >= {"2 rows of 32 behind 10", "1 rows of 1 behind 0"}


def test_limits_leave_room_for_what_is_committed(made: Bundle) -> None:
    assert limits_of(made, "cpu", n_slots=5) == Limits(5, 32, 256, made.spec.max_len - 34)
    assert limits_of(made, "cpu", n_slots=5, context=7).context == 7
    assert arithmetic(made, "cpu") == "float32"


def test_what_is_not_a_number_is_infinitely_apart() -> None:
    right = NodeScores(1, None, np.array([0.0, 1.0], np.float32), None)
    assert apart(right, right) == 0
    assert apart(right._replace(scores=np.array([0.0, np.nan], np.float32)), right) == np.inf
    assert apart(right._replace(next_id=0), right) == 1.0


def test_kept_scores_are_compared_where_both_have_them() -> None:
    a = NodeScores(3, np.array([3, 5]), np.array([2.0, 1.0], np.float32), 4.0)
    b = NodeScores(3, np.array([3, 7]), np.array([1.5, 1.2], np.float32), 4.25)
    assert apart(a, b) == pytest.approx(0.5)
    assert apart(a._replace(next_id=9), b) == pytest.approx(0.5)


def test_the_command_prints_every_corner(made: Bundle) -> None:
    done = CliRunner().invoke(main, ["check", str(made.path), "--engine", "--slots", "2", "--context", "9"])
    assert done.exit_code == 0
    assert "2 rows of 32 behind 9: largest difference " in done.stdout
    assert "100% of the argmaxes agree" in done.stdout
    assert "all corners are right" in done.stderr


def test_options_of_the_engine_check_need_it(made: Bundle, tmp_path: Path) -> None:
    for option in (["--device", "cpu"], ["--context", "9"]):
        done = CliRunner().invoke(main, ["check", str(made.path), *option])
        assert done.exit_code == 2
        assert "--device and --context need --engine" in done.stderr
    with pytest.raises(BundleError, match="no bundle at"):
        check_bundle_engine(tmp_path / "none")
