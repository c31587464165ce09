"""Many requests on few slots: order, reuse, preemption, deadlines, failures, threads. Over scripted engines."""

from __future__ import annotations

import queue
import threading
import time

import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.drafting.base import NullDrafter
from sssd.engines.scripted import ScriptedEngine
from sssd.errors import EngineError, OutOfMemory, QueueFull, RequestError
from sssd.runtime.loop import Loop
from sssd.runtime.prefixes import LEAST, WarmSlots, common_prefix
from sssd.runtime.scheduler import Scheduler
from sssd.runtime.worker import Worker
from sssd.types import StepOutput, VerifyBatch
from tests.helpers.scripts import VOCAB, GarbageTrees, random_script, request, run, tokens_of


def engine(**options) -> ScriptedEngine:
    return ScriptedEngine(random_script(), vocab_size=VOCAB, **({"n_slots": 8} | options))


def loop_of(drafter=None, scripted=None, **options) -> Loop:
    scheduler = Scheduler(**({"n_slots": 3, "chunk": 16} | options))
    return Loop(scripted or engine(), drafter or NullDrafter(), scheduler, 1)


def alone(prompt: list[int], params: SamplingParams) -> list[int]:
    return tokens_of(run(loop_of(), [request(0, prompt, params)]))[0]


def first_tokens(loop: Loop) -> list[int]:
    """Request ids in the order of their first tokens."""
    seen: list[int] = []
    while len(loop.scheduler):
        for out in loop.step():
            if out.tokens and out.request_id not in seen:
                seen.append(out.request_id)
        assert loop.scheduler.check() == []
    return seen


def test_requests_get_slots_by_priority_then_by_arrival() -> None:
    loop = loop_of(n_slots=1)
    for i, priority in enumerate((1, 1, 0, 2, 0)):
        loop.add(request(i, [1, 2], SamplingParams(max_tokens=3), priority=priority))
    assert first_tokens(loop) == [2, 4, 0, 1, 3]


def test_an_important_request_preempts_and_nothing_is_lost() -> None:
    params = SamplingParams(max_tokens=30, temperature=0.8, seed=5)
    plain = alone([1, 2, 3], params)
    loop = loop_of(GarbageTrees(0), n_slots=2)
    got: dict[int, list[int]] = {i: [] for i in range(3)}
    for i in range(2):
        loop.add(request(i, [1, 2, 3], params, priority=5))
    for _ in range(4):
        for out in loop.step():
            got[out.request_id] += out.tokens
    loop.add(request(2, [1, 2, 3], params))
    while len(loop.scheduler):
        for out in loop.step():
            got[out.request_id] += out.tokens
        assert loop.scheduler.check() == []
    assert loop.scheduler.n_preempted == 1
    assert got == {0: plain, 1: plain, 2: plain}


def test_equals_do_not_preempt_each_other() -> None:
    loop = loop_of(n_slots=1)
    for i in range(4):
        loop.add(request(i, [1, 2], SamplingParams(max_tokens=6)))
    assert first_tokens(loop) == [0, 1, 2, 3]
    assert loop.scheduler.n_preempted == 0


def test_the_queue_is_bounded_and_says_so() -> None:
    loop = loop_of(n_slots=1, max_waiting=2)
    loop.add(request(0, [1], SamplingParams(max_tokens=5)))
    loop.step()
    for i in (1, 2):
        loop.add(request(i, [1], SamplingParams(max_tokens=5)))
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        loop.add(request(3, [1], SamplingParams(max_tokens=5)))
    assert first_tokens(loop) == [0, 1, 2]


@pytest.mark.parametrize("n_warm", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_copied_beginnings_change_nothing(seed: int, n_warm: int) -> None:
    rng = np.random.default_rng(seed)
    stem = rng.integers(0, VOCAB, 60).tolist()
    prompts = [stem[: int(rng.integers(1, 60))] + rng.integers(0, VOCAB, 3).tolist() for _ in range(14)]
    params = SamplingParams(max_tokens=9, temperature=0.7, seed=1)
    loop = loop_of(GarbageTrees(seed), n_slots=3, n_warm=n_warm)
    requests = [request(i, p, params) for i, p in enumerate(prompts)]
    got = tokens_of(run(loop, requests))
    assert got == {i: alone(p, params) for i, p in enumerate(prompts)}
    assert any(r.n_reused for r in requests)


def test_a_conversation_is_continued_from_its_own_warm_slot() -> None:
    params = SamplingParams(max_tokens=10)
    first = request(0, list(range(20)), params)
    scripted = engine()
    loop = loop_of(scripted=scripted, n_slots=1, n_warm=1, chunk=8)
    answer = tokens_of(run(loop, [first]))[0]
    before = scripted.n_forwards
    second = request(1, [*range(20), *answer, 7, 7], params)
    run(loop, [second])
    assert second.n_reused == 29, "all that had KV: the last token of an answer never has"
    assert scripted.n_forwards == before + 10, "three tokens are read in the first step"


def test_a_request_waits_rather_than_fails_when_all_slots_are_taken() -> None:
    params = SamplingParams(max_tokens=8)
    requests = [request(i, [i, i], params) for i in range(12)]
    got = tokens_of(run(loop_of(GarbageTrees(3), n_slots=2, n_warm=2), requests))
    assert got == {i: alone([i, i], params) for i in range(12)}


def test_a_deadline_ends_a_request_waiting_or_running_and_no_other() -> None:
    now = [0.0]
    loop = loop_of(n_slots=1, clock=lambda: now[0])
    params = SamplingParams(max_tokens=20)
    for i, deadline in enumerate((5.0, None, 7.0)):
        loop.add(request(i, [1, 2], params, deadline=deadline))
    outputs: list[StepOutput] = []
    while len(loop.scheduler):
        outputs += loop.step()
        now[0] += 1.0
        assert loop.scheduler.check() == []
    ends = {o.request_id: (o.finish, o.error) for o in outputs if o.finish}
    assert ends[0] == ends[2] == ("timeout", "the request's deadline has passed")
    assert ends[1] == ("length", None)
    assert [t for o in outputs if o.request_id == 1 for t in o.tokens] == alone([1, 2], params)


def test_a_failed_forward_ends_its_rows_and_the_loop_goes_on() -> None:
    params = SamplingParams(max_tokens=6)
    loop = loop_of(GarbageTrees(1), engine(fails_at=frozenset({4})), n_slots=2, n_warm=2)
    outputs = run(loop, [request(i, [3, 4, i], params) for i in range(5)])
    failed = [i for i, outs in outputs.items() if outs[-1].finish == "error"]
    assert 1 <= len(failed) <= 2
    assert all("scripted failure" in (outputs[i][-1].error or "") for i in failed)
    for i in set(range(5)) - set(failed):
        assert tokens_of(outputs)[i] == alone([3, 4, i], params)
    assert loop.drafter.history == {}
    assert loop.n_engine_failures == 1


class Cramped(ScriptedEngine):
    """Holds a limited number of rows of a limited length together, as a cache that cannot grow."""

    def forward(self, batch: VerifyBatch):
        if int(batch.past_lens.sum()) > 60:
            raise OutOfMemory("the cache cannot grow")
        return super().forward(batch)


def test_when_memory_is_short_requests_give_way_and_are_computed_again() -> None:
    params = SamplingParams(max_tokens=30)
    cramped = Cramped(random_script(), vocab_size=VOCAB, n_slots=8)
    loop = loop_of(GarbageTrees(2), cramped, n_slots=3)
    got = tokens_of(run(loop, [request(i, [5, i], params) for i in range(4)]))
    assert got == {i: alone([5, i], params) for i in range(4)}
    assert loop.scheduler.n_preempted > 0
    assert loop.n_engine_failures == 0


def test_a_single_request_that_does_not_fit_is_an_error() -> None:
    loop = loop_of(scripted=Cramped(random_script(), vocab_size=VOCAB, n_slots=8))
    outputs = run(loop, [request(0, [1] * 50, SamplingParams(max_tokens=40))])[0]
    assert outputs[-1].finish == "error"
    assert "cannot grow" in (outputs[-1].error or "")


class Broken(GarbageTrees):
    def propose(self, jobs):
        raise OSError("the datastore is gone")


def test_a_drafter_that_fails_costs_its_drafts_only(caplog: pytest.LogCaptureFixture) -> None:
    params = SamplingParams(max_tokens=5)
    loop = loop_of(Broken(0))
    assert tokens_of(run(loop, [request(0, [1, 2], params)]))[0] == alone([1, 2], params)
    assert loop.n_drafter_failures == 5
    assert "the datastore is gone" in caplog.text


def test_common_prefix_counts_from_the_start() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = (rng.integers(0, 2, int(rng.integers(0, 9))).astype(np.int32) for _ in range(2))
        slow = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert common_prefix(a, b) == slow


def test_warm_slots_give_up_the_least_recently_used_and_keep_no_text_twice() -> None:
    warm = WarmSlots(4, 2)
    texts = [np.full(LEAST + i, i, np.int32) for i in range(3)]
    assert warm.keep(texts[0][: LEAST - 1]) is None, "too short to be worth it"
    slots = [warm.keep(texts[0]), warm.keep(texts[1])]
    assert sorted(slots) == [4, 5]
    assert warm.keep(texts[1][:LEAST]) is None, "a beginning of what is kept"
    assert warm.longest(np.append(texts[0], 9).astype(np.int32), []) == (slots[0], LEAST)
    assert warm.keep(texts[2]) == slots[1], "the other one was used later"
    assert warm.keep(np.append(texts[0], [1, 2]).astype(np.int32)) == slots[0], "a longer text replaces its beginning"
    assert len(warm) == 2


def deliveries(worker: Worker, requests) -> dict[int, list[StepOutput]]:
    got: dict[int, list[StepOutput]] = {r.id: [] for r in requests}
    over: queue.SimpleQueue[int] = queue.SimpleQueue()

    def deliver(out: StepOutput) -> None:
        got[out.request_id].append(out)
        if out.finish:
            over.put(out.request_id)

    threads = [threading.Thread(target=worker.submit, args=(r, deliver)) for r in requests]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    for _ in requests:
        over.get(timeout=20)
    return got


def test_requests_from_many_threads_get_the_answers_they_get_alone() -> None:
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=3)
    worker = Worker(loop_of(GarbageTrees(1)))
    try:
        got = deliveries(worker, [request(i, [i, 3, i], params) for i in range(20)])
    finally:
        worker.close()
    assert tokens_of(got) == {i: alone([i, 3, i], params) for i in range(20)}


def test_a_reader_that_fails_is_cancelled_and_the_others_go_on() -> None:
    worker = Worker(loop_of(GarbageTrees(1)))

    def faulty(out: StepOutput) -> None:
        raise RuntimeError("gone")

    try:
        worker.submit(request(99, [1], SamplingParams(max_tokens=200)), faulty)
        got = deliveries(worker, [request(0, [1, 2], SamplingParams(max_tokens=5))])
        assert tokens_of(got)[0] == alone([1, 2], SamplingParams(max_tokens=5))
        worker.submit(request(99, [1], SamplingParams(max_tokens=2)), lambda out: None).result(10)
    finally:
        worker.close()


def test_the_worker_refuses_with_the_loops_own_error_and_sleeps_when_idle() -> None:
    loop = loop_of()
    worker = Worker(loop)
    try:
        worker.submit(request(0, [1], SamplingParams(max_tokens=200)), lambda out: None)
        with pytest.raises(RequestError, match="in use"):
            worker.submit(request(0, [1], SamplingParams(max_tokens=2)), lambda out: None).result(10)
        worker.cancel(0)
        deadline = time.monotonic() + 10
        while len(loop.scheduler) and time.monotonic() < deadline:
            time.sleep(0.01)
        steps = loop.times.steps
        time.sleep(0.1)
        assert loop.times.steps == steps
    finally:
        worker.close()
    with pytest.raises(EngineError, match="closed"):
        worker.submit(request(1, [1], SamplingParams(max_tokens=2)), lambda out: None).result(10)


def test_closing_ends_what_runs_with_an_error() -> None:
    ends: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
    worker = Worker(loop_of())
    worker.submit(request(0, [1], SamplingParams(max_tokens=250)), lambda out: ends.put(out) if out.finish else None)
    worker.close()
    worker.close()
    last = ends.get(timeout=5)
    assert (last.finish, last.error) == ("error", "the server is shutting down") or last.finish == "length"
