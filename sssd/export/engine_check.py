"""Does an engine compute what the bundle's graph does on the CPU? Owns the corners that are tried and their tolerances.

A plan or a GPU's kernels are another program than the graph that parity has checked. So both are run side by side at
the ends of what the engine takes: one row and all of them, one column and the most, no context and the longest. The
CPU's engine is the slow twin: it has one row at a time, in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sssd.engines.base import Engine
from sssd.engines.choose import choose_device, open_engine
from sssd.engines.ort import OrtEngine
from sssd.errors import ParityError
from sssd.export.parity import random_tree
from sssd.export.pipeline import silent
from sssd.spec import Bundle, open_bundle
from sssd.tree import ancestor_mask
from sssd.types import EngineOutput, Int32, NodeScores, VerifyBatch

Progress = Callable[[str, int, int], None]  # (stage, done so far, in all)

# How far scores may be apart, as a part of the largest one. Rounding of 16-bit activations adds up over layers; where a
# kernel rounds activations to 8 bits, single logits move by a tenth of the largest. What is wrong (a mask, a position,
# a column's KV) moves logits by as much as they differ among each other.
_RELATIVE = {"float32": 2e-4, "float16": 0.03, "bfloat16": 0.1, "int8": 0.3}
_ABSOLUTE = 1e-3
_SEED = 11


class Limits(NamedTuple):
    """The ends of what an engine takes."""

    rows: int
    width: int  # columns of a row where several rows run
    chunk: int  # columns of the one row that reads its prompt
    context: int  # most tokens before a row's columns


@dataclass(frozen=True, slots=True)
class CornerCheck:
    """What was found at one corner."""

    name: str  # such as "3 rows of 32 behind 4064"
    max_abs_diff: float
    tolerance: float
    agreement: float  # part of the scored columns whose argmax is the twin's


def arithmetic(bundle: Bundle, device: str) -> str:
    """The coarsest numbers that an engine computes with: a key of the tolerances."""
    spec, plan = bundle.spec, bundle.manifest.plan
    if device == "tensorrt":
        assert plan is not None
        return plan.kv_dtype
    if device == "cpu" and spec.weights in ("int8", "int4"):
        return "int8"
    return spec.kv_dtype


def limits_of(bundle: Bundle, device: str, *, n_slots: int, context: int | None = None) -> Limits:
    """A plan's own limits, or usual ones for engines that have none; `context` lowers the longest."""
    plan = bundle.manifest.plan
    if device == "tensorrt":
        assert plan is not None
        rows, width, chunk, most = plan.n_slots, plan.max_width, plan.chunk, plan.max_len
    else:
        rows, width, chunk, most = n_slots, 32, 256, bundle.spec.max_len
    rows, width = min(rows, n_slots), min(width, max(2, most // 2))
    return Limits(rows, width, chunk, min(context or most, most - width - 2))


def check_engine(
    engine: Engine, twin: Engine, limits: Limits, kind: str, *, progress: Progress
) -> tuple[CornerCheck, ...]:
    """Run all corners. `twin` needs two slots. Raises ParityError naming the corner, after all of them have run."""
    sides = _Sides(engine, twin, np.random.default_rng(_SEED), _RELATIVE[kind])
    contexts = sorted({0, limits.context})
    corners = [(r, w, c) for c in contexts for r in sorted({1, limits.rows}) for w in sorted({1, limits.width})]
    found: list[CornerCheck] = []
    done = 0
    for context in contexts:
        progress("prompt", context, limits.context)
        found += sides.read(context, limits)
        for rows, width, behind in corners:
            if behind == context:
                progress("corners", done, len(corners))
                found += sides.corner(rows, width, context)
                done += 1
    progress("corners", len(corners), len(corners))
    wrong = [c for c in found if not c.max_abs_diff <= c.tolerance]
    if wrong:
        told = "; ".join(f"{c.name}: {c.max_abs_diff:.3g}, allowed {c.tolerance:.3g}" for c in wrong[:3])
        raise ParityError(
            f"the engine and its CPU twin differ at {len(wrong)} of {len(found)} corners ({told}): do not serve with "
            "it; build or export it again, and report it if it stays"
        )
    return tuple(found)


class _Seen(NamedTuple):
    """One scored column of both sides."""

    found: NodeScores
    expected: NodeScores


class _Sides:
    """Both engines, which are told the same. Slot 0 of each holds the context; the twin works in its slot 1."""

    def __init__(self, engine: Engine, twin: Engine, random: np.random.Generator, relative: float) -> None:
        self._engine, self._twin, self._random, self._relative = engine, twin, random, relative
        self._read = 0

    def read(self, context: int, limits: Limits) -> Iterator[CornerCheck]:
        """Bring slot 0 to so many tokens, chunk by chunk; compare behind each chunk."""
        while self._read < context:
            n = min(limits.chunk, context - self._read)
            batch = self._batch([_chain(n)], [self._read], scored=1)
            seen = _columns(batch, 0, self._engine.forward(batch), self._twin.forward(batch))
            self._read += n
            yield self._check(f"prompt, {n} columns behind {self._read - n}", seen)

    def corner(self, rows: int, width: int, context: int) -> Iterator[CornerCheck]:
        """Trees, what follows their commit, and what follows a commit that the device makes by itself."""
        lens = [max(0, context - b) for b in range(rows)]
        for b in range(1, rows):
            self._engine.copy_prefix(0, b, lens[b])
        name = f"{rows} rows of {width} behind {context}"
        trees = [_tree(self._random, width) for _ in lens]
        batch = self._batch(trees, lens, scored=width)
        keeps = [np.flatnonzero(batch.tree_mask[b, -1]).astype(np.int32) for b in range(rows)]
        yield self._check(name, self._step(batch, keeps, lens))
        if width >= 3:
            yield self._check(f"{name}, greedy", self._greedy(lens))

    def _step(self, batch: VerifyBatch, keeps: Sequence[Int32], lens: list[int]) -> list[_Seen]:
        """Forward a batch and commit, then one column more on what was kept."""
        out = self._engine.forward(batch)
        seen: list[_Seen] = []
        for b in range(len(keeps)):
            one = _row(batch, b)
            self._twin.copy_prefix(0, 1, lens[b])
            seen += _columns(one, b, out, self._twin.forward(one))
        self._engine.commit(batch, keeps)
        return seen + self._after(batch, keeps, lens)

    def _after(self, batch: VerifyBatch, keeps: Sequence[Int32], lens: list[int]) -> list[_Seen]:
        """Two columns more behind what was kept; the twin computes the whole row again, and commits as it goes."""
        after = self._batch([_chain(2)] * len(keeps), [n + len(k) for n, k in zip(lens, keeps, strict=True)], scored=2)
        out = self._engine.forward(after)
        seen: list[_Seen] = []
        for b, keep in enumerate(keeps):
            self._twin.copy_prefix(0, 1, lens[b])
            kept = _row(batch, b)
            self._twin.forward(kept)
            self._twin.commit(kept, [keep])
            seen += _columns(_row(after, b), b, out, self._twin.forward(_row(after, b)))
        return seen

    def _greedy(self, lens: list[int]) -> list[_Seen]:
        """A wrong child before the right one, and no scores asked for: the engine may commit by itself."""
        roots = self._batch([_chain(1)] * len(lens), lens, scored=1)
        best = self._engine.forward(roots).next_ids[:, 0].copy()
        batch = self._batch([np.array([-1, 0, 0], np.int32)] * len(lens), lens, scored=3)
        batch.input_ids[:, 0] = roots.input_ids[:, 0]
        batch.input_ids[:, 1] = (best + 1) % self._engine.spec.vocab_size
        batch.input_ids[:, 2] = best
        silent = _without_scores(batch)
        keeps = []
        for b, ids in enumerate(self._engine.forward(silent).next_ids):
            taken = [0, 2] if ids[0] == best[b] else [0, 1] if ids[0] == batch.input_ids[b, 1] else [0]
            keeps.append(np.array(taken, np.int32))
        self._engine.commit(silent, keeps)
        return self._after(batch, keeps, lens)

    def _batch(self, parents: Sequence[Int32], lens: Sequence[int], *, scored: int) -> VerifyBatch:
        """Rows of random tokens in slots 0, 1, ...; the last `scored` columns are scored."""
        up = np.stack(parents)
        rows, width = up.shape
        mask, past = ancestor_mask(up), np.array(lens, np.int64)
        return VerifyBatch(
            first_slot=0,
            input_ids=self._random.integers(0, self._engine.spec.vocab_size, up.shape),
            position_ids=past[:, None] + mask.sum(axis=2) - 1,
            past_lens=past,
            tree_mask=mask,
            logit_rows=np.tile(np.arange(width - scored, width), (rows, 1)),
            parents=up,
            n_forced=np.full(rows, width - scored + 1, np.int32),
            n_nodes=np.full(rows, width, np.int32),
            needs_scores=True,
        )

    def _check(self, name: str, seen: Sequence[_Seen]) -> CornerCheck:
        largest = max(_largest(s.expected) for s in seen)
        worst = max(apart(s.found, s.expected) for s in seen)
        agree = sum(s.found.next_id == s.expected.next_id for s in seen) / len(seen)
        return CornerCheck(name, worst, _ABSOLUTE + self._relative * largest, agree)


def apart(found: NodeScores, expected: NodeScores) -> float:
    """The largest difference of two engines' scores at a column, over the tokens that both have kept.

    The argmax counts as what the other side says that it costs; not a number counts as infinite.
    """
    assert found.scores is not None
    assert expected.scores is not None
    if found.ids is None or expected.ids is None:
        diffs = [float(np.abs(found.scores - expected.scores).max())]
        cost = float(expected.scores.max() - expected.scores[found.next_id])
    else:
        _, a, b = np.intersect1d(found.ids, expected.ids, return_indices=True)
        diffs = [float(np.abs(found.scores[a] - expected.scores[b]).max(initial=0))]
        place = np.flatnonzero(expected.ids == found.next_id)
        cost = float(expected.scores[0] - expected.scores[place[0] if len(place) else -1])
        assert found.lse is not None
        assert expected.lse is not None
        diffs.append(abs(found.lse - expected.lse))
    worst = max(*diffs, cost)
    return float("inf") if np.isnan([*diffs, cost]).any() else worst


def _largest(scores: NodeScores) -> float:
    assert scores.scores is not None
    return float(np.abs(scores.scores).max())


def _columns(one: VerifyBatch, b: int, found: EngineOutput, expected: EngineOutput) -> list[_Seen]:
    """The scored columns of row b of the engine beside those of the twin's only row, copied out of their arrays."""
    return [_Seen(_copied(found.node(b, r)), _copied(expected.node(0, r))) for r in range(one.logit_rows.shape[1])]


def _copied(node: NodeScores) -> NodeScores:
    assert node.scores is not None
    return NodeScores(node.next_id, None if node.ids is None else node.ids.copy(), node.scores.copy(), node.lse)


def _row(batch: VerifyBatch, b: int) -> VerifyBatch:
    """One row alone, in the twin's slot 1."""
    only = slice(b, b + 1)
    return VerifyBatch(
        1,
        batch.input_ids[only],
        batch.position_ids[only],
        batch.past_lens[only],
        batch.tree_mask[only],
        batch.logit_rows[only],
        batch.parents[only],
        batch.n_forced[only],
        batch.n_nodes[only],
        needs_scores=True,
    )


def _without_scores(batch: VerifyBatch) -> VerifyBatch:
    return replace(batch, needs_scores=False)


def _chain(n: int) -> Int32:
    return np.arange(-1, n - 1, dtype=np.int32)


def _tree(random: np.random.Generator, width: int) -> Int32:
    """Parents of a root and width - 1 nodes, int32 [width]."""
    below = random_tree(random, width - 1, 2).parents
    parents: Int32 = np.concatenate([np.array([-1], np.int32), below + 1])
    return parents


def check_bundle_engine(
    bundle: str | Path,
    *,
    device: str | None = None,
    n_slots: int = 3,
    context: int | None = None,
    progress: Progress | None = None,
) -> tuple[CornerCheck, ...]:
    """Start a bundle's engine on a device, and check it against the bundle's graph in ONNX Runtime on the CPU.

    `context` lowers the longest context, which the CPU has to read too. Raises ParityError and what `open_engine` does.
    """
    opened = open_bundle(bundle)
    name = choose_device(opened, device)
    limits = limits_of(opened, name, n_slots=n_slots, context=context)
    engine = open_engine(opened, n_slots=limits.rows, device=name)
    try:
        twin = OrtEngine(opened, n_slots=2, exact=True)
        try:
            return check_engine(engine, twin, limits, arithmetic(opened, name), progress=progress or silent)
        finally:
            twin.close()
    finally:
        engine.close()
