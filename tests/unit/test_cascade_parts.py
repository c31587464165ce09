"""A level's slots and a cascade's schedule, by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from sssd.drafting.schedule import Schedule
from sssd.drafting.seats import Seats
from sssd.drafting.sprout import Kind, Rates


def text(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


LONG = np.arange(40, dtype=np.int32)


def test_a_request_keeps_its_slot() -> None:
    seats = Seats(2)
    first = seats.take(7, LONG, {7})
    assert first is not None
    assert seats.take(7, LONG, {7}).seat is first.seat
    assert seats.check() == []


def test_a_later_request_starts_from_what_an_ended_one_left() -> None:
    seats = Seats(2)
    seat = seats.take(1, LONG, {1}).seat
    seat.tokens = LONG
    seats.end(1)
    again = seats.take(2, np.concatenate([LONG, text(5)]), {2})
    assert (again.seat, again.n) == (seat, 0)
    assert again.seat.tokens.tolist() == LONG.tolist()


def test_a_running_requests_beginning_is_copied() -> None:
    seats = Seats(2)
    seat = seats.take(1, LONG, {1, 2}).seat
    seat.tokens = LONG
    other = seats.take(2, np.concatenate([LONG[:30], text(5, 5)]), {1, 2})
    assert (other.src, other.n) == (seat.slot, 30)
    assert other.seat is not seat
    assert other.seat.tokens.tolist() == LONG[:30].tolist()


def test_slots_go_to_those_drafted_for_and_nobody_else_loses_one() -> None:
    seats = Seats(1)
    assert seats.take(1, LONG, {1, 2}) is not None
    assert seats.take(2, LONG, {1, 2}) is None
    assert seats.take(2, LONG, {2}) is not None, "1 is not in this call"
    assert seats.take(1, LONG, {1, 2}) is None
    seats.end(1)
    seats.end(2)
    assert seats.check() == []


def test_the_checker_sees_two_owners() -> None:
    seats = Seats(2)
    seats.take(1, LONG, {1}).seat.owner = 9
    assert seats.check()


# ---- schedule -----------------------------------------------------------------------------------


def play(schedule: Schedule, seconds: dict, tokens: dict, n: int) -> list:
    lineups = []
    for _ in range(n):
        lineup = schedule.choose(1)
        lineups.append(lineup)
        schedule.observe(lineup, 1, tokens[lineup], seconds[lineup])
    return lineups


def test_a_level_that_does_not_pay_is_left_out_and_tried_again() -> None:
    lineups = play(Schedule(1), {(): 1.0, (0,): 3.0}, {(): 2, (0,): 3}, 4000)
    assert lineups[:4] == [()] * 4
    assert lineups[4:9] == [(0,)] * 5, "one step to read, four that count"
    late = lineups[9:]
    assert 0 < late.count((0,)) < 0.02 * len(late)


def test_a_level_that_pays_stays() -> None:
    lineups = play(Schedule(1), {(): 1.0, (0,): 1.2}, {(): 2, (0,): 4}, 2000)
    assert lineups[20:].count((0,)) > 0.95 * len(lineups[20:])


def test_a_level_comes_back_when_it_has_become_worth_it() -> None:
    schedule = Schedule(1)
    play(schedule, {(): 1.0, (0,): 2.0}, {(): 2, (0,): 2}, 1000)
    lineups = play(schedule, {(): 1.0, (0,): 1.1}, {(): 2, (0,): 6}, 3000)
    assert lineups[-100:].count((0,)) > 90


def test_of_two_levels_every_lineup_is_weighed() -> None:
    seconds = {(): 1.0, (0,): 2.0, (1,): 1.1, (0, 1): 3.0}
    lineups = play(Schedule(2), seconds, {(): 2, (0,): 3, (1,): 4, (0, 1): 5}, 1000)
    assert set(lineups) == set(seconds)
    assert lineups[-50:].count((1,)) > 40


def test_a_failed_level_is_out_of_every_lineup() -> None:
    schedule = Schedule(2)
    schedule.exclude(0)
    assert {schedule.choose(1) for _ in range(1)} == {()}
    figures = {(): 1.0, (1,): 1.0}
    assert set(play(schedule, figures, {(): 1, (1,): 2}, 50)) == set(figures)


def test_rates_begin_with_the_models_own_word_and_learn() -> None:
    rates = Rates()
    assert rates.rate(Kind.GREEDY, 0.8) == pytest.approx(0.8)
    assert rates.rate(Kind.SAMPLED, 0.2) == pytest.approx(0.6)
    for i in range(400):
        rates.learn(Kind.GREEDY, 0.85, i % 2 == 0)
    assert rates.rate(Kind.GREEDY, 0.85) == pytest.approx(0.5, abs=0.03)
    assert rates.rate(Kind.OTHER, 0.85) == pytest.approx(0.85)


def test_tries_lose_a_hundredth_of_the_time_and_one_burst() -> None:
    schedule, seconds = Schedule(2), {(): 1.0, (0,): 12.0, (1,): 6.0, (0, 1): 15.0}
    lineups = play(schedule, seconds, dict.fromkeys(seconds, 2), 30_000)
    spent = sum(seconds[lineup] for lineup in lineups)
    assert set(lineups) == set(seconds)
    assert spent < 30_000 * 1.012 + 5 * 14
