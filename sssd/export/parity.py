"""Does the graph compute what the declaration says? Owns the scenarios and their tolerances; knows no file format.

Every scenario runs the graph through the engine that serves, in trees, ragged batches and padded columns, and notes at
each scored column which sequence of tokens it stands for. The reference then decodes those sequences one token after
the other, and both must say the same about what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sssd.architecture import Decoder
from sssd.engines.base import Engine
from sssd.engines.reference import ReferenceEngine, Weight
from sssd.engines.scripted import ScriptedEngine
from sssd.errors import ParityError
from sssd.spec import ParityCheck
from sssd.tree import chain_tree, pack
from sssd.types import DraftTree, Float32, Int32, NodeScores, Row, StepPlan, VerifyBatch

N_SLOTS = 3  # an engine needs as many
_PROMPTS = (7, 4, 5)  # tokens that the slots hold before trees are drafted: ragged
_NODES = 6  # draft nodes of a row
_SPARE = 3  # padding columns beside the widest row

# Both sides add up the same float32 products in another order, over hundreds of terms and every layer; what is left
# grows with the size of the numbers, so the tolerance is a part of the largest logit. A wrong mask, position or scale
# moves logits by a part of their spread, four orders of magnitude more. Quantized weights are no different: the
# reference has the dequantized weights, and the engine is asked for exact products.
_RELATIVE = 1e-4
# A graph that computes in float16 rounds 8,000 times as coarsely. Seen: 0.0008 of the largest logit (SmolLM2-135M).
_RELATIVE_FLOAT16 = 1e-2
_ABSOLUTE = 1e-3  # for models whose logits are all near zero


class Observation(NamedTuple):
    """What the graph said after a sequence of tokens."""

    check: str
    sequence: tuple[int, ...]
    scores: NodeScores


class Difference(NamedTuple):
    """The largest difference that a check found, and in which output."""

    tensor: str
    value: float


def compare(
    observations: Sequence[Observation], decoder: Decoder, weight: Weight, *, in_float16: bool = False
) -> tuple[ParityCheck, ...]:
    """Hold what the graph said against the reference, check by check; `in_float16` is how the graph computes.

    Costs one forward of the reference; it holds one weight at a time. Raises ParityError, naming check, tensor and
    figure, when a difference passes its tolerance.
    """
    expected = _reference_scores(decoder, weight, [o.sequence for o in observations])
    return judge(observations, expected, in_float16=in_float16)


def judge(
    observations: Sequence[Observation], expected: Mapping[tuple[int, ...], Float32], *, in_float16: bool = False
) -> tuple[ParityCheck, ...]:
    """Hold what the graph said against the expected logits float32 [V] after each sequence. Raises ParityError."""
    largest = max(float(np.abs(scores).max()) for scores in expected.values())
    tolerance = _ABSOLUTE + (_RELATIVE_FLOAT16 if in_float16 else _RELATIVE) * largest
    checks = []
    for name in dict.fromkeys(o.check for o in observations):
        worst = _worst([difference(o.scores, expected[o.sequence]) for o in observations if o.check == name])
        if not worst.value <= tolerance:  # not a number is no number below it
            raise ParityError(
                f"parity check '{name}': {worst.tensor} differs from the reference by {worst.value:.3g}, allowed is "
                f"{tolerance:.3g}; this export is wrong, please report it with the model's config"
            )
        checks.append(ParityCheck(name, worst.value, tolerance))
    return tuple(checks)


def _worst(differences: Sequence[Difference]) -> Difference:
    return max(differences, key=lambda d: np.inf if np.isnan(d.value) else d.value)


def difference(scores: NodeScores, expected: Float32) -> Difference:
    """The largest difference of what an engine said from the logits float32 [V]."""
    kept = expected if scores.ids is None else expected[scores.ids]
    assert scores.scores is not None
    found = [
        Difference("logits" if scores.ids is None else "top_scores", float(np.abs(scores.scores - kept).max())),
        Difference("next_ids", float(expected.max() - expected[scores.next_id])),  # what its choice costs
    ]
    if scores.ids is not None:
        left_out = float(np.delete(expected, scores.ids).max(initial=-np.inf))
        found.append(Difference("top_ids", max(0.0, left_out - float(kept.min()))))
    if scores.lse is not None:
        found.append(Difference("lse", abs(scores.lse - _log_sum_exp(expected))))
    return _worst(found)


def _log_sum_exp(scores: Float32) -> float:
    top = float(scores.max())
    return top + float(np.log(np.exp(scores.astype(np.float64) - top).sum()))


# ---- scenarios ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Slots:
    """An engine, and the tokens whose KV each of its slots holds."""

    engine: Engine
    held: list[list[int]]
    seen: list[Observation]

    def step(self, check: str, forced: Sequence[Sequence[int]], trees: Sequence[DraftTree], *, width: int = 1) -> None:
        """Forward the rows, note what each scored column says, and keep the path to each row's last node."""
        batch = self.batch(forced, trees, width)
        out = self.engine.forward(batch)
        keeps = []
        for b in range(len(forced)):
            paths = [_path(batch, b, column) for column in range(int(batch.n_nodes[b]))]
            for r, column in enumerate(batch.logit_rows[b].tolist()):
                if column < len(paths):
                    tokens = (*self.held[b], *batch.input_ids[b, paths[column]].tolist())
                    self.seen.append(Observation(check, tokens, _copied(out.node(b, r))))
            keep = paths[-1] if paths else np.zeros(0, np.int32)
            keeps.append(keep)
        self.engine.commit(batch, keeps)
        for b, keep in enumerate(keeps):
            self.held[b] += batch.input_ids[b, keep].tolist()

    def batch(self, forced: Sequence[Sequence[int]], trees: Sequence[DraftTree], width: int) -> VerifyBatch:
        rows = [_row(b, len(self.held[b]), tokens) for b, tokens in enumerate(forced)]
        return pack(StepPlan(tuple(rows)), trees, min_width=max(width, self.engine.spec.min_width))


def observe(engine: Engine) -> list[Observation]:
    """Run every scenario on the first N_SLOTS slots of an engine: a few narrow forwards, the same tokens every time."""
    rng, vocab = np.random.default_rng(0), engine.spec.vocab_size
    slots = _Slots(engine, [[] for _ in range(N_SLOTS)], [])

    def tokens(n: int) -> list[int]:
        return [int(t) for t in rng.integers(0, vocab, n)]

    none = random_tree(rng, 0, vocab)
    slots.step("chain", [tokens(1) for _ in _PROMPTS], [_chain(tokens(n - 1)) for n in _PROMPTS])
    slots.step("tree, ragged", [tokens(1) for _ in _PROMPTS], [random_tree(rng, _NODES, vocab) for _ in _PROMPTS])
    slots.step("after a commit", [tokens(1) for _ in _PROMPTS], [none] * N_SLOTS)
    idle = [tokens(1), [], tokens(2)]
    slots.step("idle row", idle, [random_tree(rng, _NODES, vocab), none, none])
    slots.step("after an idle row", [tokens(1) for _ in _PROMPTS], [none] * N_SLOTS)
    slots.step("padding", [tokens(2), tokens(1)], [none, random_tree(rng, 2, vocab)], width=3 + _SPARE)
    n = len(slots.held[0]) - 2
    engine.copy_prefix(0, 2, n)
    slots.held[2] = slots.held[0][:n]
    slots.step("copied prefix", [tokens(1) for _ in _PROMPTS], [none] * N_SLOTS)
    return slots.seen


def planned_sequences(vocab_size: int) -> list[tuple[int, ...]]:
    """The sequences that `observe` will ask about, in its order: they depend on nothing that an engine says."""
    scores = np.zeros(vocab_size, np.float32)
    engine = ScriptedEngine(lambda context: scores, vocab_size=vocab_size, n_slots=N_SLOTS)
    return [o.sequence for o in observe(engine)]


def random_tree(rng: np.random.Generator, n: int, vocab: int) -> DraftTree:
    """A tree of n nodes with random tokens and parents."""
    parents = np.array([rng.integers(-1, i) for i in range(n)], np.int32)
    tokens = rng.integers(0, vocab, n).astype(np.int32)
    return DraftTree(tokens, parents, np.zeros(n, np.float32), np.zeros(n, np.uint8))


def _chain(tokens: Sequence[int]) -> DraftTree:
    n = len(tokens)
    return chain_tree(np.array(tokens, np.int32), np.zeros(n, np.float32), np.zeros(n, np.uint8))


def _path(batch: VerifyBatch, b: int, column: int) -> Int32:
    """Columns from the row's first to the given one, along parents: int32 [k], ascending."""
    return np.flatnonzero(batch.tree_mask[b, column]).astype(np.int32)


def _copied(scores: NodeScores) -> NodeScores:
    """Out of the engine's arrays, which the next forward may reuse."""
    ids = None if scores.ids is None else scores.ids.copy()
    assert scores.scores is not None
    return NodeScores(scores.next_id, ids, scores.scores.copy(), scores.lse)


def _best(node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int:
    return node.next_id


def _row(slot: int, past_len: int, forced: Sequence[int]) -> Row:
    return Row(
        request_id=slot,
        slot=slot,
        past_len=past_len,
        forced=np.array(forced, np.int32),
        budget=_NODES,
        samples=False,
        choose=_best,
        needs_scores=True,
        n_logprobs=None,
        stop_ids=frozenset(),
        room=0,
    )


# ---- the reference's side -----------------------------------------------------------------------


def _reference_scores(
    decoder: Decoder, weight: Weight, sequences: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], Float32]:
    """Logits float32 [V] after each sequence: one chain a row, from nothing, all in one forward.

    A sequence that begins a longer one is a column of that one's row.
    """
    wanted = set(sequences)
    chains = _maximal(wanted)
    engine = ReferenceEngine(decoder, weight, n_slots=len(chains))
    width = max(map(len, chains))
    mask = np.tri(width, dtype=bool)[None].repeat(len(chains), axis=0)
    ids = np.zeros((len(chains), width), np.int64)
    for b, chain in enumerate(chains):
        ids[b, : len(chain)] = chain
    columns = np.arange(width)[None].repeat(len(chains), axis=0)
    scored = [[i for i in range(len(chain)) if chain[: i + 1] in wanted] for chain in chains]
    most = max(map(len, scored))
    rows = np.array([s + s[-1:] * (most - len(s)) for s in scored], np.int64)
    lens = np.array([len(chain) for chain in chains], np.int32)
    past = np.zeros(len(chains), np.int64)
    parents = (columns - 1).astype(np.int32)
    batch = VerifyBatch(0, ids, columns, past, mask, rows, parents, lens, lens, needs_scores=True)
    logits = engine.forward(batch).logits
    assert logits is not None
    return {chain[: i + 1]: logits[b, r] for b, chain in enumerate(chains) for r, i in enumerate(scored[b])}


def _maximal(sequences: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sequences that no other one begins with."""
    ordered = sorted(sequences)
    following = [*ordered[1:], ()]
    return [s for s, after in zip(ordered, following, strict=True) if after[: len(s)] != s]
