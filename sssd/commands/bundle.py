"""export, inspect, check: the commands that make and look at bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from sssd.commands import show
from sssd.engines.choose import DeviceName
from sssd.plan import Flavour, PlanInfo, PlanOptions
from sssd.spec import Bundle, Exporter, WeightType, open_bundle

if TYPE_CHECKING:
    from sssd.export.targets import Target

_TARGETS = ("onnx", "onnx-cuda", "tensorrt")


@click.command()
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to make the bundle in.")
@click.option("--target", type=click.Choice(_TARGETS), default="onnx", show_default=True, help="What it is to run on.")
@click.option(
    "--weights",
    type=click.Choice(get_args(WeightType)),
    help="How weights are stored: fp32 where not given, fp16 for the targets on a GPU.",
)
@click.option(
    "--max-len", type=click.IntRange(min=2), help="Most tokens a request may hold; the model's own otherwise."
)
@click.option("--draft-layers", type=click.IntRange(min=1), help="Keep the first N layers only: a draft model.")
@click.option("--flavour", type=click.Choice(get_args(Flavour)), help="TensorRT, or TensorRT-RTX, which needs no GPU.")
@click.option("--slots", type=int, help=f"TensorRT: most requests in a step.  [default: {PlanOptions().n_slots}]")
@click.option(
    "--max-width", type=int, help=f"TensorRT: most columns of a request.  [default: {PlanOptions().max_width}]"
)
@click.option("--chunk", type=int, help=f"TensorRT: most prompt tokens in a step.  [default: {PlanOptions().chunk}]")
@click.option(
    "--exporter",
    type=click.Choice(get_args(Exporter)),
    default="native",
    show_default=True,
    help="native: the families that sssd declares; optimum: any other Hugging Face decoder, traced with torch.",
)
@click.option(
    "--optimum-python",
    type=click.Path(path_type=Path),
    help="Python of an environment that has sssd[optimum]; this one otherwise.",
)
@click.option("--force", is_flag=True, help="Replace the bundle at --out.")
def export(
    source: str,
    out: Path,
    target: Target,
    weights: WeightType | None,
    max_len: int | None,
    draft_layers: int | None,
    flavour: Flavour | None,
    slots: int | None,
    max_width: int | None,
    chunk: int | None,
    exporter: Exporter,
    optimum_python: Path | None,
    force: bool,
) -> None:
    """Turn a checkpoint into a bundle and check it against the reference.

    SOURCE is a Hugging Face directory, a .gguf file, or a hub id; with --target tensorrt also a bundle made for it,
    whose plan is then built anew for this machine.

    \b
    Examples:
      sssd export ./Llama-3.1-8B-Instruct --out llama3/
      sssd export smollm2.gguf --out smol-int4/ --weights int4
      sssd export ./SmolLM3-3B --out draft/ --draft-layers 6 --weights int8
      sssd export ./Llama-3.1-8B-Instruct --target tensorrt --max-len 8192 --slots 16 --weights int4 --out llama3/
      sssd export llama3/ --target tensorrt --flavour rtx --out llama3-rtx/
      sssd export ./gpt2 --out gpt2/ --exporter optimum --optimum-python optimum/bin/python
    """
    from sssd.export import export_model

    plan = _plan_options(flavour, slots, max_width, chunk)
    with show.progress() as report:
        made = export_model(
            source,
            out,
            target=target,
            weights=weights,
            max_len=max_len,
            draft_layers=draft_layers,
            plan=plan,
            exporter=exporter,
            optimum_python=optimum_python,
            force=force,
            progress=report,
        )
    worst = max(made.manifest.parity, key=lambda check: check.max_abs_diff / check.tolerance)
    for note in made.manifest.notes:
        show.remark(f"note: {note}")
    show.remark(f"parity: largest difference {worst.max_abs_diff:.2g} ({worst.name}; allowed {worst.tolerance:.2g})")
    click.echo(out)


def _plan_options(
    flavour: Flavour | None, slots: int | None, max_width: int | None, chunk: int | None
) -> PlanOptions | None:
    """None where none was given, so that an option without its target is noticed."""
    if all(given is None for given in (flavour, slots, max_width, chunk)):
        return None
    default = PlanOptions()
    return PlanOptions(
        flavour=flavour or default.flavour,
        n_slots=default.n_slots if slots is None else slots,
        max_width=default.max_width if max_width is None else max_width,
        chunk=default.chunk if chunk is None else chunk,
    )


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest as JSON.")
def inspect(directory: Path, as_json: bool) -> None:
    """Show what a bundle holds.

    \b
    Examples:
      sssd inspect smol/
      sssd inspect smol/ --json | jq .spec.max_len
    """
    found = open_bundle(directory)
    if as_json:
        show.as_json(found.manifest)
    else:
        _table(found)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--engine", is_flag=True, help="Check the engine that serves instead, at the ends of what it takes.")
@show.DEVICE
@click.option("--slots", type=click.IntRange(min=1), default=3, show_default=True, help="With --engine: most rows.")
@click.option("--context", type=click.IntRange(min=0), help="With --engine: longest context; the bundle's otherwise.")
def check(directory: Path, engine: bool, device: DeviceName | None, slots: int, context: int | None) -> None:
    """Verify a bundle's hashes and compare its graph with the reference again.

    With --engine, run the bundle's engine (a TensorRT plan, a GPU) at the corners of its profiles and compare it with
    the graph on the CPU, which reads the longest context too: that takes its time.

    \b
    Examples:
      sssd check smol/
      sssd check llama3/llama3.plan --engine --slots 8
      sssd check smol/ --engine --device cuda --context 1000
    """
    if engine:
        _check_engine(directory, device, slots, context)
        return
    if device is not None or context is not None:
        raise click.UsageError("--device and --context need --engine")
    from sssd.export import check_bundle

    with show.progress() as report:
        checks = check_bundle(directory, progress=report)
    if not checks:
        show.remark("the graph was traced from a model's own code: without that model only hashes can be checked")
    for result in checks:
        click.echo(f"{result.name}: largest difference {result.max_abs_diff:.2g}, allowed {result.tolerance:.2g}")
    show.remark("all files and all checks are right" if checks else "all files are right")


def _check_engine(directory: Path, device: DeviceName | None, slots: int, context: int | None) -> None:
    from sssd.export.engine_check import check_bundle_engine

    with show.progress() as report:
        corners = check_bundle_engine(directory, device=device, n_slots=slots, context=context, progress=report)
    for c in corners:
        click.echo(
            f"{c.name}: largest difference {c.max_abs_diff:.2g}, allowed {c.tolerance:.2g}; "
            f"{c.agreement:.0%} of the argmaxes agree"
        )
    show.remark("all corners are right")


def _table(found: Bundle) -> None:
    manifest, spec = found.manifest, found.spec
    rows = [
        ("name", spec.name),
        ("source", manifest.source),
        ("family", manifest.decoder.family if manifest.decoder else "other"),
        ("weights", spec.weights),
        ("vocabulary", f"{spec.vocab_size:,}"),
        ("layers", f"{spec.n_layers} ({spec.n_kv_heads} KV heads of {spec.head_dim})"),
        ("max length", f"{spec.max_len:,} tokens ({show.size(spec.max_len * spec.kv_bytes_per_token())} of KV a slot)"),
        ("ending tokens", ", ".join(map(str, spec.eos_ids)) or "none"),
        ("scores", spec.scores if spec.scores == "logits" else f"{spec.n_scores} best"),
        ("bit-stable from", f"width {spec.min_width}"),
        ("revisions", f"format {manifest.format_revision}, layout {manifest.layout_revision}"),
        ("made with", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())),
    ]
    if manifest.plan is not None:
        rows += _plan_rows(manifest.plan)
    rows += [("parity", f"{c.name}: {c.max_abs_diff:.2g} (allowed {c.tolerance:.2g})") for c in manifest.parity]
    rows += [("note", note) for note in manifest.notes]
    rows += [("file", f"{f.name} ({show.size(f.size)}) {f.sha256[:12]}") for f in manifest.files]
    for name, value in rows:
        click.echo(f"{name + ':':18}{value}")


def _plan_rows(plan: PlanInfo) -> list[tuple[str, str]]:
    spans = [f"{p.name}: {p.rows.most} x {p.width.most}" for p in plan.profiles]
    return [
        ("plan", f"{plan.file}, {plan.flavour} {plan.version}, compute capability {plan.compute_capability}"),
        ("plan sizes", f"{plan.n_slots} slots of {plan.max_len:,} tokens, rows x columns {', '.join(spans)}"),
        ("plan numbers", plan.kv_dtype),
    ]
