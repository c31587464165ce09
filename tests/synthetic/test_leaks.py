"""Nothing is left behind when thousands of requests have come and gone."""

from __future__ import annotations

import tracemalloc

import numpy as np

from sssd.config import SamplingParams
from sssd.engines.scripted import ScriptedEngine
from sssd.runtime.loop import Loop
from sssd.runtime.scheduler import Scheduler
from tests.helpers.scripts import VOCAB, GarbageTrees, random_script, request


def test_two_thousand_requests_leave_nothing_behind() -> None:
    rng = np.random.default_rng(0)
    engine = ScriptedEngine(random_script(), vocab_size=VOCAB, n_slots=8)
    loop = Loop(engine, GarbageTrees(0), Scheduler(n_slots=4, chunk=16, n_warm=4, max_waiting=3000), 1)
    sizes = []
    tracemalloc.start()
    for begin in range(0, 2000, 100):
        for i in range(begin, begin + 100):
            prompt = rng.integers(0, VOCAB, int(rng.integers(1, 30))).tolist()
            loop.add(request(i, prompt, SamplingParams(max_tokens=int(rng.integers(1, 5)))))
        victims = rng.choice(np.arange(begin, begin + 100), 20, replace=False).tolist()
        while len(loop.scheduler):
            loop.step()
            if victims:
                loop.cancel(victims.pop())
        assert loop.scheduler.check() == []
        assert loop.drafter.history == {}
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert (loop.scheduler.n_waiting, loop.scheduler.n_running) == (0, 0)
    assert sizes[-1] < sizes[4] * 1.1 + 100_000, "memory grows"
