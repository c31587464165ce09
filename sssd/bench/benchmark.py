"""`sssd bench` as a function: a bundle and data files in, a report out. Owns the order in which mistakes are found.

Everything that a user can get wrong is checked before the model is loaded. Knows no terminal.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from sssd.bench.machine import this_machine
from sssd.bench.modes import DRAFT_MODE, DRAFT_MODES, FASTEST_BASELINE, cascade_of, choose_modes, make_drafter
from sssd.bench.report import About, Report
from sssd.bench.run import BenchConfig, Progress, measure
from sssd.bench.stream import Clock
from sssd.bench.summary import summarize
from sssd.bench.validity import warnings
from sssd.bench.workload import choose, read_questions
from sssd.config import CascadeConfig, LoopConfig, SamplingParams, cascade_config
from sssd.draft_models import make_cascade, open_drafts, weight_bytes
from sssd.drafting.base import Drafter
from sssd.errors import RequestError, SssdError
from sssd.loading import engine_costs
from sssd.spec import open_bundle
from sssd.text import Tokenizer


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What a user may choose."""

    engine: Path  # a bundle
    data: tuple[Path, ...]  # JSONL files
    tasks: tuple[str, ...] = ()  # none = all
    limit: int | None = None  # prompts a task
    modes: tuple[str, ...] | None = None  # None = all that can run
    datastore: Path | None = None
    drafts: tuple[Path, ...] = ()  # bundles of draft models, the largest first
    cascade: CascadeConfig | None = None  # how they work together; None = the usual way for so many
    batches: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    repeat: int = 1
    max_tokens: int = 128
    stop_at_eos: bool = False
    temperature: float = SamplingParams.temperature
    seed: int = 0
    chat: bool | None = None  # None = where the bundle has a template
    max_draft_tokens: int = LoopConfig.max_draft_tokens
    fixed_width: int | None = None
    fastest: bool = False  # also measure plain decoding at width 1
    device: str | None = None  # a DeviceName; None = the bundle's own
    threads: int = 0
    command: str = field(default="sssd.bench.benchmark", kw_only=True)  # as it was called


def benchmark(options: BenchOptions, *, progress: Progress) -> Report:
    """Measure every mode. Raises SssdError or one of its kinds for whatever cannot be done, before the model is loaded
    where that can be known.
    """
    began = perf_counter()
    machine = this_machine()
    config = _config(options)
    questions = read_questions(options.data)
    bundle = open_bundle(options.engine)
    tokenizer = Tokenizer(bundle)
    chat = tokenizer.has_chat_template if options.chat is None else options.chat
    if chat and not tokenizer.has_chat_template:
        raise RequestError("the bundle has no chat template: use --no-chat, or export a chat model")
    max_prompt = bundle.spec.max_len - options.max_tokens
    if max_prompt < 1:
        raise RequestError(
            f"max_tokens is {options.max_tokens}: allowed is 1 to {bundle.spec.max_len - 1}, so that a prompt fits "
            f"beside it into the bundle's {bundle.spec.max_len} tokens"
        )
    workload = choose(questions, tokenizer, max_prompt=max_prompt, tasks=options.tasks, limit=options.limit, chat=chat)
    fingerprint = tokenizer.fingerprint()

    drafts = open_drafts(options.drafts, target=bundle)
    n_slots = max(config.batches)

    def below(mode: str) -> Drafter:
        return make_drafter(mode, datastore=options.datastore, fingerprint=fingerprint)

    def drafter(mode: str) -> Drafter:
        if mode not in DRAFT_MODES:
            return below(mode)
        levels = drafts[:1] if mode == DRAFT_MODE else drafts
        how = cascade_of(mode, options.cascade or cascade_config(len(drafts)))
        return make_cascade(
            levels, below(mode), how, target=bundle, n_slots=n_slots, device=options.device, threads=options.threads
        )

    for mode in config.modes:
        below(mode).close()  # a datastore that does not fit is told now

    from sssd.engines.choose import choose_device, open_engine

    device = choose_device(bundle, options.device)
    engine = open_engine(bundle, n_slots=n_slots, device=device, threads=options.threads)
    try:
        costs = engine_costs(bundle, n_slots=n_slots, device=device, threads=options.threads)
        measured = measure(config, workload, engine, tokenizer, drafter, costs=costs, progress=progress, clock=Clock())
    finally:
        engine.close()
    measured = replace(measured, target_bytes=weight_bytes(bundle))
    records = summarize(measured)
    about = About(
        command=options.command,
        sssd=version("sssd"),
        model=bundle.spec.name,
        weights=bundle.spec.weights,
        machine=machine,
        device=device,
        threads=options.threads,
        max_tokens=options.max_tokens,
        stops_at_eos=options.stop_at_eos,
        temperature=options.temperature,
        max_draft_tokens=options.max_draft_tokens,
        fixed_width=options.fixed_width,
        chat=chat,
        repeat=options.repeat,
        seconds=perf_counter() - began,
        warnings=warnings(machine, workload, measured, records),
    )
    return Report(about, records)


def _config(options: BenchOptions) -> BenchConfig:
    if options.fastest and options.fixed_width is not None:
        raise SssdError(f"--fastest measures {FASTEST_BASELINE}, --fixed-width forbids it: give one of them")
    if options.limit is not None and options.limit < 1:
        raise SssdError(f"limit is {options.limit}: allowed is 1 or more prompts a task")
    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        ignore_eos=not options.stop_at_eos,
    )
    LoopConfig(max_draft_tokens=options.max_draft_tokens, fixed_width=options.fixed_width)  # checks both
    return BenchConfig(
        modes=choose_modes(
            options.modes, datastore=options.datastore, fastest=options.fastest, drafts=bool(options.drafts)
        ),
        params=params,
        batches=options.batches,
        rates=options.rates,
        repeat=options.repeat,
        max_draft_tokens=options.max_draft_tokens,
        fixed_width=options.fixed_width,
        arrival_seed=options.seed,
    )
