"""The composition root: a bundle, an engine, a drafter and a budget become a Model or an LLM.

The only file that picks parts by name. Knows nothing of steps and tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sssd.config import CascadeConfig, LoopConfig, cascade_config
from sssd.draft_models import make_cascade, open_drafts
from sssd.drafting.base import Drafter
from sssd.drafting.choose import DrafterName, make_drafter
from sssd.engines.choose import choose_device, open_engine
from sssd.errors import SssdError
from sssd.llm import LLM
from sssd.model import Model
from sssd.plan import PlanInfo
from sssd.runtime.calibration import fingerprint, load_calibration
from sssd.runtime.costs import OnlineCosts, assumed
from sssd.spec import Bundle, open_bundle
from sssd.text import Tokenizer

_log = logging.getLogger("sssd")


def load(
    bundle: str | Path,
    *,
    drafter: DrafterName | Drafter | None = "retrieval",
    datastore: str | Path | None = None,
    live: str | Path | None = None,
    drafts: Sequence[str | Path] = (),
    cascade: CascadeConfig | None = None,
    device: str | None = None,
    threads: int = 0,
    n_slots: int = LoopConfig.n_slots,
    n_warm: int = LoopConfig.n_warm,
    max_waiting: int = LoopConfig.max_waiting,
    chunk: int = LoopConfig.chunk,
    max_draft_tokens: int = LoopConfig.max_draft_tokens,
    fixed_width: int | None = None,
    fastest: bool = False,
) -> LLM:
    """Open a bundle (the directory, or a file inside it) and start its engine.

    `drafter` is a name, an object with the Drafter protocol, or None for plain decoding. "retrieval" drafts from the
    file `datastore` too, and remembers finished requests in the file `live`. `drafts` are bundles of draft models over
    it, the largest first, working together as `cascade` says (None: the usual way for so many). `device` is a
    DeviceName, or None for what a bundle is made for. Other options are LoopConfig's. Raises BundleError and its kinds,
    EngineError, MissingExtra, DatastoreError, or SssdError for an option out of range.
    """
    config = LoopConfig(
        n_slots=n_slots,
        n_warm=n_warm,
        max_waiting=max_waiting,
        chunk=chunk,
        max_draft_tokens=max_draft_tokens,
        fixed_width=fixed_width,
        fastest=fastest,
    )
    return LLM(
        load_model(
            bundle,
            config,
            drafter=drafter,
            datastore=datastore,
            live=live,
            drafts=drafts,
            cascade=cascade,
            device=device,
            threads=threads,
        )
    )


def load_model(
    bundle: str | Path,
    config: LoopConfig = LoopConfig(),
    *,
    drafter: DrafterName | Drafter | None = "retrieval",
    datastore: str | Path | None = None,
    live: str | Path | None = None,
    drafts: Sequence[str | Path] = (),
    cascade: CascadeConfig | None = None,
    device: str | None = None,
    threads: int = 0,
) -> Model:
    """What `load` and the server are made of; the same errors."""
    opened = open_bundle(bundle)
    if choose_device(opened, device) == "tensorrt" and opened.manifest.plan is not None:
        _require_fits(opened.manifest.plan, config)
    tokenizer = Tokenizer(opened)
    files = _Files(None if datastore is None else Path(datastore), None if live is None else Path(live))
    stack = _open_stack([Path(path) for path in drafts], cascade, opened)
    source = _drafter(drafter, files, tokenizer, opened.spec.vocab_size)
    first_request_id = _first_request_id(source, files)
    if stack is not None:
        source = make_cascade(
            stack.bundles, source, stack.config, target=opened, n_slots=config.n_slots, device=device, threads=threads
        )
    engine = open_engine(opened, n_slots=config.n_slots + config.n_warm, device=device, threads=threads)
    costs = engine_costs(opened, n_slots=config.n_slots, device=choose_device(opened, device), threads=threads)
    return Model(engine, source, tokenizer, config, costs=costs, first_request_id=first_request_id)


class _DraftStack(NamedTuple):
    bundles: tuple[Bundle, ...]
    config: CascadeConfig


def _open_stack(paths: Sequence[Path], config: CascadeConfig | None, target: Bundle) -> _DraftStack | None:
    """Draft bundles that fit the target, and K for them; None without any."""
    if not paths and config is not None:
        raise SssdError("a cascade needs draft models: give their bundles as drafts, or leave cascade out")
    if not paths:
        return None
    config = cascade_config(len(paths)) if config is None else config
    if config.n_levels != len(paths):
        raise SssdError(f"K is for {config.n_levels} draft models and there are {len(paths)}: one row a model")
    return _DraftStack(open_drafts(paths, target=target), config)


def _require_fits(plan: PlanInfo, config: LoopConfig) -> None:
    """The steps that the configuration allows fit the plan's profiles. Raises SssdError naming the option."""
    # behind a branch, accepted tokens become forced columns of the next step, beside a whole new tree
    drafts = (plan.max_width - 1) // 2
    for name, value, most in (
        ("n_slots", config.n_slots, plan.n_slots),
        ("chunk", config.chunk, plan.chunk),
        ("max_draft_tokens", config.max_draft_tokens, drafts),
        ("fixed_width", config.fixed_width or 0, plan.max_width),
    ):
        if value > most:
            raise SssdError(
                f"{name} is {value}: {plan.file} was built for at most {most}; lower it, or export the plan again with "
                "larger --slots, --chunk or --max-width"
            )


def _first_request_id(drafter: Drafter, files: _Files) -> int:
    """Ids go on behind those that the live file knows, so that erasing by id means one request."""
    if files.live is None:
        return 0
    from sssd.drafting.remembering import Remembering

    assert isinstance(drafter, Remembering)
    return drafter.first_request_id


def engine_costs(bundle: Bundle, *, n_slots: int, device: str, threads: int) -> OnlineCosts:
    """What forwards cost: as calibrated on this machine, or to be learned while serving."""
    found = load_calibration(bundle, fingerprint(bundle, device=device, threads=threads))
    if found.curve is not None:
        return OnlineCosts(found.curve, is_measured=True)
    _log.info("%s; costs are learned while serving", found.reason)
    return OnlineCosts(assumed(n_slots), is_measured=False)


class _Files(NamedTuple):
    datastore: Path | None
    live: Path | None


def _drafter(given: DrafterName | Drafter | None, files: _Files, tokenizer: Tokenizer, vocab_size: int) -> Drafter:
    if given is None or isinstance(given, str):
        return make_drafter(
            given or "none",
            datastore=files.datastore,
            live=files.live,
            tokenizer=tokenizer.fingerprint(),
            vocab_size=vocab_size,
        )
    if files != (None, None):
        raise SssdError("a datastore goes with the drafter named retrieval; attach it to your own drafter yourself")
    return given
