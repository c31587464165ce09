"""The benchmark itself: every mode over the same prompts, in turns. Owns the order in which things run.

Knows neither how a stream is timed nor what the figures say. Modes take turns at every batch, and the one that goes
first changes, so that a machine that drifts drifts for all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from sssd.bench.modes import BASELINE, DrafterMaker, Lane, WatchedEngine, open_lane
from sssd.bench.samples import Belief, Measurements, Place, RunSample
from sssd.bench.stream import Clock, run_stream
from sssd.bench.workload import Arrival, Workload, batches, poisson, together
from sssd.config import LoopConfig, SamplingParams
from sssd.drafting.base import NullDrafter
from sssd.engines.base import Engine
from sssd.errors import SssdError
from sssd.runtime.costs import OnlineCosts
from sssd.text import Tokenizer

Progress = Callable[[str, int, int], None]  # (what is being done, done so far, in all)

ALL_TASKS = "all"  # the task of what runs over every task's prompts


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What to run. Raises SssdError for a value out of range."""

    modes: tuple[str, ...]  # the baseline first
    params: SamplingParams  # with a seed, so that all modes draw the same
    batches: tuple[int, ...] = (1,)  # sizes offline; the largest is the number of slots under load
    rates: tuple[float, ...] = ()  # arrivals a second under load
    repeat: int = 1  # times everything is run
    max_draft_tokens: int = LoopConfig.max_draft_tokens
    fixed_width: int | None = None
    arrival_seed: int = 0

    def __post_init__(self) -> None:
        assert self.modes[0] == BASELINE, "every ratio is against the baseline"
        assert self.params.seed is not None
        for name, ok, allowed in (
            ("batch", self.batches and all(b >= 1 for b in self.batches), "one or more sizes of 1 or more"),
            ("rate", all(0 < r < float("inf") for r in self.rates), "arrivals a second, above 0"),
            ("repeat", self.repeat >= 1, "1 or more"),
        ):
            if not ok:
                value = {"batch": self.batches, "rate": self.rates, "repeat": self.repeat}[name]
                raise SssdError(f"{name} is {value}: allowed is {allowed}")


class Turn(NamedTuple):
    """One run of a group: which mode, over which unit of work, for the how-many-th time."""

    repeat: int
    unit: int
    mode: str


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that share their lanes: one task at one batch size, or one rate."""

    task: str
    batch: int
    rate: float | None
    units: tuple[tuple[Arrival, ...], ...]


def turns(modes: Sequence[str], *, n_units: int, repeat: int) -> Iterator[Turn]:
    """Every mode at every unit before the next unit, beginning with another mode each time."""
    for r in range(repeat):
        for unit in range(n_units):
            first = (r * n_units + unit) % len(modes)
            for mode in (*modes[first:], *modes[:first]):
                yield Turn(r, unit, mode)


def groups(config: BenchConfig, workload: Workload) -> list[Group]:
    """All there is to run: offline by batch size and task, then under load by rate."""
    offline = [
        Group(task, size, None, tuple(tuple(together(b)) for b in batches(workload.of_task(task), size)))
        for size in config.batches
        for task in workload.tasks
    ]
    slots = max(config.batches)
    return offline + [
        Group(ALL_TASKS, slots, rate, (tuple(poisson(workload.prompts, rate=rate, seed=config.arrival_seed)),))
        for rate in config.rates
    ]


def measure(
    config: BenchConfig,
    workload: Workload,
    engine: Engine,
    tokenizer: Tokenizer,
    drafters: DrafterMaker,
    *,
    costs: OnlineCosts | None = None,
    progress: Progress,
    clock: Clock,
) -> Measurements:
    """Run everything, after one answer that warms the machine up and is not counted.

    `costs` decide what of the drafts is verified, in every mode alike; without them all of it is.
    The engine has a slot for each row of the largest batch. Raises EngineError, RequestError, or what a drafter's
    making raises.
    """
    assert engine.n_slots >= max(config.batches)
    watched = WatchedEngine(engine)
    _warm_up(config, workload, watched, tokenizer)
    planned = groups(config, workload)
    in_all = sum(len(g.units) for g in planned) * config.repeat * len(config.modes)
    runs: list[RunSample] = []
    beliefs: list[Belief] = []
    for group in planned:
        with _lanes(config, group, watched, tokenizer, drafters, costs) as lanes:
            for turn in turns(config.modes, n_units=len(group.units), repeat=config.repeat):
                progress("measuring", len(runs), in_all)
                place = Place(group.task, group.batch, group.rate, turn.repeat, turn.unit)
                arrivals = group.units[turn.unit]
                lane = lanes[turn.mode]
                runs.append(
                    run_stream(lane, watched, arrivals, config.params, place=place, order=len(runs), clock=clock)
                )
            beliefs += [
                Belief(lane.mode, group.task, group.batch, group.rate, bins)
                for lane in lanes.values()
                if (bins := lane.reliability())
            ]
    progress("measuring", in_all, in_all)
    return Measurements(engine.spec.weights, tuple(runs), tuple(beliefs))


@contextmanager
def _lanes(
    config: BenchConfig,
    group: Group,
    engine: WatchedEngine,
    tokenizer: Tokenizer,
    drafters: DrafterMaker,
    costs: OnlineCosts | None,
) -> Iterator[dict[str, Lane]]:
    """A new lane a mode, so that nothing learned in one group helps in another."""
    lanes: dict[str, Lane] = {}
    try:
        for mode in config.modes:
            lanes[mode] = open_lane(
                mode,
                engine,
                drafters(mode),
                tokenizer,
                n_slots=group.batch,
                max_waiting=max(len(arrivals) for arrivals in group.units),
                max_draft_tokens=config.max_draft_tokens,
                fixed_width=config.fixed_width,
                costs=costs,
            )
        yield lanes
    finally:
        for lane in lanes.values():
            lane.close()


def _warm_up(config: BenchConfig, workload: Workload, engine: WatchedEngine, tokenizer: Tokenizer) -> None:
    """Answer the longest prompt once: the cache has its size then, and the machine its clock."""
    lane = open_lane(
        BASELINE,
        engine,
        NullDrafter(),
        tokenizer,
        n_slots=1,
        max_waiting=1,
        max_draft_tokens=config.max_draft_tokens,
        fixed_width=config.fixed_width,
    )
    lane.llm.generate(workload.longest.token_ids, config.params)
