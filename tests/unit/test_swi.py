"""Standardized walltime improvement: the arithmetic, and the assumptions about costs."""

from __future__ import annotations

import pytest

from sssd.bench.swi import LevelUse, Swi, published_cost, swi, total


def test_without_models_it_is_tokens_a_step() -> None:
    assert swi(100, 40, (), target_bytes=0, target_seconds=0) == Swi(2.5, 2.5, 2.5)


def test_every_review_costs_what_the_assumption_says() -> None:
    uses = (LevelUse("base", 220, 50, 4.0), LevelUse("small", 60, 100, 1.0))
    found = swi(120, 30, uses, target_bytes=11300, target_seconds=0.5)
    assert found.by_size == pytest.approx(120 / (30 + (50 * 220 + 100 * 60) / 11300))
    assert found.published == pytest.approx(120 / (30 + 50 * 0.04 + 100 * 0.02))
    assert found.measured == pytest.approx(120 / (30 + 5.0 / 0.5))


@pytest.mark.parametrize(("millions", "cost"), [(60, 0.02), (220, 0.04), (770, 0.11), (11300, 1.0)])
def test_published_costs_hold_at_their_own_sizes(millions: int, cost: float) -> None:
    assert published_cost(millions / 11300) == pytest.approx(cost)


def test_published_costs_rise_with_size() -> None:
    costs = [published_cost(size / 1000) for size in range(1, 1001, 9)]
    assert costs == sorted(costs)


def test_runs_are_added_model_by_model() -> None:
    one = (LevelUse("a", 5, 1, 0.5), LevelUse("b", 2, 3, 0.1))
    assert total([one, one]) == (LevelUse("a", 5, 2, 1.0), LevelUse("b", 2, 6, 0.2))
    assert total([(), ()]) == ()
