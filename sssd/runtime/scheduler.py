"""Who runs in a step: the queue, the slots and the counters. The only place that changes a Request.

Knows no engine and no drafter: it hands out plans and takes verdicts. Slots are kept so that

    0 ........ n_running ......... n_slots
    decoding   [the one reading]   free

so the decoding rows are a prefix of the cache and one forward serves them all. At most one request reads its prompt at
a time, in chunks that alternate with decode steps: a running request waits for one chunk at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sssd.errors import RequestError
from sssd.runtime.request import Request
from sssd.types import DraftTree, FinishReason, Move, Source, StepOutput, StepPlan, Verdict


class Scheduler:
    """First come, first served, over `n_slots` slots."""

    def __init__(self, *, n_slots: int, chunk: int) -> None:
        self._n_slots = n_slots
        self._chunk = chunk
        self._waiting: deque[Request] = deque()
        self._reading: Request | None = None
        self._decoding: list[Request] = []  # the request at index i holds slot i
        self._requests: dict[int, Request] = {}
        self._moves: list[Move] = []  # to be made before the next forward
        self._read_last = False

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError when its id is in use."""
        if request.id in self._requests:
            raise RequestError(f"request id {request.id} is in use: give each request its own")
        self._requests[request.id] = request
        self._waiting.append(request)

    def plan(self) -> StepPlan:
        """The next step: one chunk of a prompt, or every decoding row. There must be a request."""
        assert self._requests, "nothing to plan"
        if self._reading is None and self._waiting and len(self._decoding) < self._n_slots:
            self._reading = self._waiting.popleft()
            self._reading.slot = len(self._decoding)
        read = self._reading is not None and not (self._read_last and self._decoding)
        self._read_last = read
        rows = [self._reading] if read and self._reading else self._decoding
        moves, self._moves = tuple(self._moves), []
        return StepPlan(tuple(r.row(self._chunk) for r in rows), moves)

    def apply(self, plan: StepPlan, trees: Sequence[DraftTree], verdicts: Sequence[Verdict]) -> list[StepOutput]:
        """Commit the verdicts: counters, tokens, ends. Rows whose request was cancelled meanwhile are passed over."""
        outputs = []
        finished = []
        for row, tree, verdict in zip(plan.rows, trees, verdicts, strict=True):
            request = self._requests.get(row.request_id)
            if request is None:
                continue
            finish = request.commit(len(verdict.keep), verdict.tokens)
            if request is self._reading and row.samples:
                self._reading = None
                self._decoding.append(request)
            if finish:
                finished.append(request)
            outputs.append(_output(row.request_id, len(row.forced), tree, verdict, finish))
        for request in finished:  # after all commits: closing a gap copies what its neighbours have cached by then
            self._release(request)
        return outputs

    def cancel(self, request_id: int) -> bool:
        """Drop a request, queued or running; False when it is not here (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._release(request)
        return True

    def _release(self, request: Request) -> None:
        """Forget the request; close the gap that its slot leaves, from the end of the prefix."""
        del self._requests[request.id]
        slot, request.slot = request.slot, None
        if slot is None:
            self._waiting.remove(request)
            return
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
    drafted = [0] * len(Source)
    accepted = [0] * len(Source)
    for source in tree.source.tolist():
        drafted[source] += 1
    for column in verdict.path:
        accepted[int(tree.source[column - n_forced])] += 1
    return StepOutput(request_id, verdict.tokens, verdict.logprobs, finish, None, tuple(drafted), tuple(accepted))
