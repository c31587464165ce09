"""What a benchmark has to say against itself. Pure: figures and facts in, sentences out.

Every sentence names what was seen, and what helps. Knows no engine and no terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from sssd.bench.machine import Machine
from sssd.bench.modes import BASELINE, FASTEST_BASELINE
from sssd.bench.run import ALL_TASKS
from sssd.bench.samples import Measurements, RunSample
from sssd.bench.summary import Record, differing
from sssd.bench.workload import Workload

FEW_PROMPTS = 5
WIDE_SPREAD = 0.15  # of a speed-up's interval, to either side
DRIFT = 0.1  # of the baseline's speed within a group
COLD = 1.25  # the first run against the median of its group
BUSY = 0.5  # load average a core, before the start


def warnings(
    machine: Machine, workload: Workload, measured: Measurements, records: Sequence[Record]
) -> tuple[str, ...]:
    """Everything that makes the figures less than they seem; empty when nothing does."""
    return (
        *_about_the_machine(machine),
        *_about_the_prompts(workload),
        *_about_the_runs(measured),
        *_about_the_answers(measured),
        *_about_the_figures(records),
    )


def _about_the_machine(machine: Machine) -> Iterator[str]:
    if machine.load is not None and machine.load > BUSY * machine.cores:
        yield (
            f"the machine was busy before the start (load {machine.load:.1f} on {machine.cores} cores): "
            "stop what else runs, and measure again"
        )


def _about_the_prompts(workload: Workload) -> Iterator[str]:
    for task in dict.fromkeys(p.task for p in workload.passed_over):
        those = [p for p in workload.passed_over if p.task == task]
        named = ", ".join(p.id for p in those[:3]) + (", ..." if len(those) > 3 else "")
        yield f"{task}: prompts passed over: {len(those)} ({named}); of {those[0].id}: {those[0].reason}"


def _about_the_runs(measured: Measurements) -> Iterator[str]:
    sizes = Counter((r.place.batch, r.place.task) for r in measured.runs if _is_short(r) and r.mode == BASELINE)
    for batch, task in sizes:
        yield f"{task}: a batch holds fewer than {batch} prompts: make --limit a multiple of --batch"
    by_group: dict[tuple[str, int], list[RunSample]] = {}
    for run in measured.runs:
        if run.mode == BASELINE and run.place.rate is None and run.decode_tokens:
            by_group.setdefault((run.place.task, run.place.batch), []).append(run)
    for (task, batch), runs in by_group.items():
        yield from _about_the_baseline(f"{task}, batch {batch}", [r.decode_seconds / r.decode_tokens for r in runs])


def _is_short(run: RunSample) -> bool:
    return run.place.rate is None and len(run.answers) < run.place.batch


def _about_the_baseline(where: str, paces: Sequence[float]) -> Iterator[str]:
    """`paces` are the baseline's seconds a token, in the order of its runs."""
    if len(paces) < 4:
        return
    cold = paces[0] / float(np.median(paces[1:]))
    if cold > COLD:
        yield f"{where}: the first run took {cold:.2f} times as long a token as the others: use --repeat 2 or more"
    half = (len(paces) + 1) // 2
    drift = float(np.median(paces[half:]) / np.median(paces[:half])) - 1
    if abs(drift) > DRIFT:
        yield (
            f"{where}: the baseline's time a token changed by {drift:+.0%} from the first half of its runs to the "
            "second: ratios hold, tokens a second do not; use --repeat 2 or more on a quiet machine"
        )


def _about_the_answers(measured: Measurements) -> Iterator[str]:
    base = [r for r in measured.runs if r.mode == BASELINE]
    for mode in dict.fromkeys(r.mode for r in measured.runs):
        runs = [r for r in measured.runs if r.mode == mode]
        different = differing(base, runs)
        if different and mode != FASTEST_BASELINE:  # its text may differ: that is its price, and stands in the table
            yield (
                f"{mode}: {sum(different.values())} of {sum(len(r.answers) for r in runs)} answers differ from the "
                f"baseline's (first: {next(iter(different))}): not the same work; use --fixed-width where the engine "
                "is not bit-stable"
            )
        if mode not in (BASELINE, FASTEST_BASELINE) and not any(a.drafted for r in runs for a in r.answers):
            yield f"{mode}: not one token was drafted, so it was measured as plain decoding"


def _about_the_figures(records: Sequence[Record]) -> Iterator[str]:
    few = sorted({r.task for r in records if r.task != ALL_TASKS and r.prompts < FEW_PROMPTS})
    if few:
        yield f"fewer than {FEW_PROMPTS} prompts of {', '.join(few)}: the spread says little; raise --limit"
    for r in records:
        spread = max(r.speedup_high - r.speedup, r.speedup - r.speedup_low) / r.speedup
        if r.mode != BASELINE and spread > WIDE_SPREAD:
            rate = "" if r.rate is None else f", {r.rate:g} requests/s"
            yield (
                f"{r.mode}, {r.task}, batch {r.batch}{rate}: the speed-up's spread is {spread:.0%}: "
                "raise --limit or --repeat"
            )
