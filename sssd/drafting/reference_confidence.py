"""The plain twin of what the native core learns. Owns its arithmetic only; knows no trees."""

from __future__ import annotations

from bisect import bisect_left

_ENDS = (
    *(0.01, 0.02, 0.04, 0.06, 0.09, 0.12, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8),
    *(0.84, 0.88, 0.91, 0.94, 0.97, 0.99, 1.0),
)
_PRIOR = 8.0
_REFIT = 64
_CELLS = 256
_KEPT = 0.98


class Leaning:
    """Which of the guides (newest, oldest, onward) is right most often where they differ."""

    def __init__(self) -> None:
        self._hits = [4.0, 1.0, 1.0]

    def parts(self) -> list[float]:
        """Each one's part; they sum to 1."""
        squares = [h * h for h in self._hits]
        return [s / sum(squares) for s in squares]

    def learn(self, right: list[bool]) -> None:
        """One token that told them apart."""
        self._hits = [h * _KEPT + r + (1 - _KEPT) for h, r in zip(self._hits, right, strict=True)]


class Curve:
    """Corrects the chance of a token given that its parent was accepted; see csrc/confidence.h."""

    def __init__(self, kept: float = 0.999) -> None:
        self._decay = kept
        self._bins = [[0.0, 0.0, 0.0] for _ in _ENDS]  # trials, hits, summed chances
        self._n_learned = 0
        self._table = self._refit()

    def corrected(self, chance: float) -> float:
        """The chance as verdicts so far say it should have been."""
        at = chance * _CELLS
        i = min(int(at), _CELLS - 1)
        return self._table[i] + (self._table[i + 1] - self._table[i]) * (at - i)

    def learn(self, chance: float, right: bool) -> None:
        """One verdict."""
        bin_ = self._bins[min(bisect_left(_ENDS, chance), len(_ENDS) - 1)]
        bin_[0] = bin_[0] * self._decay + 1
        bin_[1] = bin_[1] * self._decay + right
        bin_[2] = bin_[2] * self._decay + chance
        self._n_learned += 1
        if self._n_learned % _REFIT == 0:
            self._table = self._refit()

    def _knots(self) -> tuple[list[float], list[float]]:
        x, pools = [0.0], []  # a pool is (weight, value, bins)
        for b, (trials, hits, chances) in enumerate(self._bins):
            mean = chances / trials if trials > 0 else (_ENDS[b] + (_ENDS[b - 1] if b > 0 else 0.0)) / 2
            x.append(mean)
            weight = trials + _PRIOR
            pools.append((weight, (hits + _PRIOR * mean) / weight, 1))
            while len(pools) > 1 and pools[-2][1] > pools[-1][1]:
                (w1, v1, n1), (w2, v2, n2) = pools[-2:]
                pools[-2:] = [(w1 + w2, (v1 * w1 + v2 * w2) / (w1 + w2), n1 + n2)]
        y = [0.0] + [min(value, 1.0) for _, value, n in pools for _ in range(n)]
        return [*x, 1.0], [*y, min(1.0, y[-1] + (1 - x[-1]))]

    def _refit(self) -> list[float]:
        x, y = self._knots()
        table = []
        for i in range(_CELLS + 1):
            chance = i / _CELLS
            k = next(k for k in range(1, len(x)) if chance <= x[k])
            width = x[k] - x[k - 1]
            rise = (y[k] - y[k - 1]) / width if width > 0 else 0.0
            table.append(min(y[k - 1] + rise * (chance - x[k - 1]), y[k]))
        return table


class Learned:
    """What one namespace has learned."""

    def __init__(self, n_sources: int) -> None:
        self.curves = [Curve() for _ in range(n_sources)]
        self.paths = Curve(0.998)
        self.leaning = Leaning()
