"""A cascade of draft models over a model-free drafter, as one Drafter. Owns the recursion; knows no engine.

From Cascade Speculative Drafting (arXiv 2312.11462). A draft for a reviewer (the target, or a level) is made from left
to right: the first positions by the largest level below it, the next by smaller ones, the last by the bottom drafter
(horizontal). A level never generates alone: it reviews a draft made in the same way by those below it, and adds its own
token (vertical). How many positions each gets is K's affair (`CascadeConfig.k`). Every row of a call goes along in the
same forwards. `reference_cascade` is the plain form.

What the target rejects needs no undoing: a level keeps what of its cache is still the beginning of the text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from sssd import tree
from sssd.config import CascadeConfig
from sssd.drafting.base import Drafter
from sssd.drafting.level import Level, LevelCosts, Review
from sssd.drafting.schedule import Lineup, Schedule
from sssd.drafting.sprout import Kind, Rates, Sprout
from sssd.errors import RequestError
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source, empty_tree

_log = logging.getLogger("sssd.cascade")


@dataclass(slots=True)
class _Request:
    """A request's committed text, and what was proposed for its end last."""

    tokens: Int32  # int32 [capacity]
    n: int
    prompt_len: int
    options: DraftOptions
    sprout: Sprout | None = None
    below: DraftTree = field(default_factory=empty_tree)  # the bottom drafter's own tree at the root
    fresh: bool = True  # nothing was proposed for it yet

    @property
    def text(self) -> Int32:
        return self.tokens[: self.n]

    def append(self, tokens: Int32) -> None:
        if self.n + len(tokens) > len(self.tokens):
            self.tokens = np.concatenate([self.text, np.zeros(self.n + len(tokens), np.int32)])
        self.tokens[self.n : self.n + len(tokens)] = tokens
        self.n += len(tokens)


class _Stack(NamedTuple):
    """The levels of a step, and K's rows and columns for them."""

    members: tuple[int, ...]  # levels' numbers, largest first
    k: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Step:
    """A step between its propose and its last accept."""

    lineup: Lineup
    rows: int
    began: float
    usual: bool  # no row reads its prompt: such a step's time says nothing about drafts
    ended: float = 0.0
    tokens: int = 0


class Cascade:
    """Levels, largest first, over `below`. It closes them all. Implements Drafter.

    A level whose engine fails is left out from then on, with a logged reason.
    """

    def __init__(self, levels: Sequence[Level], below: Drafter, config: CascadeConfig) -> None:
        assert config.n_levels == len(levels) > 0, "K has a row a level"
        self._levels = tuple(levels)
        self._below = below
        self._config = config
        self._rates = tuple(Rates() for _ in levels)
        self._requests: dict[int, _Request] = {}
        self._schedule = Schedule(len(levels)) if config.adaptive else None
        self._failed: set[int] = set()
        self._step: _Step | None = None

    # ---- Drafter -------------------------------------------------------------------------------

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Keep the prompt and show it to the bottom drafter; levels read it when they first draft."""
        if request_id in self._requests:
            raise RequestError(f"request id {request_id} is in use: end it first or choose another id")
        self._below.begin(request_id, prompt, options)
        self._requests[request_id] = _Request(prompt.copy(), len(prompt), len(prompt), options)

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One tree a job, in order: a chain, or with several children a tree."""
        asked = [job for job in jobs if job.budget > 0 and self._may_use_models(job.request_id)]
        lineup = self._lineup(asked)
        for job in asked:
            request = self._requests[job.request_id]
            request.sprout, request.below, request.fresh = None, empty_tree(), False
        if not lineup:
            return self._from_below(jobs)
        stack = self._stack(lineup)
        sprouts = {job.request_id: Sprout(job.request_id, self._text(job), job.budget) for job in asked}
        self._grow(list(sprouts.values()), 0, stack)
        trees = {request_id: [sprout.tree()] for request_id, sprout in sprouts.items()}
        if self._config.children > 1:
            for job, found in zip(asked, self._below.propose(asked), strict=True):
                trees[job.request_id].append(found)
                self._requests[job.request_id].below = found
        for job in asked:
            if job.ahead is None:
                self._requests[job.request_id].sprout = sprouts[job.request_id]
        rest = [job for job in jobs if job.request_id not in sprouts]
        others = dict(zip((job.request_id for job in rest), self._from_below(rest) if rest else [], strict=True))
        return [
            tree.merge(trees[job.request_id], job.budget) if job.request_id in sprouts else others[job.request_id]
            for job in jobs
        ]

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Append committed tokens (int32 [k]) and learn from them."""
        request = self._requests[request_id]
        if request.sprout is not None:
            request.sprout.judge(tokens.tolist())
        self._below.accept(request_id, tokens, request.below)
        request.sprout, request.below = None, empty_tree()
        request.append(tokens)
        if self._step is not None:
            self._step.tokens += len(tokens)
            self._step.ended = perf_counter()

    def end(self, request_id: int) -> None:
        """Drop the request; its slots keep their text for reuse."""
        assert request_id in self._requests, f"request {request_id} never began or has ended"
        del self._requests[request_id]
        for level in self._levels:
            level.end(request_id)
        self._below.end(request_id)

    def check(self) -> list[str]:
        """All violations of the levels' and the bottom drafter's invariants."""
        return [*(problem for level in self._levels for problem in level.check()), *self._below.check()]

    def close(self) -> None:
        """Close the levels' engines and the bottom drafter. Safe to call twice."""
        for level in self._levels:
            level.close()
        self._below.close()

    def costs(self) -> tuple[LevelCosts, ...]:
        """What each level has done and taken so far, largest first."""
        return tuple(level.costs for level in self._levels)

    # ---- the recursion ---------------------------------------------------------------------------

    def _grow(self, sprouts: list[Sprout], first: int, stack: _Stack) -> None:
        """Grow each draft by the stack's members from `first` on, as far as K's row and its room go."""
        upto = 0
        for i, positions in enumerate(stack.k[first]):
            upto += positions
            growing = sprouts
            while growing := [s for s in growing if s.length < min(upto, s.room)]:
                if first + i == len(stack.members):
                    growing = self._copy(growing, positions)
                else:
                    growing = self._review(growing, first + i, stack)

    def _copy(self, sprouts: list[Sprout], chunk: int) -> list[Sprout]:
        """Grow by the bottom drafter's guesses; returns those for which it had any."""
        jobs = [DraftJob(s.request_id, min(chunk, s.room - s.length), self._ahead(s)) for s in sprouts]
        found = self._below.propose(jobs)
        if self._config.children == 1:
            found = [tree.first_path(t) for t in found]
        for sprout, guesses in zip(sprouts, found, strict=True):
            sprout.hang(guesses)
        return [s for s, guesses in zip(sprouts, found, strict=True) if len(guesses)]

    def _review(self, sprouts: list[Sprout], member: int, stack: _Stack) -> list[Sprout]:
        """Grow by what a level says to a draft of those below it; returns the drafts that it spoke to."""
        level = stack.members[member]
        if level in self._failed:
            return []
        lower = [Sprout(s.request_id, s.text(), s.room - s.length - 1) for s in sprouts]
        self._grow(lower, member + 1, stack)
        reviews = [self._asked(s, draft) for s, draft in zip(sprouts, lower, strict=True)]
        try:
            answers = self._levels[level].review(reviews)
        except Exception as e:  # whatever it is, drafting goes on without the level
            self._fail(level, e)
            return []
        for sprout, said in zip(sprouts, answers, strict=True):
            if said is not None:
                sprout.say(said, self._rates[level], self._kind(sprout.request_id))
        return [s for s, said in zip(sprouts, answers, strict=True) if said is not None]

    def _asked(self, sprout: Sprout, draft: Sprout) -> Review:
        request = self._requests[sprout.request_id]
        return Review(sprout.request_id, sprout.text(), request.prompt_len, draft.tree(), request.options)

    def _may_use_models(self, request_id: int) -> bool:
        sources = self._requests[request_id].options.sources
        return sources is None or Source.MODEL in sources

    def _kind(self, request_id: int) -> Kind:
        params = self._requests[request_id].options.params
        return Kind.SAMPLED if params is not None and params.temperature > 0 else Kind.GREEDY

    def _ahead(self, sprout: Sprout) -> Int32:
        """The guesses in front of the sprout's tip: all that is not committed."""
        return sprout.text()[self._requests[sprout.request_id].n :]

    def _text(self, job: DraftJob) -> Int32:
        text = self._requests[job.request_id].text
        return text.copy() if job.ahead is None else np.concatenate([text, job.ahead])

    def _from_below(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        found = self._below.propose(jobs)
        for job, guesses in zip(jobs, found, strict=True):
            if job.ahead is None:
                self._requests[job.request_id].below = guesses
        return found

    # ---- who takes part ----------------------------------------------------------------------------

    def _stack(self, lineup: Lineup) -> _Stack:
        """K without the rows and columns of levels that are left out."""
        bottom = len(self._levels)
        members = (*lineup, bottom)
        k = tuple(tuple(self._config.k[i][j - i] for j in members if j >= i) for i in members)
        return _Stack(lineup, k)

    def _lineup(self, asked: Sequence[DraftJob]) -> Lineup:
        """The levels of this step."""
        if self._schedule is None:
            return tuple(i for i in range(len(self._levels)) if i not in self._failed) if asked else ()
        if not asked:  # a piece of a prompt: no step that could be compared
            return ()
        if self._step is not None and self._step.usual and self._step.ended:
            step = self._step
            self._schedule.observe(step.lineup, step.rows, step.tokens, step.ended - step.began)
        usual = not any(self._requests[job.request_id].fresh for job in asked)
        lineup = self._schedule.choose(len(asked)) if usual else ()
        self._step = _Step(lineup, len(asked), perf_counter(), usual)
        return lineup

    def _fail(self, level: int, error: Exception) -> None:
        self._failed.add(level)
        self._levels[level].forget()
        if self._schedule is not None:
            self._schedule.exclude(level)
        _log.warning("draft model %s failed and is left out from now on: %s", self._levels[level].name, error)
