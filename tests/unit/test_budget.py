from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import pytest

from sssd import tree
from sssd.runtime.budget import FixedBudget, MeasuredBudget
from sssd.runtime.costs import WIDTHS, CostCurve, OnlineCosts, assumed, measured
from sssd.types import DraftTree, StepPlan, Verdict, empty_tree
from tests.helpers.steps import Machine, best_fixed, chain, plan_of, random_tree

BATCHES = (1, 2, 4, 8)


def line(base: float, column: float, rows: Sequence[int] = BATCHES) -> CostCurve:
    """base milliseconds to read the weights, column milliseconds for each column of each row."""
    grid = (base + column * np.outer(rows, WIDTHS)) / 1000
    return measured(rows, WIDTHS, (64,), [grid])


FREE = line(20, 0.01)  # columns cost nearly nothing
DEAR = line(1, 20)  # nothing but columns costs
MIXED = line(20, 1.2)


def random_curve(random: np.random.Generator) -> CostCurve:
    """A curve of any convexity: what memory takes, what columns take, and jumps."""
    columns = np.outer(BATCHES, WIDTHS).astype(float)
    grid = random.uniform(1, 40) + random.uniform(0, 4) * columns ** random.uniform(0.5, 1.2)
    return measured(BATCHES, WIDTHS, (64,), [grid * random.uniform(0.95, 1.05, grid.shape) / 1000])


def budget_on(curve: CostCurve, *, min_width: int = 1) -> MeasuredBudget:
    return MeasuredBudget(OnlineCosts(curve, is_measured=True), min_width=min_width)


def brute_force(plan: StepPlan, trees: list[DraftTree], curve: CostCurve, min_width: int) -> float:
    """Most expected tokens per second over all widths, one width, row and node at a time."""
    forced = [len(row.forced) for row in plan.rows]
    base = max(min_width, *forced)
    context = max(row.past_len for row in plan.rows)
    best = 0.0
    for width in range(base, max(base, *(f + len(t) for f, t in zip(forced, trees, strict=True))) + 1):
        expected = 0.0
        for row, f, t in zip(plan.rows, forced, trees, strict=True):
            if row.samples:
                expected += 1 + sum(sorted(t.scores.tolist(), reverse=True)[: width - f])
        best = max(best, expected / curve.seconds(len(forced), width, context))
    return best


def rate_of(plan: StepPlan, kept: list[DraftTree], curve: CostCurve, min_width: int) -> float:
    batch = tree.pack(plan, kept, min_width=min_width)
    rows, width = batch.input_ids.shape
    expected = sum(row.samples for row in plan.rows) + sum(float(t.scores.sum()) for t in kept)
    return expected / curve.seconds(rows, width, int(batch.past_lens.max()))


@pytest.mark.parametrize("seed", range(60))
def test_the_chosen_trees_are_the_best_of_all_widths(seed: int) -> None:
    random = np.random.default_rng(seed)
    curve = random_curve(random)
    min_width = int(random.integers(1, 4))
    n_rows = int(random.integers(1, 9))
    plan = plan_of(random.integers(1, 4, n_rows).tolist(), past_len=int(random.integers(0, 900)))
    trees = [random_tree(random, int(random.integers(0, 20))) for _ in plan.rows]
    kept = budget_on(curve, min_width=min_width).trim(plan, trees)
    best = brute_force(plan, trees, curve, min_width)
    assert rate_of(plan, kept, curve, min_width) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_every_row_keeps_its_best_nodes_up_to_the_common_width(seed: int) -> None:
    random = np.random.default_rng(seed)
    plan = plan_of(random.integers(1, 4, 5).tolist())
    trees = [random_tree(random, int(random.integers(0, 20))) for _ in plan.rows]
    kept = budget_on(MIXED).trim(plan, trees)
    width = tree.pack(plan, kept).input_ids.shape[1]
    for row, before, after in zip(plan.rows, trees, kept, strict=True):
        twin = tree.trim(before, width - len(row.forced))
        assert after.tokens.tolist() == twin.tokens.tolist()
        assert after.parents.tolist() == twin.parents.tolist()
        assert after.scores.tolist() == twin.scores.tolist()


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("min_width", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_served_speed_is_within_5_percent_of_the_best_fixed_width(rows: int, min_width: int, seed: int) -> None:
    random = np.random.default_rng(1000 * rows + 10 * seed + min_width)
    curve = random_curve(random)
    rates = random.uniform(0.05, 0.9, 8).tolist()
    speed = Machine(curve, rows=rows, seed=seed).run(
        budget_on(curve, min_width=min_width), rates, 60, min_width=min_width
    )
    assert speed > 0.95 * best_fixed(curve, rates, rows=rows, min_width=min_width, most=16)


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("curve", [FREE, DEAR, MIXED], ids=["free", "dear", "mixed"])
def test_an_engine_nobody_measured_comes_as_close_after_a_while(rows: int, curve: CostCurve) -> None:
    budget = MeasuredBudget(OnlineCosts(assumed(8), is_measured=False), min_width=2)
    machine = Machine(curve, rows=rows)
    machine.run(budget, [0.5], 120, min_width=2)
    speed = machine.run(budget, [0.5], 60, min_width=2)
    assert speed > 0.95 * best_fixed(curve, [0.5], rows=rows, min_width=2, most=16)


def test_free_columns_are_used_up_and_dear_ones_not_at_all() -> None:
    plan = plan_of([1, 1])
    trees = [chain([0.5, 0.3, 0.1]), chain([0.2])]
    assert [len(t) for t in budget_on(FREE).trim(plan, trees)] == [3, 1]
    assert [len(t) for t in budget_on(DEAR).trim(plan, trees)] == [0, 0]


def test_columns_that_run_in_any_case_are_filled_even_where_columns_are_dear() -> None:
    kept = budget_on(DEAR, min_width=2).trim(plan_of([1, 1]), [chain([0.5, 0.3]), chain([0.01])])
    assert [len(t) for t in kept] == [1, 1]
    kept = budget_on(DEAR).trim(plan_of([1, 3]), [chain([0.5, 0.3, 0.2]), chain([0.01])])
    assert [len(t) for t in kept] == [2, 0], "three columns run for the second row's sake"


def test_nothing_drafted_and_nothing_worth_it_are_no_errors() -> None:
    budget = budget_on(MIXED)
    assert [len(t) for t in budget.trim(plan_of([1, 1]), [empty_tree(), empty_tree()])] == [0, 0]
    assert [len(t) for t in budget.trim(plan_of([1]), [chain([0.0, 0.0])])] == [0]
    assert budget.stats().n_plain == 2


def test_a_piece_of_a_prompt_is_left_alone_and_not_counted() -> None:
    budget = budget_on(MIXED)
    plan = plan_of([200], samples=[False])
    assert [len(t) for t in budget.trim(plan, [empty_tree()])] == [0]
    assert budget.stats().widths == ()
    mixed = plan_of([40, 1], samples=[False, True])
    assert [len(t) for t in budget.trim(mixed, [empty_tree(), chain([0.1] * 20)])] == [0, 20], "40 columns run anyway"


def test_a_step_without_rows_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="one tree a row"):
        budget_on(MIXED).trim(StepPlan(()), [])


def test_it_goes_off_where_drafts_are_bad_and_comes_back_when_they_are_good() -> None:
    budget, machine = budget_on(MIXED), Machine(MIXED, rows=4)
    machine.run(budget, [0.9], 100)
    assert np.mean(machine.widths[-50:]) > 6
    machine.run(budget, [0.05], 200)
    assert np.mean(machine.widths[-100:]) < 1.2
    machine.run(budget, [0.9], 100)
    assert np.mean(machine.widths[-50:]) > 6
    assert budget.stats().n_switches == 2


def test_overconfident_drafts_are_found_out_within_some_tens_of_steps_and_forgiven_later() -> None:
    budget, machine = budget_on(line(20, 3)), Machine(line(20, 3), rows=4)
    machine.claim = 6.0  # says 0.9, is 0.15
    machine.run(budget, [0.15], 40)
    assert budget.stats().trust < 0.5
    plain = 4 / (machine.curve.seconds(4, 1, 100) + 0.0002)
    assert machine.run(budget, [0.15], 200) > 0.97 * plain
    machine.claim = 1.0
    machine.run(budget, [0.85], 1500)
    assert np.mean(machine.widths[-100:]) > 3
    assert budget.stats().trust > 0.8


def test_it_comes_back_when_forwards_become_cheap() -> None:
    costs = OnlineCosts(DEAR, is_measured=True)
    budget, machine = MeasuredBudget(costs), Machine(DEAR, rows=2)
    machine.run(budget, [0.6], 200)
    assert np.mean(machine.widths[-50:]) < 1.3
    machine.curve = FREE
    machine.run(budget, [0.6], 2000)
    assert np.mean(machine.widths[-100:]) > 2


def probes(curve: CostCurve, rates: Sequence[float], steps: int) -> list[int]:
    """Steps at which a side was taken that is not the usual one."""
    budget, machine = budget_on(curve), Machine(curve, rows=2)
    machine.run(budget, rates, steps, drafted=3)
    usual = machine.widths[5] > 1
    return [i for i, width in enumerate(machine.widths) if (width > 1) != usual]


def test_probes_are_pinned_by_the_step_counter() -> None:
    """Second best costs little here: after 16 steps, then twice as many each time, up to 512."""
    found = probes(line(20, 0.4), [0.02], 1050)
    assert [b - a for a, b in zip([-1, *found], found, strict=False)] == [17, 33, 65, 129, 257, 513]


def test_probes_of_dear_columns_are_rare_enough_to_cost_half_a_percent_at_most() -> None:
    machine = Machine(DEAR, rows=8)
    budget = budget_on(DEAR)
    speed = machine.run(budget, [0.02], 1500)
    plain = 8 / (DEAR.seconds(8, 1, 100) + 0.0002)
    assert speed > 0.995 * plain
    assert budget.stats().n_probes >= 4


def test_a_step_also_stays_plain_now_and_then_while_speculation_pays() -> None:
    found = probes(FREE, [0.6], 400)
    assert len(found) >= 1


def test_statistics_count_every_deciding_step_once() -> None:
    budget, machine = budget_on(MIXED), Machine(MIXED, rows=2)
    machine.run(budget, [0.8], 60)
    machine.run(budget, [0.02], 60)
    stats = budget.stats()
    assert dict(stats.widths) == {w: machine.widths.count(w) for w in set(machine.widths)}
    assert [w for w, _ in stats.widths] == sorted(set(machine.widths))
    assert stats.n_plain == machine.widths.count(1)
    assert stats.n_plain + stats.n_speculating == 120
    assert stats.n_probes >= 1


def test_a_fixed_budget_verifies_everything_and_counts() -> None:
    budget = FixedBudget(min_width=2)
    plan = plan_of([1, 1])
    trees = [chain([0.5, 0.4, 0.1]), empty_tree()]
    assert [len(t) for t in budget.trim(plan, trees)] == [3, 0]
    budget.trim(plan, [empty_tree(), chain([0.3])])
    batch = tree.pack(plan, trees)
    budget.observe(batch, [], forward_seconds=1.0, own_seconds=0.0)
    stats = budget.stats()
    assert (stats.n_speculating, stats.n_plain, stats.widths) == (1, 1, ((2, 1), (4, 1)))


def test_pieces_of_prompts_do_not_teach_what_verifying_costs() -> None:
    costs = OnlineCosts(MIXED, is_measured=True)
    budget = MeasuredBudget(costs)
    plan = plan_of([30])
    batch = tree.pack(plan, budget.trim(plan, [empty_tree()]))
    budget.observe(batch, [Verdict(np.arange(30, dtype=np.int32), (), (1,))], forward_seconds=9.0, own_seconds=0.0)
    assert costs.factor == 1


def test_trimming_64_rows_takes_microseconds() -> None:
    random = np.random.default_rng(0)
    plan = plan_of([1] * 64)
    trees = [random_tree(random, 15) for _ in range(64)]
    budget = budget_on(MIXED, min_width=2)
    best = math.inf
    for _ in range(20):
        start = perf_counter()
        budget.trim(plan, trees)
        best = min(best, perf_counter() - start)
    assert best < 2e-3  # about 0.3 ms on an idle core
