"""Measuring an engine: seconds of a forward by batch, width and context. Owns the order and the statistics.

Knows no bundle and no file, and calls nothing of an engine but `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from sssd.engines.base import Engine
from sssd.errors import EngineError
from sssd.runtime.calibration import REVISION, Calibration, Fingerprint
from sssd.runtime.costs import WIDTHS, Float64, powers_of_two
from sssd.types import VerifyBatch

SHORT = 64  # tokens of the short context
LONG = 2048  # most tokens of the long one

Report = Callable[[str, int, int], None]  # (what is being done, done so far, in all)


class _Point(NamedTuple):
    """One forward to time."""

    rows: int
    width: int
    context: int


def calibrate(
    engine: Engine,
    fingerprint: Fingerprint,
    *,
    max_rows: int | None = None,
    seconds: float = 90.0,
    min_rounds: int = 5,
    max_rounds: int = 25,
    progress: Report | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Calibration:
    """Time forwards of 1, 2, 4, ... `max_rows` rows (all slots otherwise), each at widths 1 to 32, at two contexts.

    All points of a context are timed in turns, in a new random order every round, and the median counts: what the
    machine does beside is shared by all of them. The short context comes first as a whole, for a cache that has grown
    makes every later forward dearer. Rounds go on until `seconds` are spent, within `min_rounds` and `max_rounds`.
    Overwrites the engine's KV: no request may run. Raises EngineError for a number of rows that has no slots, and
    whatever the engine raises.
    """
    rows = engine.n_slots if max_rows is None else max_rows
    if not 1 <= rows <= engine.n_slots:
        raise EngineError(f"cannot calibrate {rows} rows: the engine has slots for 1 to {engine.n_slots}")
    batches, widths = powers_of_two(rows), _widths(engine.spec.max_len)
    contexts = _contexts(engine.spec.max_len, widths[-1])
    samples = []
    for context in contexts:
        points = [_Point(b, t, context) for b in batches for t in widths]
        share = seconds / len(contexts)
        samples.append(_rounds(engine, points, share, (min_rounds, max_rounds), progress or _silent, clock))
    medians = [np.median(s, axis=0).reshape(len(batches), len(widths)).tolist() for s in samples]
    return Calibration(
        revision=REVISION,
        fingerprint=fingerprint,
        batches=batches,
        widths=widths,
        contexts=contexts,
        seconds=tuple(tuple(tuple(line) for line in grid) for grid in medians),
        rounds=min(len(s) for s in samples),
        spread=_spread(samples),
    )


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def _widths(max_len: int) -> tuple[int, ...]:
    return tuple(w for w in WIDTHS if 2 * w <= max_len) or (1,)


def _contexts(max_len: int, width: int) -> tuple[int, ...]:
    """A short one, and half of what a slot holds where that is more."""
    room = max_len - width
    short, long = min(SHORT, room), min(max_len // 2, LONG, room)
    return (short, long) if long > short else (short,)


def _rounds(
    engine: Engine,
    points: Sequence[_Point],
    seconds: float,
    bounds: tuple[int, int],
    progress: Report,
    clock: Callable[[], float],
) -> Float64:
    """Seconds of every point, float64 [rounds, points]; a first round that warms up is not among them."""
    order = np.random.default_rng(0)
    stage = f"context {points[0].context}"
    for point in points:
        engine.forward(_batch(engine, point))
    rounds: list[Float64] = []
    began = clock()
    while len(rounds) < bounds[0] or (len(rounds) < bounds[1] and clock() - began < seconds):
        times = np.zeros(len(points))
        for i in order.permutation(len(points)).tolist():
            batch = _batch(engine, points[i])
            start = clock()
            engine.forward(batch)
            times[i] = clock() - start
        rounds.append(times)
        progress(stage, max(int(min(clock() - began, seconds)), len(rounds) * int(seconds) // bounds[1]), int(seconds))
    progress(stage, int(seconds), int(seconds))
    return np.stack(rounds)


def _batch(engine: Engine, point: _Point) -> VerifyBatch:
    """Rows that each verify a chain behind `context` tokens, with every column scored."""
    rows, width, context = point
    columns = np.arange(width)
    chain = np.arange(-1, width - 1, dtype=np.int32)
    return VerifyBatch(
        first_slot=0,
        input_ids=np.tile(columns % engine.spec.vocab_size, (rows, 1)),
        position_ids=np.tile(context + columns, (rows, 1)),
        past_lens=np.full(rows, context, np.int64),
        tree_mask=np.tile(np.tri(width, dtype=bool), (rows, 1, 1)),
        logit_rows=np.tile(columns, (rows, 1)),
        parents=np.tile(chain, (rows, 1)),
        n_forced=np.ones(rows, np.int32),
        n_nodes=np.full(rows, width, np.int32),
        needs_scores=False,
    )


def _spread(samples: Sequence[Float64]) -> float:
    shares = []
    for s in samples:
        low, middle, high = np.percentile(s, [25, 50, 75], axis=0)
        shares.append((high - low) / middle)
    return float(np.median(np.concatenate(shares)))
