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
    weight: float  # of the upper neighbour; above 1 beyond the last point, 0 before the first


def _place(points: Sequence[int], x: int) -> _Place:
    i = min(max(bisect_right(points, x) - 1, 0), len(points) - 2)
    return _Place(i, max((x - points[i]) / (points[i + 1] - points[i]), 0.0))


def monotone(grid: Float64) -> Float64:
    """A grid (float64 [n, m]) without falls: halfway between the lowest that covers it and the highest under it.

    One that never falls along either axis is returned as it is.
    """
    above = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
    reversed_below = np.minimum.accumulate(np.minimum.accumulate(grid[::-1, ::-1], axis=0), axis=1)
    middle: Float64 = (above + reversed_below[::-1, ::-1]) / 2
    return middle


@dataclass(frozen=True, slots=True, eq=False)
class CostCurve:
    """Seconds of a forward at the points of a grid, linear between them. Before the first point its value holds.

    Beyond the last batch the last piece goes on; beyond the last width time grows in proportion, as it does when an
    engine computes to capacity. Never cheaper when wider, with more rows or at a longer context.
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
        return float(_width_weights(self.widths, width) @ _of_rows(self.batches, self.grid(context), rows))


def _of_rows(batches: Sequence[int], grid: Float64, rows: int) -> Float64:
    """Seconds at the grid's widths, float64 [widths]."""
    b = _place(batches, rows)
    between = grid[b.lower] * (1 - b.weight) + grid[b.lower + 1] * b.weight
    # beyond the last batch two widths may grow at unequal speed and cross
    return np.maximum.accumulate(between)


def _width_weights(widths: Sequence[int], width: int) -> Float64:
    """What each of the grid's widths counts for `width`, float64 [widths]."""
    weights = np.zeros(len(widths))
    t = _place(widths, width)
    if t.weight > 1:
        weights[-1] = width / widths[-1]
    else:
        weights[t.lower], weights[t.lower + 1] = 1 - t.weight, t.weight
    return weights


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
    follows what is seen at others as well, half as much for each point in between, and less the more there was to see.
    A measured curve counts as `TRUST` observations of every point; they fade to `OLD` where nothing new is observed.
    Cost: about 20 us to observe, 15 us to ask. Used from one thread.
    """

    TRUST, OLD = 40.0, 4.0
    FADES = 1000.0  # observations
    KNOWN = 2.5  # observations from which a point is no longer unknown
    SLOWEST = 0.02  # an observation never counts less than this against all before it
    CLIP = 0.25  # of a logarithm: what one observation can say about a well-known point
    NEAR = 0.5  # how far an observation counts for the next point of the grid

    def __init__(self, curve: CostCurve, *, is_measured: bool) -> None:
        self._curve = curve
        self._recent: deque[float] = deque(maxlen=9)
        self._factor = 0.0  # logarithm
        self._bends = np.zeros_like(curve.seconds_at)  # logarithms
        self._seen = np.full_like(curve.seconds_at, self.TRUST if is_measured else 0.0)  # observations of the point
        self._heard = self._seen + 1  # those of all others, by how near they are
        self._spread_rows, self._spread_widths = _spread(len(curve.batches)), _spread(len(curve.widths))
        self._weights: dict[int, Float64] = {}  # n widths -> float64 [n, the grid's widths]
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
        weights = self._weights.get(n_widths)
        if weights is None:
            each = [_width_weights(self._curve.widths, width) for width in range(1, n_widths + 1)]
            weights = self._weights[n_widths] = np.stack(each)
        seconds: Float64 = weights @ _of_rows(self._curve.batches, self._grid(context), rows)
        return seconds

    def seconds(self, rows: int, width: int, context: int) -> float:
        """Seconds of one forward."""
        of_rows = _of_rows(self._curve.batches, self._grid(context), rows)
        return float(_width_weights(self._curve.widths, width) @ of_rows)

    def unknown_widths(self, rows: int) -> list[int]:
        """Widths of the grid of which less is known than a few observations tell; none on a measured curve."""
        seen = self._seen[_nearest(_place(self._curve.batches, rows))]
        return [width for width, n in zip(self._curve.widths, seen.tolist(), strict=True) if n < self.KNOWN]

    def observe(self, rows: int, width: int, context: int, seconds: float) -> float:
        """A forward took so long; returns how far off that is, as a logarithm of times what was expected.

        Beyond the grid's last point it is counted, teaches nothing and is no surprise.
        """
        assert seconds >= 0, "time runs forward"
        if rows > self._curve.batches[-1] or width > self._curve.widths[-1]:
            self._n_outside += 1
            return 0.0
        b, t = _place(self._curve.batches, rows), _place(self._curve.widths, width)
        ratio = math.log(max(seconds, 1e-9) / self._without_factor(b, t, context))
        # by the factor before this one, which has not followed this observation yet
        left = ratio - self._factor if self._recent else 0.0
        self._bend(b, t, left)
        self._recent.append(ratio)
        self._factor = sorted(self._recent)[len(self._recent) // 2]
        return left

    def _without_factor(self, b: _Place, t: _Place, context: int) -> float:
        """Seconds at a place by the curve and its bends alone."""
        rows, columns = slice(b.lower, b.lower + 2), slice(t.lower, t.lower + 2)
        corners = self._curve.per_token[rows, columns] * max(context - self._curve.context, 0)
        corners = (corners + self._curve.seconds_at[rows, columns]) * self._factors[rows, columns]
        (near, wide), (more, both) = corners.tolist()
        few = near * (1 - t.weight) + wide * t.weight
        return float(few * (1 - b.weight) + (more * (1 - t.weight) + both * t.weight) * b.weight)

    def _bend(self, b: _Place, t: _Place, left: float) -> None:
        """Move the points around a place by what the factor left over; less the better they are known."""
        near = np.outer(_mix(self._spread_rows, b), _mix(self._spread_widths, t))
        here = np.zeros_like(near)
        here[b.lower : b.lower + 2, t.lower : t.lower + 2] = np.outer(
            (1 - b.weight, b.weight), (1 - t.weight, t.weight)
        )
        # little is known of this point: an outlier is likelier to be the truth
        clip = self.CLIP + 2 / (1 + float(self._seen[_nearest(b), _nearest(t)]))
        share = near / self._heard + here * np.maximum(1 / (1 + self._seen), self.SLOWEST)
        self._bends += np.minimum(share, 1) * min(max(left, -clip), clip)
        self._seen = self._fade(self._seen) + here
        self._heard = self._fade(self._heard) + near
        self._factors = np.exp(self._bends)

    def _fade(self, counts: Float64) -> Float64:
        faded: Float64 = np.maximum(counts * (1 - 1 / self.FADES), np.minimum(counts, self.OLD))
        return faded

    def _grid(self, context: int) -> Float64:
        return monotone(self._curve.grid(context) * self._factors * math.exp(self._factor))


def _nearest(place: _Place) -> int:
    return place.lower + (place.weight > 0.5)


def _spread(n_points: int) -> Float64:
    """How far an observation of point i counts for point j, float64 [n, n]."""
    at = np.arange(n_points)
    spread: Float64 = OnlineCosts.NEAR ** np.abs(at[:, None] - at)
    return spread


def _mix(spread: Float64, place: _Place) -> Float64:
    mixed: Float64 = spread[place.lower] * (1 - place.weight) + spread[place.lower + 1] * place.weight
    return mixed
