"""From samples to figures: rates, ratios against the baseline and their spread. Pure; owns the definitions.

    tokens_per_s        all tokens / seconds of the runs, reading included
    speedup             seconds of the baseline / seconds of the mode, summed over the same prompts. Offline the seconds
                        of a batch count, reading and decoding; under load those of a request, waiting included
    decode_speedup      the same for decoding alone: tokens a second after every prompt of the batch was read
    speedup_low, _high  95 % bootstrap interval over prompts (offline: over batches)
    task "all"          offline: the geometric mean of the tasks' speed-ups, with sums of everything else

Knows no engine, and not what a figure should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.bench.modes import BASELINE
from sssd.bench.overhead import PhaseCost
from sssd.bench.run import ALL_TASKS
from sssd.bench.samples import Measurements, RunSample
from sssd.bench.swi import LevelUse, Swi, swi, total
from sssd.drafting.confidence import ReliabilityBin

Float64 = npt.NDArray[np.float64]

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of a latency, in milliseconds."""

    p50: float
    p99: float


class Interval(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Record:
    """The figures of one mode on one task, at one batch size or rate; `samples` is what they were made of."""

    mode: str
    weights: str
    batch: int  # slots
    task: str
    rate: float | None  # arrivals a second; None = offline
    prompts: int
    tokens: int
    seconds: float
    tokens_per_s: float
    decode_tokens_per_s: float
    tokens_per_step: float  # of an answer
    speedup: float
    speedup_low: float
    speedup_high: float
    decode_speedup: float
    first_token_ms: Quantiles  # since the prompt came
    inter_token_ms: Quantiles  # tokens of one step share the time since the step before
    latency_ms: Quantiles  # of whole answers
    drafted: int
    accepted: int
    differing: int  # answers whose tokens are not the baseline's
    accepted_lengths: dict[int, int]  # accepted draft nodes in a step -> steps
    widths: dict[int, int]  # columns of a forward -> forwards
    phases: tuple[PhaseCost, ...]  # mean of each phase of a step
    reliability: tuple[ReliabilityBin, ...]
    levels: tuple[LevelUse, ...]  # the drafter's models
    swi: Swi  # standardized walltime improvement, reading left out
    samples: tuple[RunSample, ...]  # empty for the geometric means, which hold the tasks' own


class _Key(NamedTuple):
    batch: int
    rate: float | None
    task: str
    mode: str


def summarize(measured: Measurements) -> tuple[Record, ...]:
    """A record for every mode of every group, the tasks of a batch size followed by their geometric mean."""
    by_key: dict[_Key, list[RunSample]] = {}
    for run in measured.runs:
        key = _Key(run.place.batch, run.place.rate, run.place.task, run.mode)
        by_key.setdefault(key, []).append(run)
    records: list[Record] = []
    for batch, rate in dict.fromkeys((k.batch, k.rate) for k in by_key):
        keys = [k for k in by_key if (k.batch, k.rate) == (batch, rate)]
        records += [
            _record(measured, k, {k.task: by_key[k]}, {k.task: by_key[k._replace(mode=BASELINE)]}) for k in keys
        ]
        if len({k.task for k in keys}) > 1:
            for mode in dict.fromkeys(k.mode for k in keys):
                runs = {k.task: by_key[k] for k in keys if k.mode == mode}
                base = {k.task: by_key[k] for k in keys if k.mode == BASELINE}
                records.append(_record(measured, _Key(batch, rate, ALL_TASKS, mode), runs, base))
    return tuple(records)


def _record(
    measured: Measurements, key: _Key, by_task: dict[str, list[RunSample]], base_by_task: dict[str, list[RunSample]]
) -> Record:
    runs = [run for of_task in by_task.values() for run in of_task]
    base = [run for of_task in base_by_task.values() for run in of_task]
    answers = [a for run in runs for a in run.answers]
    tokens, seconds = sum(r.tokens for r in runs), sum(r.seconds for r in runs)
    speedup = speedup_of([paired_seconds(base_by_task[task], by_task[task]) for task in by_task])
    return Record(
        mode=key.mode,
        weights=measured.weights,
        batch=key.batch,
        task=key.task,
        rate=key.rate,
        prompts=len({a.prompt for a in answers}),
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        decode_tokens_per_s=_decode_rate(runs),
        tokens_per_step=tokens / sum(a.steps for a in answers),
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        decode_speedup=_geometric_mean([_decode_ratio(base_by_task[task], by_task[task]) for task in by_task]),
        first_token_ms=_quantiles([a.first_token for a in answers]),
        inter_token_ms=_quantiles(inter_token_seconds(runs)),
        latency_ms=_quantiles([a.seconds for a in answers]),
        drafted=sum(a.drafted for a in answers),
        accepted=sum(a.accepted for a in answers),
        differing=sum(differing(base, runs).values()),
        accepted_lengths=_added(a.accepted_lengths for a in answers),
        widths=_added(r.widths for r in runs),
        phases=_mean_phases(runs),
        reliability=_bins(measured, key, list(by_task)),
        levels=(levels := total([run.levels for run in runs])),
        swi=swi(
            tokens,
            sum(a.steps for a in answers),
            levels,
            target_bytes=measured.target_bytes,
            target_seconds=1 / rate if (rate := _decode_rate(base)) else None,
        ),
        samples=tuple(runs) if len(by_task) == 1 else (),
    )


# ---- ratios -------------------------------------------------------------------------------------


def paired_seconds(base: Sequence[RunSample], runs: Sequence[RunSample]) -> Float64:
    """Seconds of the baseline and of a mode for the same work, float64 [n, 2]; repeats are summed."""
    before, after = _seconds_by_item(base), _seconds_by_item(runs)
    assert before.keys() == after.keys(), "modes did the same work"
    return np.array([(before[item], after[item]) for item in before])


def _seconds_by_item(runs: Sequence[RunSample]) -> dict[tuple[int, int], float]:
    """Offline a batch is an item, by its number; under load a request is, by its place in the stream."""
    found: dict[tuple[int, int], float] = {}
    for run in runs:
        parts = [run.seconds] if run.place.rate is None else [a.seconds for a in run.answers]
        for i, seconds in enumerate(parts):
            item = (run.place.unit, i)
            found[item] = found.get(item, 0.0) + seconds
    return found


def speedup_of(tasks: Sequence[Float64]) -> Interval:
    """Geometric mean over tasks (each float64 [n, 2]: baseline, mode) of the ratios of their sums.

    The interval comes from resampling the items of every task, with a fixed seed: the same samples always give the
    same interval. One item has no spread.
    """
    random = np.random.default_rng(0)
    value = _geometric_mean([float(pairs[:, 0].sum() / pairs[:, 1].sum()) for pairs in tasks])
    logs = np.zeros(_RESAMPLES)
    for pairs in tasks:
        sums = pairs[random.integers(0, len(pairs), (_RESAMPLES, len(pairs)))].sum(axis=1)
        logs += np.log(sums[:, 0] / sums[:, 1]) / len(tasks)
    low, high = np.exp(np.percentile(logs, [2.5, 97.5]))
    return Interval(value, float(low), float(high))


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if all(v > 0 for v in values) else 0.0


def _decode_rate(runs: Sequence[RunSample]) -> float:
    """Tokens a second; 0 where answers end with their first tokens."""
    seconds = sum(r.decode_seconds for r in runs)
    return sum(r.decode_tokens for r in runs) / seconds if seconds > 0 else 0.0


def _decode_ratio(base: Sequence[RunSample], runs: Sequence[RunSample]) -> float:
    before = _decode_rate(base)
    return _decode_rate(runs) / before if before else 0.0


def differing(base: Sequence[RunSample], runs: Sequence[RunSample]) -> Counter[str]:
    """Answers whose tokens are not the baseline's, by prompt."""
    expected = {run.place: run for run in base}
    return Counter(
        answer.prompt
        for run in runs
        for reference, answer in zip(expected[run.place].answers, run.answers, strict=True)
        if answer.token_ids != reference.token_ids
    )


# ---- distributions ------------------------------------------------------------------------------


def inter_token_seconds(runs: Iterable[RunSample]) -> list[float]:
    """Time a token waited for since the one before it in its answer; tokens of one step share theirs."""
    return [
        waited / n
        for run in runs
        for answer in run.answers
        for n, waited in zip(answer.step_tokens[1:], answer.step_seconds[1:], strict=True)
        for _ in range(n)
    ]


def _quantiles(seconds: Sequence[float]) -> Quantiles:
    """Zeros where there is nothing to wait for: answers of one step have no time between tokens."""
    if not seconds:
        return Quantiles(0.0, 0.0)
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99])
    return Quantiles(float(p50), float(p99))


def _added(histograms: Iterable[dict[int, int]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(sorted(total.items()))


def _mean_phases(runs: Sequence[RunSample]) -> tuple[PhaseCost, ...]:
    steps = sum(r.steps for r in runs)
    sums: dict[str, float] = {}
    for run in runs:
        for phase in run.phases:
            sums[phase.name] = sums.get(phase.name, 0.0) + phase.mean_us * run.steps
    return tuple(PhaseCost(name, total / steps) for name, total in sums.items())


def _bins(measured: Measurements, key: _Key, tasks: Sequence[str]) -> tuple[ReliabilityBin, ...]:
    return merge_bins(
        b
        for belief in measured.beliefs
        if (belief.mode, belief.batch, belief.rate) == (key.mode, key.batch, key.rate) and belief.task in tasks
        for b in belief.bins
    )


def merge_bins(bins: Iterable[ReliabilityBin]) -> tuple[ReliabilityBin, ...]:
    """Bins of equal bounds joined, means weighted by their nodes."""
    joined: dict[tuple[float, float], ReliabilityBin] = {}
    for b in bins:
        a = joined.get((b.low, b.high))
        if a is not None:
            n = a.n_nodes + b.n_nodes
            predicted = (a.predicted * a.n_nodes + b.predicted * b.n_nodes) / n
            observed = (a.observed * a.n_nodes + b.observed * b.n_nodes) / n
            b = ReliabilityBin(b.low, b.high, n, predicted, observed)
        joined[b.low, b.high] = b
    return tuple(joined[bounds] for bounds in sorted(joined))
