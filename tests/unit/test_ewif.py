"""Expected walltime improvement: the formulas against simulated rounds and known values, and the command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sssd.bench.ewif import DraftModel, best_of, curve, evaluate, expected_tokens
from sssd.cli import main
from sssd.errors import SssdError

BASE, SMALL = 0.04, 0.02  # costs in runs of the target


@pytest.mark.parametrize(
    ("cascade", "models"),
    [
        ("plain", [(0.73, 0.04, 7)]),
        ("plain", [(1.0, 0.1, 5)]),
        ("plain", [(0.0, 0.1, 5)]),
        ("horizontal", [(0.73, 0.04, 4), (0.65, 0.02, 3)]),
        ("horizontal", [(0.9, 0.1, 3), (0.7, 0.02, 4), (0.4, 0.0, 10)]),
        ("vertical", [(0.73, 0.04, 2), (0.6, 0.0, 5)]),
        ("vertical", [(0.8, 0.1, 3), (0.7, 0.02, 2), (0.5, 0.0, 4)]),
        ("vertical", [(0.8, 0.1, 3), (1.0, 0.02, 2), (0.5, 0.0, 4)]),
        ("vertical", [(1.0, 0.1, 2), (1.0, 0.02, 3)]),
    ],
)
def test_formulas_agree_with_200_000_simulated_rounds(cascade, models) -> None:
    found = evaluate(cascade, [DraftModel(*m) for m in models], rounds=200_000)
    assert found.simulated == pytest.approx(found.ewif, rel=0.005)


def test_the_papers_example_of_a_vertical_cascade() -> None:
    found = evaluate("vertical", [DraftModel(0.73, 0.04, 2), DraftModel(0.6, 0.0, 5)])
    assert found.ewif == pytest.approx(2.7447, abs=1e-4)


def test_a_vertical_cascade_whose_lower_model_never_runs_is_the_upper_one_alone() -> None:
    alone = evaluate("plain", [DraftModel(0.73, 0.04, 3)])
    assert evaluate("vertical", [DraftModel(0.73, 0.04, 3), DraftModel(0.6, 0.5, 0)]).ewif == pytest.approx(alone.ewif)


def test_all_right_all_the_way_down_gives_every_token() -> None:
    models = [DraftModel(1.0, 0.1, 2), DraftModel(1.0, 0.1, 3), DraftModel(1.0, 0.1, 4)]
    assert expected_tokens("vertical", models) == 1 + 2 * (1 + 3 * (1 + 4))


@pytest.mark.parametrize(
    ("accept", "base", "small", "both"),
    [  # the rebuilt table of simulated EWIF: CNN/DailyMail and WMT EnDe, greedy and at temperature 1
        ((0.73, 0.65), (2.660, 7), (2.426, 7), (2.720, (4, 3))),
        ((0.80, 0.75), (3.282, 9), (3.199, 9), (3.415, (4, 6))),
        ((0.55, 0.53), (1.819, 4), (1.891, 5), (1.894, (1, 4))),
        ((0.68, 0.62), (2.351, 6), (2.267, 6), (2.413, (3, 3))),
    ],
)
def test_the_horizontal_cascade_beats_the_best_single_drafter(accept, base, small, both) -> None:
    for rate, cost, (value, k) in ((accept[0], BASE, base), (accept[1], SMALL, small)):
        alone = best_of(curve("plain", [rate], [cost]))
        assert (round(alone.ewif, 3), alone.k) == (value, (k,))
    found = best_of(curve("horizontal", accept, [BASE, SMALL]))
    assert (round(found.ewif, 3), found.k) == both
    assert found.ewif > max(base[0], small[0])


def test_a_nearly_free_model_below_always_helps() -> None:
    for rate in (0.3, 0.6, 0.9):
        alone = best_of(curve("plain", [rate], [BASE]))
        for below in (0.1, 0.5):
            models = [DraftModel(rate, BASE, alone.k[0]), DraftModel(below, 0.0, 10)]
            assert evaluate("vertical", models).ewif > alone.ewif


@pytest.mark.parametrize(
    ("cascade", "models", "says"),
    [
        ("plain", [(1.1, 0.1, 3)], "accept is 1.1"),
        ("plain", [(0.5, -0.1, 3)], "cost is -0.1"),
        ("plain", [(0.5, 0.1, -1)], "k is -1"),
        ("plain", [(0.5, 0.1, 1), (0.5, 0.1, 1)], "plain is one drafter"),
        ("horizontal", [(0.5, 0.1, 1)], "two or more"),
    ],
)
def test_what_cannot_be_is_refused(cascade, models, says: str) -> None:
    with pytest.raises(SssdError, match=says):
        evaluate(cascade, [DraftModel(*m) for m in models])


def run(*args: str):
    return CliRunner().invoke(main, ["simulate", "ewif", *args])


def test_the_command_prints_objects_the_given_k_first_and_the_best_last() -> None:
    rows = json.loads(run("--accept", "0.73", "--cost", "0.04", "--k", "3", "--json").stdout)
    assert [row["k"] for row in rows] == [[3], [7]]
    assert [row["best"] for row in rows] == [False, True]
    assert rows[1]["ewif"] == pytest.approx(2.660, abs=5e-4)
    assert all(abs(row["simulated"] / row["ewif"] - 1) < 0.005 for row in rows)
    only = json.loads(run("--accept", "0.73", "--cost", "0.04", "--k", "7", "--json").stdout)
    assert [row["k"] for row in only] == [[7]]


def test_the_command_plots_and_marks_the_best() -> None:
    out = run("--accept", "0.73,0.65", "--cost", "0.04,0.02", "--rounds", "0").stdout
    assert "horizontal k=4,3: EWIF 2.7200" in out
    (best,) = [line for line in out.splitlines() if line.endswith("<")]
    assert best.split()[0] == "k=4,3"


def test_the_command_refuses_lists_that_do_not_fit() -> None:
    for args, says in (
        (("--accept", "0.7,0.6", "--cost", "0.1"), "one number a drafter"),
        (("--accept", "x", "--cost", "0.1"), "no list of numbers"),
        (("--accept", "1.5", "--cost", "0.1"), "allowed is 0 to 1"),
        (("--accept", "0.5,0.5,0.5,0.5", "--cost", "0,0,0,0"), "give --k for more"),
    ):
        done = run(*args)
        assert done.exit_code != 0
        assert says in done.stderr
