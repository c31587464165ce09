"""The modes a benchmark compares: which drafter each has, and a loop for it on a shared engine.

Knows no prompts and no clock. All modes run on one engine, so that each meets the same kernels, shapes and cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from sssd.config import CascadeConfig, LoopConfig
from sssd.drafting import choose
from sssd.drafting.base import Drafter, NullDrafter
from sssd.drafting.confidence import ReliabilityBin
from sssd.engines.base import Engine
from sssd.errors import SssdError
from sssd.llm import LLM
from sssd.model import Model
from sssd.runtime.costs import OnlineCosts
from sssd.spec import EngineSpec
from sssd.text import Tokenizer
from sssd.types import EngineOutput, Int32, VerifyBatch

BASELINE = "null"
DATASTORE_MODE = "retrieval+datastore"
FASTEST_BASELINE = "null@fastest"  # plain decoding at width 1: what bit-stability costs
DRAFT_MODE = "draft"  # the first draft model alone: plain speculative decoding
CASCADE_MODES = ("cascade+maxgram", "cascade+retrieval", "cascade@adaptive")  # the last: models where they pay
DRAFT_MODES = (DRAFT_MODE, *CASCADE_MODES)
MODES = (BASELINE, "maxgram", "retrieval", DATASTORE_MODE, *DRAFT_MODES)  # that a user may choose

DrafterMaker = Callable[[str], Drafter]  # from a mode's name; a new one at every call


def choose_modes(
    wanted: Sequence[str] | None, *, datastore: Path | None, fastest: bool, drafts: bool = False
) -> tuple[str, ...]:
    """The modes to run, the baseline first: it always runs. None wants all that can. `drafts`: there are draft models.

    Raises SssdError for an unknown mode, one that lacks its datastore or draft models, and those that no mode uses.
    """
    for mode in wanted or ():
        if mode not in MODES:
            raise SssdError(f"mode is {mode!r}: allowed are {', '.join(MODES)}")
    if wanted is None:
        lacking = {DATASTORE_MODE} if datastore is None else set()
        lacking |= set() if drafts else set(DRAFT_MODES)
        modes = [m for m in MODES if m not in lacking]
    else:
        modes = list(wanted)
    models = [m for m in modes if m in DRAFT_MODES]
    if models and not drafts:
        raise SssdError(f"mode {models[0]} needs a draft model: give its bundle with --draft")
    if drafts and not models:
        raise SssdError(f"no mode uses the draft models: add one of {', '.join(DRAFT_MODES)}, or leave --draft out")
    if DATASTORE_MODE in modes and datastore is None:
        raise SssdError(f"mode {DATASTORE_MODE} drafts from a file: give it with --datastore FILE")
    if datastore is not None and DATASTORE_MODE not in modes:
        raise SssdError(f"no mode drafts from {datastore}: add {DATASTORE_MODE} to --mode, or leave --datastore out")
    extra = [FASTEST_BASELINE] if fastest else []
    return tuple(dict.fromkeys([BASELINE, *modes, *extra]))


def make_drafter(mode: str, *, datastore: Path | None, fingerprint: str) -> Drafter:
    """A new drafter for a mode of `choose_modes`, draft models aside; `fingerprint` is the tokenizer's.

    Raises DatastoreError or SpecMismatch when the datastore cannot be used.
    """
    if mode in (BASELINE, FASTEST_BASELINE, DRAFT_MODE):
        return NullDrafter()
    name = "maxgram" if mode.endswith("maxgram") else "retrieval"
    return choose.make_drafter(name, datastore=datastore if mode == DATASTORE_MODE else None, tokenizer=fingerprint)


def cascade_of(mode: str, config: CascadeConfig) -> CascadeConfig:
    """How a mode of DRAFT_MODES has its draft models work together."""
    if mode == DRAFT_MODE:
        return CascadeConfig(((config.k[0][0], 1), (1,)), children=config.children, adaptive=False)
    return replace(config, adaptive=mode == CASCADE_MODES[-1])


class WatchedEngine:
    """An engine that counts its forwards by width, and passes everything on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.widths: Counter[int] = Counter()  # columns of a forward -> forwards

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""
        return self._engine.spec

    @property
    def n_slots(self) -> int:
        """Sequences whose KV the cache holds."""
        return self._engine.n_slots

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        """Count and pass on."""
        self.widths[batch.input_ids.shape[1]] += 1
        return self._engine.forward(batch)

    def commit(self, batch: VerifyBatch, keeps: Sequence[Int32]) -> None:
        """Pass on."""
        self._engine.commit(batch, keeps)

    def copy_prefix(self, src: int, dst: int, n: int) -> None:
        """Pass on."""
        self._engine.copy_prefix(src, dst, n)

    def close(self) -> None:
        """Pass on."""
        self._engine.close()


@runtime_checkable
class Judged(Protocol):
    """A drafter that compares what it predicted with what came."""

    def reliability(self) -> tuple[ReliabilityBin, ...]:
        """Predicted against observed acceptance, by score."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A mode with a drafter and a loop of its own. Lanes share one engine: only one may have requests at a time."""

    mode: str
    drafter: Drafter
    llm: LLM

    def reliability(self) -> tuple[ReliabilityBin, ...]:
        """The drafter's own account of its predictions; nothing where it keeps none."""
        return self.drafter.reliability() if isinstance(self.drafter, Judged) else ()

    def close(self) -> None:
        """Release the drafter; the engine is everyone's."""
        self.drafter.close()


def open_lane(
    mode: str,
    engine: Engine,
    drafter: Drafter,
    tokenizer: Tokenizer,
    *,
    n_slots: int,
    max_waiting: int,
    max_draft_tokens: int,
    fixed_width: int | None,
    costs: OnlineCosts | None = None,
) -> Lane:
    """A fresh loop for a mode. Raises SssdError for an option out of range.

    Nothing of a finished request is kept in the cache: another lane writes over it.
    """
    config = LoopConfig(
        n_slots=n_slots,
        n_warm=0,
        max_waiting=max_waiting,
        max_draft_tokens=max_draft_tokens,
        fixed_width=fixed_width,
        fastest=mode == FASTEST_BASELINE,
    )
    return Lane(mode, drafter, LLM(Model(engine, drafter, tokenizer, config, costs=costs)))
