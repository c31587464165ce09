"""The step. Owns the order of its calls and the time each takes; decides nothing.

    1 plan      scheduler.plan            counters only
    2 moves     engine.copy_prefix        slots stay a prefix, known beginnings are copied
    3 trees     drafter.propose           one call for the batch; grammars prune and add, the budget trims
    4 batch     tree.pack
    5 out       engine.forward
    6 verdicts  verify.walk_all           pure
    7 commit    engine.commit             kept KV stands contiguous
    8 outputs   scheduler.apply, then drafter.accept / end

Everything flows downwards; nobody calls back up. A failed forward ends its own rows, a failed drafter costs its drafts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from sssd import tree, verify
from sssd.errors import EngineError, OutOfMemory
from sssd.runtime.budget import Budget, FixedBudget
from sssd.runtime.request import Request
from sssd.runtime.scheduler import Scheduler
from sssd.types import DraftTree, StepOutput, StepPlan, empty_tree

if TYPE_CHECKING:  # the two seams: the runtime is handed an engine and a drafter, it never picks one
    from sssd.drafting.base import Drafter
    from sssd.engines.base import Engine

_log = logging.getLogger("sssd.loop")
PHASES = ("plan", "propose", "pack", "forward", "verify", "commit", "apply")


@dataclass(slots=True)
class PhaseTimes:
    """Nanoseconds spent in each phase since the loop was made."""

    steps: int = 0
    plan: int = 0
    propose: int = 0
    pack: int = 0
    forward: int = 0
    verify: int = 0
    commit: int = 0
    apply: int = 0


@dataclass(slots=True)
class Loop:
    """Runs requests on one engine with one drafter. Used from one thread."""

    engine: Engine
    drafter: Drafter
    scheduler: Scheduler
    min_width: int  # no forward is narrower
    branch_noise: float | None = 0.0  # EngineSpec's, or 0 where bits may differ; None makes every tree a chain
    budget: Budget = field(default_factory=FixedBudget)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    n_engine_failures: int = 0
    n_drafter_failures: int = 0

    def add(self, request: Request) -> None:
        """Queue a request and let the drafter see its prompt. Raises RequestError."""
        self.scheduler.add(request)
        try:
            self.drafter.begin(request.id, request.tokens[: request.prompt_len], request.options)
        except BaseException:
            self.scheduler.cancel(request.id)
            raise

    def cancel(self, request_id: int) -> None:
        """Drop a request between steps; others do not notice. One that is over already is no error."""
        if self.scheduler.cancel(request_id):
            self.drafter.end(request_id)

    def step(self) -> list[StepOutput]:
        """One step; there must be a request. What failed or came too late ends with an error in its output."""
        outputs = self.scheduler.expire()
        self._end(outputs)
        if len(self.scheduler):
            began = perf_counter_ns()
            plan = self.scheduler.plan()
            try:
                outputs += self._run(plan, began)
            except EngineError as e:
                outputs += self._failed(plan, e)
        return outputs

    def _run(self, plan: StepPlan, began: int) -> list[StepOutput]:
        clock = [began]

        def lap() -> None:
            clock.append(perf_counter_ns())

        for move in plan.moves:
            self.engine.copy_prefix(move.src, move.dst, move.n)
        lap()
        trees = self.budget.trim(plan, self._shape(plan, self._propose(plan)))
        lap()
        batch = tree.pack(plan, trees, min_width=self.min_width, score_branches=bool(self.branch_noise))
        lap()
        out = self.engine.forward(batch)
        lap()
        verdicts = verify.walk_all(batch, out, plan, branch_noise=self.branch_noise or 0.0)
        lap()
        self.engine.commit(batch, [v.keep for v in verdicts])
        lap()
        outputs = self.scheduler.apply(plan, trees, verdicts)
        self._tell_drafter(plan, trees, outputs)
        lap()
        self._count(clock)
        forward = clock[4] - clock[3]
        own = clock[-1] - clock[0] - forward
        self.budget.observe(batch, verdicts, forward_seconds=forward / 1e9, own_seconds=own / 1e9)
        return outputs

    def _propose(self, plan: StepPlan) -> list[DraftTree]:
        try:
            trees = self.drafter.propose(plan.jobs())
        except Exception as e:  # whatever it is, decoding goes on without drafts
            self.n_drafter_failures += 1
            n = self.n_drafter_failures
            if n & (n - 1) == 0:  # the first, and then ever more rarely: a step is no reason for a page of log
                _log.warning("the drafter failed (%d times by now); this step decodes plainly", n, exc_info=e)
            return [empty_tree() for _ in plan.rows]
        if any(row.sources is not None for row in plan.rows):
            trees = [
                t if row.sources is None else tree.from_sources(t, row.sources)
                for row, t in zip(plan.rows, trees, strict=True)
            ]
        return trees

    def _shape(self, plan: StepPlan, trees: list[DraftTree]) -> list[DraftTree]:
        """The trees as they may be verified: within their rows' grammars, and chains where branches are not safe."""
        trees = [
            row.grammar.draft(t, row.budget) if row.grammar is not None and row.budget else t
            for row, t in zip(plan.rows, trees, strict=True)
        ]
        return trees if self.branch_noise is not None else [tree.first_path(t) for t in trees]

    def _failed(self, plan: StepPlan, error: EngineError) -> list[StepOutput]:
        """Give way where memory is short, else end the rows that were in the forward."""
        if isinstance(error, OutOfMemory) and self.scheduler.preempt_youngest():
            _log.warning("%s; one request was put back to be computed again later", error)
            return []
        self.n_engine_failures += 1
        _log.error("a forward failed and its %d requests with it: %s", len(plan.rows), error)
        outputs = self.scheduler.fail(plan, str(error))
        self._end(outputs)
        return outputs

    def _tell_drafter(self, plan: StepPlan, trees: list[DraftTree], outputs: list[StepOutput]) -> None:
        verified = {row.request_id: t for row, t in zip(plan.rows, trees, strict=True)}
        for out in outputs:
            if out.tokens:
                self.drafter.accept(out.request_id, np.array(out.tokens, np.int32), verified[out.request_id])
        self._end(outputs)

    def _end(self, outputs: list[StepOutput]) -> None:
        for out in outputs:
            if out.finish:
                self.drafter.end(out.request_id)

    def _count(self, clock: list[int]) -> None:
        t = self.times
        t.steps += 1
        for name, (begin, end) in zip(PHASES, pairwise(clock), strict=True):
            setattr(t, name, getattr(t, name) + end - begin)
