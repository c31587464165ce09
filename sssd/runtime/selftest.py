"""Does an engine work on this machine? Owns the shapes that are tried and what an engine must do in each.

Knows no model and no drafts: batches are built by hand from a few token ids. Leaves garbage in the engine's slots, so
it belongs before the first request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sssd import tree
from sssd.errors import EngineError
from sssd.types import Choose, EngineOutput, Int32, Int64, NodeScores, Row, StepPlan, empty_tree

if TYPE_CHECKING:
    from sssd.engines.base import Engine

_CONTEXT = 5  # tokens read before the columns that are compared


class Shape(NamedTuple):
    """One forward pass's size."""

    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class ShapeReport:
    """What happened in one shape."""

    rows: int
    width: int
    seconds: float  # of the second forward, when everything is warm
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What an engine did in all shapes; it works when there is no problem."""

    shapes: tuple[ShapeReport, ...]
    prefix_problems: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """All of them, with the shape they occurred in."""
        found = [f"{s.rows} rows of {s.width} columns: {p}" for s in self.shapes for p in s.problems]
        return [*found, *self.prefix_problems]


def self_test(engine: Engine, *, rows: int, min_width: int, max_width: int, chunk: int) -> SelfTest:
    """Run the corners of what serving will ask for.

    One row and `rows` at the narrowest and the widest decoding step, and one row that reads `chunk` prompt tokens.

    In each shape scores must be finite, agree with the argmax, and come out the same twice. A copied beginning must
    give the scores that reading it gives. An engine that raises fails the shape. Takes some ten forward passes.
    """
    room = engine.spec.max_len - _CONTEXT
    corners = {*product((1, rows), (min_width, min(max_width, room))), (1, min(chunk, room))}
    runner = _Runner(engine, min_width)
    shapes = tuple(_shape(runner, Shape(*corner)) for corner in sorted(corners))
    return SelfTest(shapes, tuple(_prefix(runner)) if engine.n_slots > 1 else ())


class _Runner(NamedTuple):
    """An engine and the narrowest step it is given."""

    engine: Engine
    min_width: int

    def run(self, shape: Shape) -> EngineOutput:
        """Read a few tokens, then score `width` more behind them."""
        self.forward(0, self.tokens(shape.rows, _CONTEXT), past=0)
        return self.forward(0, self.tokens(shape.rows, shape.width, offset=_CONTEXT), past=_CONTEXT)

    def tokens(self, rows: int, n: int, *, offset: int = 0) -> list[Int32]:
        """Different ordinary ids for every row."""
        spec = self.engine.spec
        usable = np.array([i for i in range(min(spec.vocab_size, 4096)) if i not in spec.eos_ids], np.int32)
        places = np.arange(offset, offset + n)
        return [usable[(7 * places + 13 * row + 1) % len(usable)] for row in range(rows)]

    def forward(self, first_slot: int, forced: Sequence[Int32], *, past: int) -> EngineOutput:
        """A step of forced columns only, scored at the last one, kept, and copied out of the engine's buffers."""
        rows = tuple(_row(first_slot + i, past, tokens) for i, tokens in enumerate(forced))
        batch = tree.pack(StepPlan(rows), [empty_tree()] * len(rows), min_width=self.min_width)
        out = self.engine.forward(batch)
        copied = deepcopy(out)
        self.engine.commit(batch, [np.arange(len(tokens), dtype=np.int32) for tokens in forced])
        return copied


def _shape(runner: _Runner, shape: Shape) -> ShapeReport:
    began = perf_counter()
    try:
        first = runner.run(shape)
        began = perf_counter()
        second = runner.run(shape)
    except EngineError as e:
        return ShapeReport(shape.rows, shape.width, perf_counter() - began, (str(e),))
    seconds = perf_counter() - began
    problems = [*_unsound(first), *(["two runs differ"] if not _equal(first, second) else [])]
    return ShapeReport(shape.rows, shape.width, seconds, tuple(problems))


def _prefix(runner: _Runner) -> Iterator[str]:
    """Slot 1 with a copy of what slot 0 has read must say what slot 0 says."""
    try:
        runner.forward(0, runner.tokens(1, _CONTEXT), past=0)
        runner.engine.copy_prefix(0, 1, _CONTEXT)
        columns = runner.tokens(1, max(runner.min_width, 2), offset=_CONTEXT)
        here, there = (runner.forward(slot, columns, past=_CONTEXT) for slot in (0, 1))
    except EngineError as e:
        yield f"a copied beginning: {e}"
        return
    if not _equal(here, there):
        yield "a copied beginning gives other scores than the one it was copied from"


def _row(slot: int, past: int, forced: Int32) -> Row:
    choose: Choose = _best
    return Row(
        request_id=slot,
        slot=slot,
        past_len=past,
        forced=forced,
        budget=0,
        samples=True,
        choose=choose,
        needs_scores=True,
        n_logprobs=None,
        stop_ids=frozenset(),
        room=1,
    )


def _best(node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
    return node.next_id


def _unsound(out: EngineOutput) -> Iterator[str]:
    scores = out.logits if out.logits is not None else out.top_scores
    if scores is None:
        yield "no scores came back though they were asked for"
        return
    if not np.isfinite(scores).all():
        yield "scores are not finite"
        return
    best: Int64 = scores.argmax(axis=2)
    if out.logits is None and out.top_ids is not None:
        best = np.take_along_axis(out.top_ids, best[..., None], axis=2)[..., 0]
    if not (best == out.next_ids).all():
        yield "the best score is not the token that the engine names"


def _equal(a: EngineOutput, b: EngineOutput) -> bool:
    pairs = ((a.next_ids, b.next_ids), (a.logits, b.logits), (a.top_ids, b.top_ids), (a.top_scores, b.top_scores))
    return all(
        (x is None and y is None) or (x is not None and y is not None and np.array_equal(x, y)) for x, y in pairs
    )
