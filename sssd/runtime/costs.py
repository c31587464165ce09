"""Seconds of a forward pass by rows, width and context: a curve, and what serving teaches about it.

Knows neither engines nor drafts: numbers in, numbers out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

WIDTHS = (1, 2, 4, 8, 16, 32)  # where a curve has points, unless it is told otherwise


class _Place(NamedTuple):
    """Where a number stands between two neighbours of a grid."""

    lower: int  # index
    weight: float  # of the upper neighbour; above 1 beyond the last point


def _place(points: Sequence[int], x: int) -> _Place:
    """The first point's value holds below it; beyond the last one the last piece goes on."""
    i = min(max(bisect_right(points, x) - 1, 0), len(points) - 2)
    return _Place(i, max((x - points[i]) / (points[i + 1] - points[i]), 0.0))


def monotone(grid: Float64) -> Float64:
    """The grid without falls along any of its axes: halfway between the lowest that covers it and the highest under it.

    A grid that never falls is returned as it is.
    """
    above, below = grid, grid
    for axis in range(grid.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    middle: Float64 = (above + below) / 2
    return middle


@dataclass(frozen=True, slots=True, eq=False)
class CostCurve:
    """Seconds of a forward at the points of a grid; linear between them and beyond the last ones.

    Never cheaper when wider, with more rows or at a longer context.
    """

    batches: tuple[int, ...]  # ascending, two at least
    widths: tuple[int, ...]  # ascending, two at least
    context: int  # committed tokens of the longest row that `seconds` holds for, and for anything shorter
    seconds_at: Float64  # float64 [batches, widths]
    per_token: Float64  # float64 [batches, widths]; seconds that each further token of context adds

    def __post_init__(self) -> None:
        for points in (self.batches, self.widths):
            assert len(points) > 1, "a curve needs two points on each axis"
            assert list(points) == sorted(set(points)), "points ascend"
            assert points[0] > 0, "points are counts"
        for grid in (self.seconds_at, self.per_token):
            assert grid.shape == (len(self.batches), len(self.widths)), "one value a point"
            assert (np.diff(grid, axis=0) >= 0).all(), "more rows are never cheaper"
            assert (np.diff(grid, axis=1) >= 0).all(), "more columns are never cheaper"
        assert float(self.seconds_at[0, 0]) > 0, "a forward takes time"
        assert float(self.per_token[0, 0]) >= 0, "context is never negative work"

    def grid(self, context: int) -> Float64:
        """Seconds at every point for rows of at most `context` tokens, float64 [batches, widths]."""
        return self.seconds_at + self.per_token * max(context - self.context, 0)

    def seconds(self, rows: int, width: int, context: int) -> float:
        """Seconds of one forward."""
        return _between(self, self.grid(context), rows, width)


def _between(curve: CostCurve, grid: Float64, rows: int, width: int) -> float:
    b, t = _place(curve.batches, rows), _place(curve.widths, width)
    of_rows = grid[b.lower] * (1 - b.weight) + grid[b.lower + 1] * b.weight
    return float(of_rows[t.lower] * (1 - t.weight) + of_rows[t.lower + 1] * t.weight)


def measured(
    batches: Sequence[int], widths: Sequence[int], contexts: Sequence[int], seconds: npt.ArrayLike
) -> CostCurve:
    """The curve through measured seconds, float64 [contexts, batches, widths], at one or two contexts.

    What falls is evened out. On an axis with one point only, twice as much is taken to cost twice as much.
    """
    times = [monotone(np.asarray(grid, np.float64)) for grid in np.asarray(seconds, np.float64)]
    assert len(times) == len(contexts), "one grid a context"
    per_token = np.zeros_like(times[0])
    if len(contexts) > 1:
        per_token = monotone(np.maximum(times[1] - times[0], 0) / (contexts[1] - contexts[0]))
    grids = [times[0], per_token]
    if len(batches) == 1:
        grids = [np.concatenate([grid, 2 * grid], axis=0) for grid in grids]
        batches = (batches[0], 2 * batches[0])
    if len(widths) == 1:
        grids = [np.concatenate([grid, 2 * grid], axis=1) for grid in grids]
        widths = (widths[0], 2 * widths[0])
    return CostCurve(tuple(batches), tuple(widths), contexts[0], *grids)


def assumed(max_rows: int) -> CostCurve:
    """A curve for an engine that nobody has measured: each column adds a tenth of what reading the weights takes.

    Its unit means nothing; `OnlineCosts` finds it, and the shape, while serving.
    """
    batches = powers_of_two(max_rows) if max_rows > 1 else (1, 2)
    columns = np.outer(batches, WIDTHS).astype(np.float64)
    return CostCurve(batches, WIDTHS, 0, 0.02 * (1 + 0.1 * (columns - 1)), np.zeros_like(columns))


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`, which is the last one in any case."""
    return (*(2**i for i in range(most.bit_length()) if 2**i < most), most)


class OnlineCosts:
    """A cost curve that follows the machine: one factor for all of it, and one bend for each point of its grid.

    The factor is the median of the last nine observed ratios: a few outliers do not move it, a machine that becomes
    slower or faster is followed within five steps. Bends are clipped averages of what the factor leaves over; a point
    that was never seen follows its neighbours, by half a point further away. A measured curve counts as `TRUST`
    observations of every point, an assumed one as a single one.
    Cost: about 20 us to observe, 15 us to ask. Used from one thread.
    """

    TRUST = 40.0
    SLOWEST = 0.02  # an observation never counts less than this against all before it
    CLIP = 0.25  # of a logarithm: what one observation can say about a well-known point
    NEAR = 0.5  # how far an observation counts for the next point of the grid

    def __init__(self, curve: CostCurve, *, is_measured: bool) -> None:
        self._curve = curve
        self._recent: deque[float] = deque(maxlen=9)
        self._factor = 0.0  # logarithm
        self._bends = np.zeros_like(curve.seconds_at)  # logarithms
        self._seen = np.full_like(curve.seconds_at, self.TRUST if is_measured else 1.0)
        self._spread_rows, self._spread_widths = _spread(len(curve.batches)), _spread(len(curve.widths))
        self._interpolation: dict[int, Float64] = {}  # number of widths -> float64 [n, points]
        self._factors = np.exp(self._bends)
        self._n_outside = 0

    @property
    def factor(self) -> float:
        """How much slower than its curve the machine is now; 1 before anything was observed."""
        return math.exp(self._factor)

    @property
    def n_outside(self) -> int:
        """Observations beyond the grid (long pieces of prompts), which teach nothing."""
        return self._n_outside

    def by_width(self, rows: int, n_widths: int, context: int) -> Float64:
        """Seconds of a forward of `rows` rows at the widths 1 .. n_widths, float64 [n_widths], never falling."""
        b = _place(self._curve.batches, rows)
        grid = self._grid(context)
        of_rows = grid[b.lower] * (1 - b.weight) + grid[b.lower + 1] * b.weight
        seconds: Float64 = self._interpolate(n_widths) @ of_rows
        return seconds

    def seconds(self, rows: int, width: int, context: int) -> float:
        """Seconds of one forward."""
        return _between(self._curve, self._grid(context), rows, width)

    def observe(self, rows: int, width: int, context: int, seconds: float) -> None:
        """A forward took so long. Beyond the grid's last point it is counted and teaches nothing."""
        assert seconds >= 0, "time runs forward"
        if rows > self._curve.batches[-1] or width > self._curve.widths[-1]:
            self._n_outside += 1
            return
        ratio = math.log(max(seconds, 1e-9) / self.seconds(rows, width, context)) + self._factor
        self._recent.append(ratio)
        self._factor = sorted(self._recent)[len(self._recent) // 2]
        self._bend(rows, width, ratio - self._factor)

    def _bend(self, rows: int, width: int, left: float) -> None:
        """Move the points around (rows, width) by what the factor left over; less the better they are known."""
        b, t = _place(self._curve.batches, rows), _place(self._curve.widths, width)
        near = np.outer(_mix(self._spread_rows, b), _mix(self._spread_widths, t))
        known = float(self._seen[b.lower + (b.weight > 0.5), t.lower + (t.weight > 0.5)])
        clip = self.CLIP + 1 / known  # little is known of this point: an outlier is likelier to be the truth
        self._bends += near * np.maximum(1 / self._seen, self.SLOWEST) * min(max(left, -clip), clip)
        self._seen += near
        self._factors = np.exp(self._bends)

    def _grid(self, context: int) -> Float64:
        return monotone(self._curve.grid(context) * self._factors * math.exp(self._factor))

    def _interpolate(self, n_widths: int) -> Float64:
        matrix = self._interpolation.get(n_widths)
        if matrix is None:
            matrix = np.zeros((n_widths, len(self._curve.widths)))
            for i in range(n_widths):
                t = _place(self._curve.widths, i + 1)
                matrix[i, t.lower] += 1 - t.weight
                matrix[i, t.lower + 1] += t.weight
            self._interpolation[n_widths] = matrix
        return matrix


def _spread(n_points: int) -> Float64:
    """How far an observation of point i counts for point j, float64 [n, n]."""
    at = np.arange(n_points)
    spread: Float64 = OnlineCosts.NEAR ** np.abs(at[:, None] - at)
    return spread


def _mix(spread: Float64, place: _Place) -> Float64:
    mixed: Float64 = spread[place.lower] * (1 - place.weight) + spread[place.lower + 1] * place.weight
    return mixed
