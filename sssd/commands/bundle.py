"""export, inspect, check: the commands that make and look at bundles."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from sssd.commands import show
from sssd.spec import Bundle, WeightType, open_bundle


@click.command()
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to make the bundle in.")
@click.option(
    "--weights",
    type=click.Choice([w for w in get_args(WeightType) if w != "fp8"]),
    default="fp32",
    show_default=True,
    help="How weights are stored.",
)
@click.option(
    "--max-len", type=click.IntRange(min=2), help="Most tokens a request may hold; the model's own otherwise."
)
@click.option("--draft-layers", type=click.IntRange(min=1), help="Keep the first N layers only: a draft model.")
@click.option("--force", is_flag=True, help="Replace the bundle at --out.")
def export(
    source: str, out: Path, weights: WeightType, max_len: int | None, draft_layers: int | None, force: bool
) -> None:
    """Turn a checkpoint into a bundle and check it against the reference.

    SOURCE is a Hugging Face directory, a .gguf file, or a hub id.

    \b
    Examples:
      sssd export ./Llama-3.1-8B-Instruct --out llama3/
      sssd export smollm2.gguf --out smol-int4/ --weights int4
      sssd export ./SmolLM3-3B --out draft/ --draft-layers 6 --weights int8
    """
    from sssd.export import export_model

    with show.progress() as report:
        made = export_model(
            source, out, weights=weights, max_len=max_len, draft_layers=draft_layers, force=force, progress=report
        )
    worst = max(made.manifest.parity, key=lambda check: check.max_abs_diff / check.tolerance)
    for note in made.manifest.notes:
        show.remark(f"note: {note}")
    show.remark(f"parity: largest difference {worst.max_abs_diff:.2g} ({worst.name}; allowed {worst.tolerance:.2g})")
    click.echo(out)


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
def check(directory: Path) -> None:
    """Verify a bundle's hashes and compare its graph with the reference again.

    \b
    Examples:
      sssd check smol/
    """
    from sssd.export import check_bundle

    with show.progress() as report:
        checks = check_bundle(directory, progress=report)
    for result in checks:
        click.echo(f"{result.name}: largest difference {result.max_abs_diff:.2g}, allowed {result.tolerance:.2g}")
    show.remark("all files and all checks are right")


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
    rows += [("parity", f"{c.name}: {c.max_abs_diff:.2g} (allowed {c.tolerance:.2g})") for c in manifest.parity]
    rows += [("note", note) for note in manifest.notes]
    rows += [("file", f"{f.name} ({show.size(f.size)}) {f.sha256[:12]}") for f in manifest.files]
    for name, value in rows:
        click.echo(f"{name + ':':18}{value}")
