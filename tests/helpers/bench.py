"""Benchmarks whose every second is known: a clock that only forwards advance, and samples made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sssd.bench.modes import MODES
from sssd.bench.overhead import PhaseCost
from sssd.bench.run import BenchConfig, measure
from sssd.bench.samples import AnswerSample, Belief, Measurements, Place, RunSample
from sssd.bench.stream import Clock
from sssd.bench.workload import Prompt, Workload
from sssd.config import SamplingParams
from sssd.drafting.base import Drafter, NullDrafter
from sssd.engines.scripted import ScriptedEngine
from sssd.text import Tokenizer
from sssd.tree import chain_tree
from sssd.types import DraftJob, DraftTree, EngineOutput, Int32, Source, VerifyBatch
from tests.helpers.scripts import HistoryDrafter
from tests.helpers.toy import text_bundle

PERIOD = 200
FORWARD = 0.5  # seconds of one


class Timer:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self.advance)

    def advance(self, seconds: float) -> None:
        assert seconds > 0
        self.seconds += seconds


class TimedEngine(ScriptedEngine):
    """Says that one more than the last token follows; each forward takes FORWARD seconds."""

    def __init__(self, timer: Timer, *, n_slots: int = 4, pace: Callable[[int], float] = lambda n: 1.0) -> None:
        super().__init__(count_up, vocab_size=257, n_slots=n_slots, max_len=256)
        self._timer = timer
        self._pace = pace  # factor on the n-th forward

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        self._timer.advance(FORWARD * self._pace(self.n_forwards))
        return super().forward(batch)


def count_up(context: Int32) -> np.ndarray:
    scores = np.zeros(257, np.float32)
    scores[(int(context[-1]) + 1) % PERIOD] = 1
    return scores


class Ahead(HistoryDrafter):
    """Knows what follows; drafts `n` tokens of it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._chain(self.history[job.request_id][-1], min(self.n, job.budget)) for job in jobs]

    def _chain(self, last: int, n: int) -> DraftTree:
        tokens = (last + 1 + np.arange(n, dtype=np.int32)) % PERIOD
        return chain_tree(tokens.astype(np.int32), np.ones(n, np.float32), np.full(n, Source.CONTEXT, np.uint8))


def workload(**sizes: int) -> Workload:
    """So many prompts of each task, every one of three tokens."""
    prompts = [
        Prompt(f"{task}/{i}", task, np.array([i, i + 1, i + 2], np.int32))
        for task, n in sizes.items()
        for i in range(n)
    ]
    return Workload(tuple(prompts), ())


def timed(
    directory: Path,
    drafters: dict[str, Callable[[], Drafter]],
    work: Workload,
    *,
    pace: Callable[[int], float] = lambda n: 1.0,
    max_tokens: int = 16,
    **options: Any,
) -> Measurements:
    """Measure modes on the timed engine; the baseline comes by itself."""
    assert set(drafters) <= set(MODES)
    config = BenchConfig(
        modes=("null", *drafters),
        params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1),
        max_draft_tokens=15,
        **options,
    )
    makers = {"null": NullDrafter} | drafters
    timer = Timer()
    return measure(
        config,
        work,
        TimedEngine(timer, n_slots=max(config.batches), pace=pace),
        Tokenizer(text_bundle(directory)),
        lambda mode: makers[mode](),
        progress=lambda stage, done, total: None,
        clock=timer.clock(),
    )


def answer(prompt: str = "p", **fields: Any) -> AnswerSample:
    """Two steps of two tokens, a second each."""
    made = AnswerSample(
        prompt=prompt,
        prompt_tokens=3,
        cached_tokens=0,
        tokens=4,
        steps=2,
        came=0.0,
        first_token=1.0,
        seconds=2.0,
        step_tokens=(2, 2),
        step_seconds=(1.0, 1.0),
        accepted_lengths={1: 2},
        drafted=2,
        accepted=2,
        token_ids=(5, 6, 7, 8),
    )
    return replace(made, **fields)


def run(mode: str, *, task: str = "t", unit: int = 0, repeat: int = 0, batch: int = 1, **fields: Any) -> RunSample:
    """One answer in two seconds, of which one decodes two tokens."""
    made = RunSample(
        mode=mode,
        place=Place(task, batch, None, repeat, unit),
        order=0,
        seconds=2.0,
        decode_tokens=2,
        decode_seconds=1.0,
        steps=2,
        widths={2: 2},
        phases=(PhaseCost("plan", 10.0), PhaseCost("forward", 900.0)),
        answers=(answer(f"{task}/{unit}"),),
    )
    return replace(made, **fields)


def measured(*runs: RunSample, beliefs: Sequence[Belief] = ()) -> Measurements:
    return Measurements("fp32", runs, tuple(beliefs))
