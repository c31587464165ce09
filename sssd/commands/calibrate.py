"""calibrate and plan: what a bundle's forwards cost here, and what speculation would bring."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from sssd.commands import show
from sssd.errors import BundleError
from sssd.spec import Bundle, open_bundle

if TYPE_CHECKING:
    from sssd.bench.planner import Acceptance, Forecast
    from sssd.drafting.base import Drafter
    from sssd.engines.choose import DeviceName
    from sssd.runtime.calibration import Calibration

PlannedDrafter = Literal["maxgram", "retrieval"]

_THREADS = click.option("--threads", type=click.IntRange(min=0), default=0, help="0 takes one a physical core.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")


@click.command()
@click.argument("directory", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option("--slots", type=click.IntRange(min=1), default=8, show_default=True, help="Most requests in a batch.")
@click.option("--seconds", type=click.IntRange(min=1), default=90, show_default=True, help="Time to spend, about.")
@show.DEVICE
@_THREADS
@_JSON
def calibrate(
    directory: Path, slots: int, seconds: int, device: DeviceName | None, threads: int, as_json: bool
) -> None:
    """Measure what a forward costs on this machine, by batch, width and context, and save it in BUNDLE.

    Let nothing else run meanwhile. It holds for this machine, device, number of threads and version of ONNX Runtime;
    where one differs, costs are learned while serving, until it is calibrated again.

    \b
    Examples:
      sssd calibrate smol/
      sssd calibrate smol-int4/ --slots 16 --seconds 120
    """
    from sssd.bench.calibrate import calibrate as measure
    from sssd.engines.choose import choose_device, open_engine
    from sssd.runtime.calibration import fingerprint, save_calibration

    found = open_bundle(directory)
    engine = open_engine(found, n_slots=slots, device=device, threads=threads)
    try:
        with show.progress() as report:
            here = fingerprint(found, device=choose_device(found, device), threads=threads)
            figures = measure(engine, here, seconds=float(seconds), progress=report)
    finally:
        engine.close()
    path = save_calibration(found, figures)
    if as_json:
        show.as_json(figures)
    else:
        _show_calibration(figures)
    show.remark(f"{path}: median of {figures.rounds} rounds, spread {figures.spread:.0%}")
    if figures.spread > 0.1:
        show.remark(
            "warning: times differ by more than 10 %, something else is running: calibrate again when it is not"
        )


def _show_calibration(figures: Calibration) -> None:
    for context, grid in zip(figures.contexts, figures.seconds, strict=True):
        click.echo(f"milliseconds behind {context} tokens, by width")
        click.echo("batch" + "".join(f"{width:9}" for width in figures.widths))
        for batch, line in zip(figures.batches, grid, strict=True):
            click.echo(f"{batch:5}" + "".join(f"{1000 * t:9.1f}" for t in line))


@click.command()
@click.argument("directory", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path), help="Recorded answers (.jsonl) to replay; assumed acceptance otherwise."
)
@click.option(
    "--drafter", type=click.Choice(get_args(PlannedDrafter)), default="maxgram", show_default=True, help="Replayed."
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Records of --data to replay.")
@click.option(
    "--context", type=click.IntRange(min=0), default=512, show_default=True, help="Tokens of the longest row."
)
@show.DEVICE
@_THREADS
@_JSON
def plan(
    directory: Path,
    data: Path | None,
    drafter: PlannedDrafter,
    limit: int,
    context: int,
    device: DeviceName | None,
    threads: int,
    as_json: bool,
) -> None:
    """Forecast what speculation brings: best width and speed-up by batch size, break-even, memory.

    BUNDLE must be calibrated. With --data, answers recorded earlier are replayed to find what a drafter gets right.

    \b
    Examples:
      sssd plan smol/
      sssd plan smol/ --data answers.jsonl --drafter retrieval --json
    """
    from sssd.bench.planner import forecast
    from sssd.engines.choose import choose_device
    from sssd.runtime.calibration import fingerprint, load_calibration

    found = open_bundle(directory)
    calibration = load_calibration(found, fingerprint(found, device=choose_device(found, device), threads=threads))
    if calibration.curve is None:
        raise BundleError(calibration.reason)
    acceptance, source = _acceptance(found, data, drafter, limit)
    result = forecast(found, calibration.curve, acceptance, acceptance_from=source, context=context)
    if as_json:
        show.as_json(result)
    else:
        _show_forecast(result)


def _acceptance(
    bundle: Bundle, data: Path | None, drafter: PlannedDrafter, limit: int
) -> tuple[tuple[Acceptance, ...], str]:
    from sssd.bench.planner import ASSUMED_RATE, assumed_acceptance, replayed_acceptance
    from sssd.bench.replay import load_set
    from sssd.text import Tokenizer

    if data is None:
        return assumed_acceptance(), f"assumed: each next draft token is accepted with a chance of {ASSUMED_RATE:.0%}"
    tokenizer = Tokenizer(bundle)
    replayed = load_set(data, lambda text: tokenizer.encode(text, special=False), limit=limit)
    found = replayed_acceptance(replayed.pairs, lambda: _drafter(drafter))
    return found, f"{len(replayed.pairs)} recorded answers of {data.name}, replayed with {drafter}"


def _drafter(name: PlannedDrafter) -> Drafter:
    if name == "maxgram":
        from sssd.drafting.simple import MaxGram

        return MaxGram()
    from sssd.drafting.retrieval import Retrieval, RetrievalConfig

    return Retrieval(RetrievalConfig(background_from=2**31 - 1))  # every prompt is indexed at once: no time passes here


def _show_forecast(f: Forecast) -> None:
    click.echo(f"{f.name} ({f.weights}), context {f.context}")
    click.echo(f"acceptance: {f.acceptance_from}")
    for a in f.acceptance:
        click.echo(f"  up to {a.nodes:2} draft tokens: {a.tokens_per_step:.2f} tokens a step")
    click.echo("batch   width   tokens/step   tokens/s   speed-up")
    for b in f.batches:
        click.echo(
            f"{b.batch:5}{b.width:8}{b.tokens_per_step:14.2f}{b.tokens_per_second:11.1f}{b.speedup:10.2f}x"
            + ("" if b.pays else "   no wider step pays")
        )
    free = f.narrowest - 1
    drafts = f" beyond the {free} free column{'s' if free > 1 else ''}" if free else ""
    most = f.batches[-1].batch
    if f.break_even is None:
        click.echo(f"break-even: speculation pays at every batch size up to {most}")
    elif f.break_even == 1:
        click.echo(
            f"break-even: none, speculation{drafts} would lose at batch 1 already; leave it off, or to the budget"
        )
    else:
        click.echo(f"break-even: speculation{drafts} would lose from batch {f.break_even} on")
    m = f.memory
    click.echo(
        f"memory: {show.size(m.weights)} of weights, {show.size(m.kv_slot)} of KV a full slot; "
        f"{m.slots} such slots fit in this machine's {show.size(m.ram)}"
    )
