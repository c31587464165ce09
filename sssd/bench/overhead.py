"""What the loop costs by itself: real scheduler, drafter, packing and walk on an engine that computes nothing.

Owns the measurement only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from time import perf_counter_ns

import numpy as np

from sssd.config import SamplingParams
from sssd.drafting.choose import make_drafter
from sssd.engines.scripted import scripted_spec
from sssd.runtime.loop import Loop, PhaseTimes
from sssd.runtime.request import Request, make_request
from sssd.runtime.scheduler import Scheduler
from sssd.spec import EngineSpec
from sssd.types import DraftOptions, EngineOutput, Int32, VerifyBatch

_PERIOD = 50  # the text counts up and starts over, which every drafter predicts to the end


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Mean time of one phase of a step."""

    name: str
    mean_us: float


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time of a step without its forward, in microseconds."""

    rows: int
    width: int
    steps: int
    median_us: float
    p99_us: float
    tokens_per_step: float  # a row
    phases: tuple[PhaseCost, ...]


def measure(*, rows: int, width: int, steps: int, accepted: int | None = None, drafter: str = "retrieval") -> Overhead:
    """Run `steps` decode steps of `rows` requests that each carry `width` columns.

    `accepted` draft tokens of each row are right; None means all of them, which is the most work.
    """
    engine = _CountingEngine(rows, width if accepted is None else accepted)
    loop = Loop(engine, make_drafter(drafter), Scheduler(n_slots=rows, chunk=256), min_width=1)
    warm_up = 20
    for i in range(rows):
        loop.add(_request(i, width, steps + rows + warm_up + 1))
    for _ in range(2 * rows + warm_up):  # each prompt is read in a step of its own, beside decode steps
        loop.step()
    before = _snapshot(loop.times)
    own, tokens = [], 0
    for _ in range(steps):
        forward, begin = loop.times.forward, perf_counter_ns()
        outputs = loop.step()
        own.append(perf_counter_ns() - begin - (loop.times.forward - forward))
        tokens += sum(len(out.tokens) for out in outputs)
    phases = tuple(
        PhaseCost(name, (after - before[name]) / steps / 1000)
        for name, after in _snapshot(loop.times).items()
        if name not in ("steps", "forward")
    )
    median, p99 = np.percentile(np.array(own) / 1000, [50, 99])
    return Overhead(rows, width, steps, float(median), float(p99), tokens / steps / rows, phases)


def _request(request_id: int, width: int, steps: int) -> Request:
    return make_request(
        request_id,
        [i % _PERIOD for i in range(2 * _PERIOD)],
        SamplingParams(max_tokens=steps * width),
        max_len=2**31,
        vocab_size=_PERIOD,
        eos_ids=(),
        options=DraftOptions(),
        max_draft_tokens=width - 1,
    )


def _snapshot(times: PhaseTimes) -> dict[str, int]:
    return {f.name: getattr(times, f.name) for f in fields(times)}


class _CountingEngine:
    """Says that one more than a column's token follows, after `n_right` columns that two more do; keeps no KV."""

    def __init__(self, n_slots: int, n_right: int) -> None:
        self.n_slots = n_slots
        self._n_right = n_right
        self.spec: EngineSpec = scripted_spec(_PERIOD, max_len=2**31)

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        tokens = np.take_along_axis(batch.input_ids, batch.logit_rows, axis=1)
        steps = np.where(np.arange(tokens.shape[1]) < self._n_right, 1, 2)
        return EngineOutput((tokens + steps) % _PERIOD)

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        pass

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        pass

    def close(self) -> None:
        pass
