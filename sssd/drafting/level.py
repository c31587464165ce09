"""One draft model of a cascade: reviews what others drafted, and adds its own token. Owns its slots and its times.

The step is the target's own: forward, walk, commit. Knows neither K nor what becomes of its tokens. Nothing here has to
be exact to the bit: a draft that is off by a rounding is a worse draft at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sssd import tree, verify
from sssd.config import SamplingParams
from sssd.drafting.seats import Seat, Seats, shared
from sssd.sampling import make_choose, token_logprob
from sssd.types import (
    Choose,
    DraftOptions,
    DraftTree,
    Int32,
    NodeScores,
    Row,
    StepPlan,
    TokenLogprob,
    Verdict,
    empty_tree,
)

if TYPE_CHECKING:  # the seam: a level is handed an engine
    from sssd.engines.base import Engine

_CHUNK = 256  # columns of a piece of text that is read alone
_ALONG = 16  # unread tokens that are read beside other rows' columns
_GREEDY = SamplingParams()


class Review(NamedTuple):
    """One row's wish: what follows `text`, given a draft of it."""

    request_id: int
    text: Int32  # int32 [n] committed tokens, then guesses; n > 0
    prompt_len: int  # of the committed tokens
    draft: DraftTree  # below the text's last token
    options: DraftOptions


class Said(NamedTuple):
    """A token that the level puts next."""

    token: int
    chance: float  # its own probability
    others: tuple[tuple[int, float], ...]  # its best other tokens with their probabilities, best first


@dataclass(slots=True)
class LevelCosts:
    """What a level has done and taken so far."""

    name: str
    n_bytes: int = 0  # of its weights; 0 = unknown
    forwards: int = 0  # that reviewed
    reviews: int = 0  # rows of them
    seconds: float = 0.0  # in forwards that reviewed
    reads: int = 0  # forwards that only read text


class Level:
    """A draft model on its own engine; used from one thread. It closes the engine."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        vocab_size: int | None = None,
        n_bytes: int = 0,
        lenience: float = 1.0,
        children: int = 1,
    ) -> None:
        """`vocab_size` bounds the ids that the target knows too, where that is less than the engine's."""
        self.name = name
        self._vocab_size = engine.spec.vocab_size if vocab_size is None else vocab_size
        self.costs = LevelCosts(name, n_bytes)
        self._engine = engine
        self._lenience = lenience
        self._children = children
        self._seats = Seats(engine.n_slots)

    def review(self, reviews: Sequence[Review]) -> list[tuple[Said, ...] | None]:
        """What the level says, row by row: the draft as far as it agrees, then its own next token.

        None for a row that has no slot, or whose text is too long or holds ids that the model does not know. Mutates
        the slots. Raises EngineError.
        """
        found: list[tuple[Said, ...] | None] = [None] * len(reviews)
        busy = {review.request_id for review in reviews}
        seated: dict[int, int] = {}  # slot -> place in `reviews`
        for i, review in enumerate(reviews):
            if not self._fits(review):
                continue
            seat = self._seat(review, busy)
            if seat is not None:
                seated[seat.slot] = i
        if not seated:
            return found
        slots = range(min(seated), max(seated) + 1)
        rows = [self._row(slot, reviews[seated[slot]] if slot in seated else None) for slot in slots]
        trees = [reviews[seated[slot]].draft if slot in seated else empty_tree() for slot in slots]
        for slot, verdict in zip(slots, self._run(rows, trees), strict=True):
            if slot in seated:
                review = reviews[seated[slot]]
                self._seats[slot].tokens = np.concatenate([review.text, np.array(verdict.tokens[:-1], np.int32)])
                found[seated[slot]] = self._heard(verdict)
        self.costs.reviews += len(seated)
        return found

    def end(self, request_id: int) -> None:
        """The request is over."""
        self._seats.end(request_id)

    def forget(self) -> None:
        """The engine's cache was lost or used by others."""
        self._seats.forget()

    def check(self) -> list[str]:
        """All violations of the slots' invariants."""
        return [f"level {self.name}: {problem}" for problem in self._seats.check()]

    def close(self) -> None:
        """Close the engine; safe to call twice."""
        self._engine.close()

    def _fits(self, review: Review) -> bool:
        ids = np.concatenate([review.text, review.draft.tokens])
        return len(ids) <= self._engine.spec.max_len and int(ids.max()) < self._vocab_size

    def _heard(self, verdict: Verdict) -> tuple[Said, ...] | None:
        """What was said up to the first id that is padding; None when nothing is."""
        said = [_said(found, self._children - 1, self._vocab_size) for found in verdict.logprobs]
        known = list(takewhile(lambda one: one.token < self._vocab_size, said))
        return tuple(known) or None

    def _seat(self, review: Review, busy: set[int]) -> Seat | None:
        """The row's slot, its text cached but for the last few tokens."""
        taken = self._seats.take(review.request_id, review.text, busy)
        if taken is None:
            return None
        seat = taken.seat
        if taken.n:
            self._engine.copy_prefix(taken.src, seat.slot, taken.n)
        known = min(shared(seat.tokens, review.text), len(review.text) - 1)
        seat.tokens = review.text[:known]  # the rest of what stood there was never said
        while len(review.text) - 1 - known > _ALONG:
            known = min(known + _CHUNK, len(review.text) - 1)
            self._read(seat, review.text[:known])
        return seat

    def _read(self, seat: Seat, text: Int32) -> None:
        row = _idle(seat)
        row.forced = text[len(seat.tokens) :]
        batch = tree.pack(StepPlan((row,)), [empty_tree()])
        self._engine.forward(batch)
        self._engine.commit(batch, [np.arange(len(row.forced), dtype=np.int32)])
        seat.tokens = text
        self.costs.reads += 1

    def _row(self, slot: int, review: Review | None) -> Row:
        row = _idle(self._seats[slot])
        if review is None:
            return row
        row.forced = review.text[row.past_len :]
        row.samples = row.needs_scores = True
        row.room = len(review.draft) + 1
        row.n_logprobs = self._children if self._children > 1 else 0
        row.choose = self._chooser(review)
        return row

    def _chooser(self, review: Review) -> Choose:
        own = make_choose(
            review.options.params or _GREEDY,
            seed=review.options.seed,
            prompt=review.text[: review.prompt_len],
            output=review.text[review.prompt_len :],
            ending_ids=review.options.ending_ids,
        )
        return own if self._lenience == 1 else _Lenient(own, review.draft, self._lenience)

    def _run(self, rows: list[Row], trees: list[DraftTree]) -> list[Verdict]:
        plan = StepPlan(tuple(rows))
        batch = tree.pack(plan, trees)
        began = perf_counter()
        out = self._engine.forward(batch)
        verdicts = verify.walk_all(batch, out, plan)
        self._engine.commit(batch, [verdict.keep for verdict in verdicts])
        self.costs.seconds += perf_counter() - began
        self.costs.forwards += 1
        return verdicts


def _idle(seat: Seat) -> Row:
    """A row that only fills its slot's place in a batch."""
    return Row(
        request_id=-1 if seat.owner is None else seat.owner,
        slot=seat.slot,
        past_len=len(seat.tokens),
        forced=np.zeros(0, np.int32),
        budget=0,
        samples=False,
        choose=_never,
        needs_scores=False,
        n_logprobs=None,
        stop_ids=frozenset(),
        room=1,
    )


def _never(node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
    raise AssertionError("an idle row chooses nothing")


def _said(found: TokenLogprob, n_others: int, vocab_size: int) -> Said:
    others = tuple(
        (token, math.exp(logprob)) for token, logprob in found.top if token != found.token and token < vocab_size
    )
    return Said(found.token, math.exp(found.logprob), others[:n_others])


@dataclass(slots=True)
class _Lenient:
    """A level's own choice, unless a draft token has a probability above 1 / lenience."""

    own: Choose
    draft: DraftTree
    lenience: float

    def __call__(self, node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
        own = self.own(node, position, emitted, noise)
        drafted = self._children(emitted)
        if own in drafted:
            return own
        chances = [(token_logprob(node, token, 0).logprob, token) for token in drafted]
        best = max(chances, key=lambda found: found[0], default=(-math.inf, -1))
        return best[1] if best[0] > -math.log(self.lenience) else own

    def _children(self, emitted: Sequence[int]) -> list[int]:
        """Draft tokens below the path `emitted`, which is one of the draft's."""
        tokens, parents = self.draft.tokens.tolist(), self.draft.parents.tolist()
        at = -1
        for token in emitted:
            at = next(i for i, parent in enumerate(parents) if parent == at and tokens[i] == token)
        return [tokens[i] for i, parent in enumerate(parents) if parent == at]
