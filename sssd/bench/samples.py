"""What is kept of a measurement, unreduced: one value an answer, one a batch. Owns their fields and units.

Knows neither how they are measured nor what is made of them. Tokens are those of a completion's own statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

from sssd.bench.overhead import PhaseCost
from sssd.bench.swi import LevelUse
from sssd.drafting.confidence import ReliabilityBin


@dataclass(frozen=True, slots=True)
class AnswerSample:
    """One prompt's answer. Times are seconds since the prompt came, not since a slot was free for it."""

    prompt: str  # its id
    prompt_tokens: int
    cached_tokens: int  # of them, copied from another row's cache
    tokens: int
    steps: int  # forward passes that gave tokens
    came: float  # seconds since the start of its run
    first_token: float  # seconds until the first tokens
    seconds: float  # until the last token
    step_tokens: tuple[int, ...]  # tokens of each step, in order
    step_seconds: tuple[float, ...]  # seconds each waited for since the step before; the first since the prompt came
    accepted_lengths: dict[int, int]  # accepted draft nodes in a step -> steps
    drafted: int  # draft nodes verified
    accepted: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Which run it was; runs of equal places but for the mode did the same work."""

    task: str
    batch: int  # slots
    rate: float | None  # arrivals a second; None = offline, all at the start
    repeat: int
    unit: int  # which batch of the task's prompts


@dataclass(frozen=True, slots=True)
class RunSample:
    """One batch of prompts, or one stream of arrivals, through one mode."""

    mode: str
    place: Place
    order: int  # how many runs went before it
    seconds: float  # from the start to the last token
    decode_tokens: int  # offline: tokens after every prompt was read; under load: all but an answer's first ones
    decode_seconds: float  # that they took; under load summed over answers
    steps: int  # of the loop
    widths: dict[int, int]  # columns of a forward -> forwards
    phases: tuple[PhaseCost, ...]  # mean of each phase of a step
    answers: tuple[AnswerSample, ...]  # in the order in which the prompts came
    levels: tuple[LevelUse, ...] = ()  # the drafter's models

    @property
    def tokens(self) -> int:
        """All that were committed."""
        return sum(a.tokens for a in self.answers)


@dataclass(frozen=True, slots=True)
class Belief:
    """What a mode's drafter predicted over one group of runs, and what came."""

    mode: str
    task: str
    batch: int
    rate: float | None
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that a benchmark measured."""

    weights: str
    runs: tuple[RunSample, ...]  # in the order in which they ran
    beliefs: tuple[Belief, ...]
    target_bytes: int = 0  # of the target's weights; 0 = unknown
