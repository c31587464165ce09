"""The values that cross a boundary: plans, trees, batches, outputs. Owns their shapes and dtypes.

Knows no engine, no drafter and no text; everything here is frozen.
Axes: B rows, T columns, R scored columns, V vocabulary, K kept scores, n tree nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sssd.config import SamplingParams

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Uint8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]

TensorShape = tuple[int, ...]
FinishReason = Literal["stop", "length", "timeout", "error"]


class Source(IntEnum):
    """Where a draft node came from; the value is what `DraftTree.source` holds."""

    CONTEXT = 0  # the request's own prompt and output
    DATASTORE = 1  # a datastore file's segments
    LIVE = 2  # finished requests that are still in memory
    PREDICTION = 3  # text given by the client as its guess
    MODEL = 4  # a draft model
    GRAMMAR = 5  # the only way on that the request's grammar leaves


# ---- drafting ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What a request allows its drafter to use; given once, at `Drafter.begin`."""

    namespaces: tuple[str, ...] = ("default",)  # datastore namespaces it may draft from
    remember: bool = True  # may its text serve later requests of its first namespace
    prediction: Int32 | None = None  # int32 [p] tokens the client expects
    sources: frozenset[Source] | None = None  # where its drafts may come from; None = wherever there are any
    # how the target will choose, set by the request: a draft model that draws with the same noise agrees more often
    params: SamplingParams | None = None  # None = greedy
    seed: int = 0
    ending_ids: tuple[int, ...] = ()


class DraftJob(NamedTuple):
    """One row's wish for a draft tree of at most `budget` nodes (the root is not counted).

    With `ahead` the root is its last token: guesses behind the committed text, from a drafter that asks another one.
    """

    request_id: int
    budget: int
    ahead: Int32 | None = None  # int32 [a]


@dataclass(slots=True)  # not frozen, though never changed: one is made for every row of a step, and freezing is dear
class DraftTree:
    """Guessed continuations below the root (the last committed token); likeliest path first."""

    tokens: Int32  # int32 [n]
    parents: Int32  # int32 [n]; parents[i] < i; -1 = child of the root
    scores: Float32  # float32 [n]; estimated probability that the path to the node is accepted
    source: Uint8  # uint8 [n]; a Source

    def __len__(self) -> int:
        return len(self.tokens)


def empty_tree() -> DraftTree:
    """A tree of no nodes: the row decodes plainly."""
    return DraftTree(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.uint8))


# ---- choosing a token -------------------------------------------------------------------------


class NodeScores(NamedTuple):
    """The target's scores at one node, as much of them as the engine keeps."""

    next_id: int  # argmax, always there
    ids: Int64 | None  # int64 [K] token of each score, best first; None = scores cover the vocabulary in order
    scores: Float32 | None  # float32 [K] or [V]; None when no row of the batch asked for scores
    lse: float | None  # log-sum-exp over the vocabulary; None = to be computed from full scores


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The model's own log-probability of an emitted token, before penalties and temperature."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # best alternatives, best first: (token, logprob)


# choose(node, position, emitted, noise): the token at absolute `position`, given the tokens already emitted in this
# step; None where scores off by up to `noise` could make it another one (never when noise is 0)
Choose = Callable[[NodeScores, int, Sequence[int], float], int | None]


class Echo(NamedTuple):
    """Known tokens whose log-probabilities a row is asked for: those that follow its forced columns, in order."""

    tokens: Int32  # int32 [f], or [f - 1] where the last forced column is the end of what is known
    n_top: int  # alternatives to report for each


class Grammar(Protocol):
    """What one request's output must match, standing behind its committed tokens. Used from one thread.

    Its answers depend on the tokens alone, not on what was asked before: that keeps the output free of the drafts.
    """

    fault: str | None  # why it cannot go on; the request ends with it as an error

    def allowed(self, emitted: Sequence[int]) -> Bool:
        """Which tokens may follow the committed and then the `emitted` ones, bool [V]; ending ones where it may end."""

    def permits(self, emitted: Sequence[int], token: int) -> bool:
        """Whether `allowed(emitted)` holds `token`, at a small part of the cost."""

    def draft(self, tree: DraftTree, budget: int) -> DraftTree:
        """The nodes of a tree that it permits, and where only one way is left, that way: `budget` nodes at most."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Take tokens as committed."""


# ---- a step -----------------------------------------------------------------------------------


@dataclass(slots=True)  # as DraftTree: never changed, and made for every row of a step
class Row:
    """One request's part in a step: forced columns (committed tokens without KV), then a tree."""

    request_id: int
    slot: int
    past_len: int  # committed KV length of the slot; where this row's KV is written
    forced: Int32  # int32 [f]; empty for an idle row, which only fills a gap between active slots
    budget: int  # most draft nodes this row may carry
    samples: bool  # the last forced column is the end of what is known: a token is chosen there
    choose: Choose
    needs_scores: bool  # choose or logprobs read more than the argmax
    n_logprobs: int | None  # alternatives to report for each emitted token; None = no logprobs
    stop_ids: frozenset[int]  # tokens that end the walk once emitted
    room: int  # most tokens that may still be emitted
    sources: frozenset[Source] | None = None  # drafts from elsewhere are cut out of its tree
    echo: Echo | None = None  # log-probabilities of the prompt; its forced columns are scored for it
    grammar: Grammar | None = None  # prunes the row's draft and adds to it; `choose` keeps to it by itself


class Move(NamedTuple):
    """Copy the first `n` tokens' KV of slot `src` to slot `dst`, before the step's forward."""

    src: int
    dst: int
    n: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does; `rows` occupy consecutive slots, in order."""

    rows: tuple[Row, ...]
    moves: tuple[Move, ...] = ()

    def jobs(self) -> list[DraftJob]:
        """One job a row, in row order; rows that may not speculate have budget 0."""
        return [DraftJob(row.request_id, row.budget) for row in self.rows]


@dataclass(frozen=True, slots=True)
class VerifyBatch:
    """The host side of one forward pass. There is no notion of prefill and decode."""

    first_slot: int  # rows occupy slots first_slot .. first_slot + B - 1
    input_ids: Int64  # int64 [B, T]
    position_ids: Int64  # int64 [B, T]; past length + depth
    past_lens: Int64  # int64 [B]
    tree_mask: Bool  # bool [B, T, T]; column i sees column j (ancestor or itself); padding sees itself
    logit_rows: Int64  # int64 [B, R]; columns that are scored
    parents: Int32  # int32 [B, T]; parent column, -1 for column 0 and for padding
    n_forced: Int32  # int32 [B]
    n_nodes: Int32  # int32 [B]; forced columns plus tree nodes; the rest is padding
    needs_scores: bool  # some row reads more than next_ids


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What a forward pass says at the scored columns. Arrays may be reused by the next forward."""

    next_ids: Int64  # int64 [B, R]
    logits: Float32 | None = None  # float32 [B, R, V], or None when not asked for or not kept
    top_ids: Int64 | None = None  # int64 [B, R, K], best first
    top_scores: Float32 | None = None  # float32 [B, R, K]
    lse: Float32 | None = None  # float32 [B, R]

    def node(self, b: int, r: int) -> NodeScores:
        """Scores of row b at its r-th scored column."""
        next_id = int(self.next_ids[b, r])
        if self.logits is not None:
            return NodeScores(next_id, None, self.logits[b, r], None)
        if self.top_ids is not None:
            assert self.top_scores is not None
            assert self.lse is not None
            return NodeScores(next_id, self.top_ids[b, r], self.top_scores[b, r], float(self.lse[b, r]))
        return NodeScores(next_id, None, None, None)


class Verdict(NamedTuple):
    """The target's walk down one row's tree."""

    keep: Int32  # int32 [k] columns whose KV stays, in order; the forced ones first
    path: tuple[int, ...]  # tree columns accepted, in order, kept or not
    tokens: tuple[int, ...]  # emitted tokens: the accepted path and the target's own next token
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token where the row asked for them
    echoed: tuple[TokenLogprob, ...] = ()  # one a token of the row's echo


class Tried(NamedTuple):
    """A row's draft in a step, and how far the target followed it; for whoever wants to show drafts."""

    tree: DraftTree
    path: tuple[int, ...]  # nodes accepted, in order: node path[i] carries the step's i-th token


class StepOutput(NamedTuple):
    """What one step did for one request. Tokens are counted here and nowhere else."""

    request_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None  # why, when finish is "error" or "timeout"
    n_drafted: tuple[int, ...] = (0,) * len(Source)  # draft nodes verified, by Source
    n_accepted: tuple[int, ...] = (0,) * len(Source)  # draft nodes accepted, by Source
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of prompt tokens read in this step, where they were asked for
    tried: Tried | None = None  # None at an end without a step
