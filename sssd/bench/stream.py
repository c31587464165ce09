"""One stream of prompts through one lane, timed. Owns the clock's side of a measurement.

Knows no task and no other mode. Latency counts from when a prompt should have come: a loop that is late to take it in
does not make it look quick.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter, sleep

from sssd.answer import Answer, Completion
from sssd.bench.modes import Lane, WatchedEngine
from sssd.bench.overhead import PhaseCost
from sssd.bench.samples import AnswerSample, Place, RunSample
from sssd.bench.swi import level_uses, since
from sssd.bench.workload import Arrival
from sssd.config import SamplingParams
from sssd.errors import EngineError
from sssd.runtime.loop import PhaseTimes


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from: seconds, and a way to let them pass."""

    now: Callable[[], float] = perf_counter
    sleep: Callable[[float], None] = sleep


@dataclass(slots=True)
class _Open:
    """An answer that still grows, and when its tokens came (seconds since the start)."""

    arrival: Arrival
    answer: Answer
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def collect(self, now: float) -> None:
        while self.answer.pieces:
            piece = self.answer.pieces.popleft()
            if piece.token_ids:
                self.times.append(now)
                self.tokens.append(len(piece.token_ids))


def run_stream(
    lane: Lane,
    engine: WatchedEngine,
    arrivals: Sequence[Arrival],
    params: SamplingParams,
    *,
    place: Place,
    order: int,
    clock: Clock,
) -> RunSample:
    """Answer every arrival (in order of time) and return what it took. Raises EngineError when an answer fails."""
    assert not lane.llm.busy, "a lane measures one stream at a time"
    used = level_uses(lane.drafter)
    widths, phases = Counter(engine.widths), _nanoseconds(lane.llm.phase_times)
    began = clock.now()
    done = _serve(lane, arrivals, params, clock)
    seconds = clock.now() - began
    spent = {name: ns - phases[name] for name, ns in _nanoseconds(lane.llm.phase_times).items()}
    answers = tuple(_sample(opened) for opened in done)
    decode_tokens, decode_seconds = _decoding(answers, seconds, offline=place.rate is None)
    steps = spent.pop("steps")
    return RunSample(
        mode=lane.mode,
        place=place,
        order=order,
        seconds=seconds,
        decode_tokens=decode_tokens,
        decode_seconds=decode_seconds,
        steps=steps,
        widths=dict(sorted((engine.widths - widths).items())),
        phases=tuple(PhaseCost(name, ns / steps / 1000) for name, ns in spent.items()),
        answers=answers,
        levels=since(used, level_uses(lane.drafter)),
    )


def _serve(lane: Lane, arrivals: Sequence[Arrival], params: SamplingParams, clock: Clock) -> list[_Open]:
    llm = lane.llm
    began = clock.now()
    waiting, growing, opened = deque(arrivals), list[_Open](), list[_Open]()
    try:
        while waiting or growing:
            now = clock.now()
            while waiting and began + waiting[0].at <= now:
                arrival = waiting.popleft()
                growing.append(_Open(arrival, llm.submit(arrival.prompt.token_ids, params)))
                opened.append(growing[-1])
            if not growing:
                clock.sleep(began + waiting[0].at - now)
                continue
            llm.step()
            now = clock.now() - began
            for one in growing:
                one.collect(now)
            for one in [o for o in growing if o.answer.completion is not None]:
                llm.drop(one.answer)
                growing.remove(one)
    finally:
        for one in growing:
            llm.drop(one.answer)
    return opened


def _sample(opened: _Open) -> AnswerSample:
    completion = _finished(opened)
    stats, came = completion.stats, opened.arrival.at
    assert sum(opened.tokens) == stats.tokens, "tokens that came are tokens that count"
    before = [came, *opened.times[:-1]]
    return AnswerSample(
        prompt=opened.arrival.prompt.id,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        tokens=stats.tokens,
        steps=stats.steps,
        came=came,
        first_token=opened.times[0] - came,
        seconds=opened.times[-1] - came,
        step_tokens=tuple(opened.tokens),
        step_seconds=tuple(t - b for t, b in zip(opened.times, before, strict=True)),
        accepted_lengths=stats.accepted_lengths,
        drafted=sum(stats.drafted.values()),
        accepted=sum(stats.accepted.values()),
        token_ids=completion.token_ids,
    )


def _finished(opened: _Open) -> Completion:
    completion = opened.answer.completion
    assert completion is not None
    if completion.finish_reason not in ("stop", "length"):
        why = completion.error or completion.finish_reason
        raise EngineError(f"the answer to {opened.arrival.prompt.id} failed, so there is no figure: {why}")
    return completion


def _decoding(answers: Sequence[AnswerSample], seconds: float, *, offline: bool) -> tuple[int, float]:
    """(tokens, seconds) of decoding alone, as RunSample tells them."""
    if not offline:
        return (
            sum(sum(a.step_tokens[1:]) for a in answers),
            sum(a.seconds - a.first_token for a in answers),
        )
    all_read = max(a.first_token for a in answers)
    tokens = 0
    for answer in answers:
        at = 0.0
        for n, waited in zip(answer.step_tokens, answer.step_seconds, strict=True):
            at += waited
            if at > all_read + 1e-9:  # sums of differences are off by a rounding
                tokens += n
    return tokens, seconds - all_read


def _nanoseconds(times: PhaseTimes) -> dict[str, int]:
    return {f.name: getattr(times, f.name) for f in fields(times)}
