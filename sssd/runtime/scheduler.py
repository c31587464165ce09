"""Who runs in a step: the queue, the slots and the counters. The only place that changes a Request.

Knows no engine and no drafter: it hands out plans and takes verdicts. Slots are kept so that

    0 ........ n_running ......... n_slots ......... n_slots + n_warm
    decoding   [the one reading]   |  warm: beginnings kept for reuse

so the decoding rows are a prefix of the cache and one forward serves them all. At most one request reads its prompt at
a time, in chunks that alternate with decode steps: a running request waits for one chunk at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic

from sssd.errors import RequestError
from sssd.runtime.prefixes import WarmSlots
from sssd.runtime.queue import WaitingLine
from sssd.runtime.request import Request
from sssd.types import DraftTree, FinishReason, Int32, Move, Source, StepOutput, StepPlan, Tried, Verdict

_NONE = (0,) * len(Source)


class Scheduler:
    """By priority, then first come first served, over `n_slots` slots; `n_warm` more keep finished requests' KV."""

    def __init__(
        self,
        *,
        n_slots: int,
        chunk: int,
        n_warm: int = 0,
        max_waiting: int = 1024,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._n_slots = n_slots
        self._chunk = chunk
        self._clock = clock
        self._waiting = WaitingLine(max_waiting)
        self._reading: Request | None = None
        self._decoding: list[Request] = []  # the request at index i holds slot i
        self._requests: dict[int, Request] = {}
        self._warm = WarmSlots(n_slots, n_warm)
        self._moves: list[Move] = []  # to be made before the next forward
        self._read_last = False
        self._arrivals = 0
        self.n_preempted = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def n_slots(self) -> int:
        """Requests that can run at once."""
        return self._n_slots

    @property
    def max_waiting(self) -> int:
        """Requests that may wait."""
        return self._waiting.limit

    @property
    def n_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Requests with a slot."""
        return len(self._decoding) + (self._reading is not None)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError when its id is in use, QueueFull when too many wait."""
        if request.id in self._requests:
            raise RequestError(f"request id {request.id} is in use: give each request its own")
        request.arrival = self._arrivals
        self._waiting.join(request, n_free=self._n_slots - self.n_running)
        self._arrivals += 1
        self._requests[request.id] = request

    def plan(self) -> StepPlan:
        """The next step: one chunk of a prompt, or every decoding row. There must be a request."""
        assert self._requests, "nothing to plan"
        self._admit()
        read = self._reading is not None and not (self._read_last and self._decoding)
        self._read_last = read
        rows = [self._reading] if read and self._reading else self._decoding
        moves, self._moves = tuple(self._moves), []
        return StepPlan(tuple(r.row(self._chunk) for r in rows), moves)

    def _admit(self) -> None:
        """Give the next one in line a slot, the least important running one's if need be."""
        first = self._waiting.first()
        if self._reading is not None or first is None:
            return
        if len(self._decoding) == self._n_slots:
            least = max(self._decoding, key=lambda r: (r.priority, r.arrival))
            if least.priority <= first.priority:
                return
            self._preempt(least)
        self._waiting.leave(first)
        self._reading = first
        first.slot = len(self._decoding)
        if first.admitted is None:
            first.admitted = self._clock()
        known = self._warm.longest(first.tokens[: first.n_tokens], self._standing())
        if known is not None and not first.echoes:  # scores of what is copied would be missing
            self._moves.append(Move(known.slot, first.slot, known.n))
            first.n_cached = first.n_reused = known.n

    def _standing(self) -> Iterator[tuple[int, Int32]]:
        return ((slot, r.tokens[: r.n_cached]) for slot, r in enumerate(self._decoding))

    def preempt_youngest(self) -> bool:
        """Take the slot of the least important, latest request, to be computed again later; False with one running."""
        if self.n_running < 2:
            return False
        running = [*self._decoding, *([self._reading] if self._reading else [])]
        self._preempt(max(running, key=lambda r: (r.priority, r.arrival)))
        return True

    def _preempt(self, request: Request) -> None:
        self._vacate(request)
        request.n_cached = 0
        self._waiting.rejoin(request)
        self.n_preempted += 1

    def apply(self, plan: StepPlan, trees: Sequence[DraftTree], verdicts: Sequence[Verdict]) -> list[StepOutput]:
        """Commit the verdicts: counters, tokens, ends. Rows whose request was cancelled meanwhile are passed over."""
        outputs = []
        finished = []
        for row, tree, verdict in zip(plan.rows, trees, verdicts, strict=True):
            request = self._requests.get(row.request_id)
            if request is None:
                continue
            request.n_told += len(verdict.echoed)
            finish = request.commit(len(verdict.keep), verdict.tokens)
            if request is self._reading and row.samples:
                self._reading = None
                self._decoding.append(request)
            fault = None if request.grammar is None else request.grammar.fault
            if finish or fault:
                finished.append(request)
            if fault:
                outputs.append(StepOutput(request.id, (), finish="error", error=fault))
            else:
                outputs.append(_output(row.request_id, len(row.forced), tree, verdict, finish))
        for request in finished:  # after all commits: closing a gap copies what its neighbours have cached by then
            self._release(request)
        return outputs

    def fail(self, plan: StepPlan, error: str) -> list[StepOutput]:
        """End the plan's rows with an error; nothing else is touched."""
        failed = [self._requests[row.request_id] for row in plan.rows if row.request_id in self._requests]
        for request in failed:
            request.n_cached = 0  # what stands in its slot is not to be trusted
            self._release(request)
        return [StepOutput(request.id, (), finish="error", error=error) for request in failed]

    def expire(self) -> list[StepOutput]:
        """End requests whose deadline has passed, waiting or running."""
        now = self._clock()
        late = [r for r in self._requests.values() if r.deadline is not None and r.deadline <= now]
        for request in late:
            self._release(request)
        return [StepOutput(r.id, (), finish="timeout", error="the request's deadline has passed") for r in late]

    def cancel(self, request_id: int) -> bool:
        """Drop a request, queued or running; False when it is not here (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._release(request)
        return True

    def _release(self, request: Request) -> None:
        del self._requests[request.id]
        if request.slot is None:
            self._waiting.leave(request)
        else:
            self._vacate(request)

    def _vacate(self, request: Request) -> None:
        """Take the request's slot; keep its KV warm, then close the gap from the end of the prefix."""
        assert request.slot is not None
        slot, request.slot = request.slot, None
        kept = self._warm.keep(request.tokens[: request.n_cached])
        if kept is not None:
            self._moves.append(Move(slot, kept, request.n_cached))
        if request is self._reading:
            self._reading = None
            return
        last = self._decoding.pop()
        if last is not request:
            self._decoding[slot] = last
            self._move(last, slot)
        if self._reading is not None:
            self._move(self._reading, len(self._decoding))

    def _move(self, request: Request, slot: int) -> None:
        assert request.slot is not None
        if request.n_cached:
            self._moves.append(Move(request.slot, slot, request.n_cached))
        request.slot = slot

    def check(self) -> list[str]:
        """All violations of the invariants above; empty when sound."""
        found = [f"slot {i} holds a request that says {r.slot}" for i, r in enumerate(self._decoding) if r.slot != i]
        if self._reading is not None and self._reading.slot != len(self._decoding):
            found.append(f"the reading request is in slot {self._reading.slot}, not behind the decoding ones")
        if self.n_running > self._n_slots:
            found.append(f"{self.n_running} requests run on {self._n_slots} slots")
        held = [*self._decoding, *self._waiting, *([self._reading] if self._reading else [])]
        if sorted(r.id for r in held) != sorted(self._requests):
            found.append("a request is in no list, or in two")
        found += [f"waiting request {r.id} holds a slot" for r in self._waiting if r.slot is not None]
        found += [
            f"decoding request {r.id} lacks KV of {r.n_tokens - r.n_cached} tokens, more than a step can read"
            for r in self._decoding
            if r.n_tokens - r.n_cached > self._chunk
        ]
        return found


def _output(
    request_id: int, n_forced: int, tree: DraftTree, verdict: Verdict, finish: FinishReason | None
) -> StepOutput:
    drafted = tree.source.tobytes()
    path = tuple([column - n_forced for column in verdict.path])
    accepted = bytes([drafted[node] for node in path])
    return StepOutput(
        request_id,
        verdict.tokens,
        verdict.logprobs,
        finish,
        None,
        _by_source(drafted),
        _by_source(accepted),
        verdict.echoed,
        Tried(tree, path),
    )


def _by_source(sources: bytes) -> tuple[int, ...]:
    return tuple([sources.count(source) for source in range(len(Source))]) if sources else _NONE
