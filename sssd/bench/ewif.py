"""Expected walltime improvement of draft models and their cascades: formulas, simulation, and the search of the best.

Owns arithmetic only; knows no model and no engine. From Cascade Speculative Drafting (arXiv 2312.11462): a verified
token is accepted independently with probability alpha, a run of a drafter costs a fraction c of a run of the target,
and EWIF = expected tokens a round / cost of a round, in runs of the target. A drafter's `accept` is

    plain, horizontal   by the target
    vertical            by the model above it: the target for the first, the first for the second, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.errors import SssdError

Cascade = Literal["plain", "horizontal", "vertical"]
Counts = npt.NDArray[np.int64]

LONGEST = {1: 64, 2: 24, 3: 16}  # drafters -> largest k that a search tries


class DraftModel(NamedTuple):
    """One drafter. `k`: positions of a round that it drafts, or its runs in one run of the model above."""

    accept: float  # probability, 0 to 1
    cost: float  # of one run, in runs of the target
    k: int


@dataclass(frozen=True, slots=True)
class Ewif:
    """One cascade's figures."""

    cascade: Cascade
    accept: tuple[float, ...]
    cost: tuple[float, ...]
    k: tuple[int, ...]
    tokens: float  # expected, of a round
    round_cost: float  # in runs of the target
    ewif: float
    simulated: float | None = None  # EWIF over `rounds` simulated rounds
    rounds: int = 0


def evaluate(cascade: Cascade, models: Sequence[DraftModel], *, rounds: int = 0, seed: int = 0) -> Ewif:
    """EWIF of `models`, largest first, by formula; beside it by simulation where `rounds` is not 0.

    Raises SssdError for a value out of range.
    """
    check(cascade, models)
    tokens = expected_tokens(cascade, models)
    cost = round_cost(cascade, models)
    simulated = simulate(cascade, models, rounds=rounds, seed=seed) / cost if rounds else None
    accept, costs, k = zip(*models, strict=True)
    return Ewif(cascade, accept, costs, k, tokens, cost, tokens / cost, simulated, rounds)


def check(cascade: Cascade, models: Sequence[DraftModel]) -> None:
    """Raises SssdError naming the first value that is out of range."""
    if not models or (cascade == "plain") != (len(models) == 1):
        raise SssdError(
            f"{len(models)} drafters in a {cascade} round: plain is one drafter, horizontal and vertical two or more"
        )
    for model in models:
        for name, ok, allowed in (
            ("accept", 0 <= model.accept <= 1, "0 to 1"),
            ("cost", 0 <= model.cost < float("inf"), "0 or more, in runs of the target"),
            ("k", 0 <= model.k <= 10_000, "0 to 10000"),
        ):
            if not ok:
                raise SssdError(f"{name} is {getattr(model, name)}: allowed is {allowed}")


# ---- formulas -----------------------------------------------------------------------------------


def expected_tokens(cascade: Cascade, models: Sequence[DraftModel]) -> float:
    """Of a round, the target's own token included."""
    if cascade == "vertical":
        return 1 + _accepted(models[0].accept, 1.0, _Draft(models))
    tokens = reached = 1.0
    for model in models:
        tokens += reached * _geometric(model.accept, model.k)
        reached *= model.accept**model.k
    return tokens


def round_cost(cascade: Cascade, models: Sequence[DraftModel]) -> float:
    """Of a round, in runs of the target, the target's own included."""
    if cascade == "vertical":
        return 1 + sum(prod(m.k for m in models[: i + 1]) * model.cost for i, model in enumerate(models))
    return 1 + sum(model.k * model.cost for model in models)


def _geometric(a: float, k: int) -> float:
    """a + a**2 + ... + a**k."""
    return float(k) if a == 1 else a * (1 - a**k) / (1 - a)


class _Draft:
    """The tokens that a model of a vertical cascade is given to review: k runs of the model below it."""

    def __init__(self, models: Sequence[DraftModel]) -> None:
        self._k = models[0].k
        self._below = _Draft(models[1:]) if len(models) > 1 else None
        self._accept = models[1].accept if len(models) > 1 else 0.0

    def generating(self, x: float) -> float:
        """Generating function of their number."""
        if self._below is None:
            return x**self._k
        # a run yields what it accepts of its own draft, and its own token:
        # E x**(accepted + 1) = x * (1 + (x - 1) * sum over j >= 1 of x**(j - 1) * P(accepted >= j))
        one_run = x * (1 + (x - 1) * _accepted(self._accept, x, self._below))
        return one_run**self._k

    def mean(self) -> float:
        """Their expected number: the generating function's slope at 1."""
        if self._below is None:
            return float(self._k)
        return self._k * (1 + _accepted(self._accept, 1.0, self._below))


def _accepted(b: float, x: float, draft: _Draft) -> float:
    """sum over j >= 1 of x**(j - 1) * P(at least j tokens of `draft` are accepted); their expected number at x = 1."""
    if b * x == 1:
        return b * draft.mean()
    return b * (1 - draft.generating(b * x)) / (1 - b * x)


# ---- simulation ---------------------------------------------------------------------------------


def simulate(cascade: Cascade, models: Sequence[DraftModel], *, rounds: int, seed: int = 0) -> float:
    """Mean tokens of a round, over simulated rounds. Raises SssdError for no rounds."""
    if rounds < 1:
        raise SssdError(f"rounds is {rounds}: allowed is 1 or more")
    random = np.random.default_rng(seed)
    if cascade == "vertical":
        return float(1 + _reviewed(random, models[0].accept, _drafted(random, models, rounds)).mean())
    alive = np.ones(rounds, np.bool_)
    tokens = np.ones(rounds, np.int64)
    for model in models:
        for _ in range(model.k):
            alive &= random.random(rounds) < model.accept
            tokens += alive
    return float(tokens.mean())


def _drafted(random: np.random.Generator, models: Sequence[DraftModel], rounds: int) -> Counts:
    """Tokens that k runs of the first model yield, int64 [rounds]."""
    if len(models) == 1:
        return np.full(rounds, models[0].k)
    tokens = np.zeros(rounds, np.int64)
    for _ in range(models[0].k):
        tokens += _reviewed(random, models[1].accept, _drafted(random, models[1:], rounds)) + 1
    return tokens


def _reviewed(random: np.random.Generator, accept: float, drafted: Counts) -> Counts:
    """How many of them are accepted before the first that is not, int64 [rounds]."""
    if accept == 1:
        return drafted
    return np.minimum(random.geometric(1 - accept, len(drafted)) - 1, drafted)


# ---- search -------------------------------------------------------------------------------------


def curve(cascade: Cascade, accept: Sequence[float], cost: Sequence[float]) -> list[Ewif]:
    """For every k of the first drafter from 0 on, the best that the others' k can do; ties take the smaller k.

    Raises SssdError for a value out of range and for more drafters than a search tries.
    """
    if len(accept) not in LONGEST:
        raise SssdError(f"a search over {len(accept)} drafters: allowed are 1 to {max(LONGEST)}; give --k for more")
    longest = LONGEST[len(accept)]
    best: list[Ewif] = []
    for first in range(longest + 1):
        tried = [
            evaluate(cascade, [DraftModel(*m) for m in zip(accept, cost, (first, *others), strict=True)])
            for others in product(range(longest + 1), repeat=len(accept) - 1)
        ]
        best.append(max(tried, key=lambda found: (found.ewif, -sum(found.k))))
    return best


def best_of(found: Sequence[Ewif]) -> Ewif:
    """The largest EWIF; ties take the fewer drafts."""
    return max(found, key=lambda one: (one.ewif, -sum(one.k)))
