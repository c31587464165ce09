from __future__ import annotations

import math
from time import perf_counter

import numpy as np
import pytest

from sssd.runtime.costs import WIDTHS, CostCurve, OnlineCosts, assumed, measured, monotone, powers_of_two

INT4 = [
    [7.4, 8.9, 11.8, 17.6, 29.0, 51.8],
    [9.0, 13.0, 20.0, 32.0, 56.0, 102.0],
    [16.3, 24.6, 36.1, 58.9, 109.0, 200.0],
]


def int4_curve() -> CostCurve:
    near = np.array(INT4) / 1000
    return measured((1, 2, 4), WIDTHS, (64, 2048), [near, near * 1.5])


def straight(points: tuple[int, ...], values: list[float], x: int) -> float:
    """Piecewise linear the slow way: find the piece, draw the line."""
    if x <= points[0]:
        return values[0]
    if x > points[-1]:
        return values[-1] * x / points[-1]
    last = len(points) - 2
    i = next((i for i in range(last) if points[i] <= x < points[i + 1]), last)
    return values[i] + (values[i + 1] - values[i]) * (x - points[i]) / (points[i + 1] - points[i])


@pytest.mark.parametrize("seed", range(30))
def test_a_monotone_grid_never_falls_and_stays_between_its_neighbours(seed: int) -> None:
    grid = np.random.default_rng(seed).uniform(0, 1, (5, 6))
    smooth = monotone(grid)
    assert (np.diff(smooth, axis=0) >= 0).all()
    assert (np.diff(smooth, axis=1) >= 0).all()
    assert smooth.min() >= grid.min()
    assert smooth.max() <= grid.max()
    assert np.array_equal(monotone(np.sort(np.sort(grid, 0), 1)), np.sort(np.sort(grid, 0), 1))


def test_measured_points_come_back_and_between_them_runs_a_straight_line() -> None:
    curve = int4_curve()
    assert curve.seconds(1, 8, 64) == pytest.approx(0.0176)
    assert curve.seconds(4, 32, 64) == pytest.approx(0.200)
    assert curve.seconds(1, 12, 64) == pytest.approx((0.0176 + 0.029) / 2)
    assert curve.seconds(3, 1, 64) == pytest.approx((0.009 + 0.0163) / 2)
    assert curve.seconds(1, 8, 2048) == pytest.approx(0.0176 * 1.5)
    assert curve.seconds(1, 8, 1056) == pytest.approx(0.0176 * 1.25)
    assert curve.seconds(1, 8, 0) == curve.seconds(1, 8, 64), "nothing is known of shorter contexts"


def test_beyond_the_grid_rows_go_on_and_widths_cost_in_proportion() -> None:
    curve = int4_curve()
    assert curve.seconds(1, 64, 64) == pytest.approx(2 * 0.0518)
    assert curve.seconds(8, 1, 64) == pytest.approx(0.0163 + 2 * (0.0163 - 0.009))
    assert curve.seconds(1, 8, 4032) == pytest.approx(0.0176 * 2)


def test_an_axis_of_one_point_costs_in_proportion() -> None:
    curve = measured((1,), (4,), (64,), [[[0.01]]])
    assert curve.seconds(3, 4, 64) == pytest.approx(0.03)
    assert curve.seconds(1, 8, 5000) == pytest.approx(0.02)


@pytest.mark.parametrize("seed", range(10))
def test_a_noisy_measurement_gives_a_curve_that_never_falls(seed: int) -> None:
    random = np.random.default_rng(seed)
    near, far = random.uniform(0.01, 0.02, (2, 4, 6))
    curve = measured((1, 2, 4, 8), WIDTHS, (64, 1024), [near, far])
    online = OnlineCosts(curve, is_measured=True)
    for _ in range(60):
        rows, width, context = int(random.integers(1, 9)), int(random.integers(1, 33)), int(random.integers(0, 2000))
        online.observe(rows, width, context, float(random.uniform(0.005, 0.05)))
    for ask, most_rows in ((curve.seconds, 20), (online.seconds, 8)):
        for rows, width, context in random.integers(1, (most_rows, 60, 3000), (100, 3)).tolist():
            here = ask(rows, width, context) * (1 - 1e-12)
            assert ask(rows + 1, width, context) >= here
            assert ask(rows, width + 1, context) >= here
            assert ask(rows, width, context + 100) >= here


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_all_widths_at_once_equal_one_at_a_time_and_the_slow_twin(rows: int) -> None:
    curve = int4_curve()
    costs = OnlineCosts(curve, is_measured=True)
    at_once = costs.by_width(rows, 50, 700)
    grid = curve.grid(700)
    of_rows = [straight(curve.batches, grid[:, t].tolist(), rows) for t in range(len(WIDTHS))]
    for width in range(1, 51):
        assert at_once[width - 1] == pytest.approx(costs.seconds(rows, width, 700))
        assert at_once[width - 1] == pytest.approx(straight(WIDTHS, of_rows, width))


def test_an_unmeasured_engine_is_learned_from_what_runs() -> None:
    truth = int4_curve()
    random = np.random.default_rng(0)
    costs = OnlineCosts(assumed(4), is_measured=False)
    for _ in range(150):
        width = int(random.choice([1, 2, 5, 8, 16]))
        costs.observe(4, width, 64, truth.seconds(4, width, 64) * float(random.uniform(0.97, 1.1)))
    for width in (1, 2, 5, 8, 12, 16):
        assert costs.seconds(4, width, 64) == pytest.approx(truth.seconds(4, width, 64), rel=0.12)


def test_a_wrong_curve_is_bent_where_forwards_run() -> None:
    """Wide forwards became twice as dear, narrow ones did not: no factor can say that."""
    costs = OnlineCosts(int4_curve(), is_measured=True)
    for i in range(400):
        width = 2 if i % 2 else 8
        costs.observe(1, width, 64, int4_curve().seconds(1, width, 64) * (2 if width == 8 else 1))
    assert costs.seconds(1, 8, 64) / costs.seconds(1, 2, 64) == pytest.approx(2 * 17.6 / 8.9, rel=0.1)


def test_drift_of_the_machine_scales_the_whole_curve_within_some_steps() -> None:
    costs = OnlineCosts(int4_curve(), is_measured=True)
    before = costs.by_width(2, 32, 500)
    for i in range(10):
        width = (2, 4, 8)[i % 3]
        costs.observe(2, width, 500, int4_curve().seconds(2, width, 500) * 1.8)
    assert costs.factor == pytest.approx(1.8)
    assert np.allclose(costs.by_width(2, 32, 500) / before, 1.8, rtol=0.1)


def test_outliers_and_a_spike_of_load_do_not_poison_the_costs() -> None:
    truth = int4_curve()
    costs = OnlineCosts(truth, is_measured=True)
    random = np.random.default_rng(0)

    def run(steps: int, slower: float, outliers: float) -> None:
        for _ in range(steps):
            width = int(random.choice([2, 3, 8]))
            hit = 30 if random.random() < outliers else 1
            costs.observe(2, width, 64, truth.seconds(2, width, 64) * slower * hit)

    def shape() -> float:
        return costs.seconds(2, 8, 64) / costs.seconds(2, 2, 64)

    true_shape = truth.seconds(2, 8, 64) / truth.seconds(2, 2, 64)
    run(300, 1, outliers=0.05)
    assert costs.seconds(2, 2, 64) == pytest.approx(truth.seconds(2, 2, 64), rel=0.1)
    assert shape() == pytest.approx(true_shape, rel=0.1)
    run(60, 5, outliers=0)
    assert shape() == pytest.approx(true_shape, rel=0.15)
    run(8, 1, outliers=0)
    assert costs.factor == pytest.approx(1, rel=0.15), "five steps of the usual speed end the spike"
    assert shape() == pytest.approx(true_shape, rel=0.15)


def test_what_lies_beyond_the_grid_is_counted_and_teaches_nothing() -> None:
    costs = OnlineCosts(int4_curve(), is_measured=True)
    before = costs.by_width(4, 32, 64)
    costs.observe(1, 256, 0, 9.0)
    costs.observe(5, 2, 0, 9.0)
    assert costs.n_outside == 2
    assert np.array_equal(costs.by_width(4, 32, 64), before)


def test_a_forward_that_took_no_time_is_survived() -> None:
    costs = OnlineCosts(int4_curve(), is_measured=True)
    for _ in range(20):
        costs.observe(1, 2, 64, 0.0)
    assert math.isfinite(costs.seconds(1, 2, 64))
    assert costs.seconds(1, 2, 64) > 0


@pytest.mark.parametrize(("most", "points"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_powers_of_two_end_with_the_most(most: int, points: tuple[int, ...]) -> None:
    assert powers_of_two(most) == points


def test_a_curve_refuses_grids_that_fall() -> None:
    with pytest.raises(AssertionError, match="more columns"):
        CostCurve((1, 2), (1, 2), 0, np.array([[2.0, 1.0], [2.0, 2.0]]), np.zeros((2, 2)))
    with pytest.raises(AssertionError, match="two points"):
        CostCurve((1,), (1, 2), 0, np.array([[1.0, 2.0]]), np.zeros((1, 2)))


def test_asking_and_observing_take_microseconds() -> None:
    costs = OnlineCosts(assumed(64), is_measured=False)
    best = math.inf
    for _ in range(50):
        start = perf_counter()
        for _ in range(10):
            costs.by_width(64, 16, 700)
            costs.observe(64, 16, 700, 0.05)
        best = min(best, (perf_counter() - start) / 10)
    assert best < 400e-6  # about 60 us on an idle core
