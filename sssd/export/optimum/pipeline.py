"""From any Hugging Face decoder to a bundle: trace elsewhere, store, check. Owns their order, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sssd.errors import ExportError
from sssd.export.checkpoint import check_token_ids, refuse_quantized
from sssd.export.graph import GraphOptions
from sssd.export.hub import fetch, is_hub_id
from sssd.export.model_text import ModelText, read_json, read_text_files
from sssd.export.optimum import environment
from sssd.export.optimum.checking import check_traced
from sssd.export.optimum.job import MODEL_PART, PROBE_PART, TraceJob, own_version
from sssd.export.optimum.part import Asked, open_part, write_part
from sssd.export.optimum.refusals import refuse
from sssd.export.targets import Target
from sssd.spec import CHAT_TEMPLATE, TOKENIZER, Bundle, ScoreKind, WeightType, staged_directory, write_manifest


def export_traced(
    source: str | Path,
    out: Path,
    *,
    target: Target,
    weights: WeightType,
    max_len: int | None,
    draft_layers: int | None,
    scores: ScoreKind,
    force: bool,
    python: Path | None,
    progress: environment.Progress,
) -> Bundle:
    """Export any Hugging Face decoder; `python` is an interpreter that has sssd[optimum], None = this one.

    Tracing holds the whole model in float32, in the other process. Raises ExportError and its kinds, or MissingExtra;
    `out` is then as it was.
    """
    if target != "onnx":
        raise ExportError(f"--exporter optimum makes bundles for --target onnx only, not for {target}")
    directory, name = _directory(source)
    text = _text(directory)
    chosen = environment.interpreter(python)
    with staged_directory(out, force=force) as staged:
        with TemporaryDirectory(prefix="traced.", dir=staged) as scratch:
            job = TraceJob(own_version(), str(directory), scratch, draft_layers, max_len)
            environment.run(job, chosen, progress)
            part = open_part(Path(scratch) / MODEL_PART)
            check_token_ids(text, part.facts.vocab_size, str(directory))
            asked = Asked(name, weights, GraphOptions(part.facts.max_len, scores), text)
            manifest = write_part(staged, part, asked, part.weights)
            probe = open_part(Path(scratch) / PROBE_PART)
            checks = check_traced(probe, part, Bundle(staged, manifest), Path(scratch), progress)
        _write_text(staged, text)
        manifest = write_manifest(staged, replace(manifest, parity=checks))
    return Bundle(out, manifest)


def _directory(source: str | Path) -> tuple[Path, str]:
    """The model directory of a source and what a user calls it."""
    path = Path(source)
    if path.is_dir():
        return path.resolve(), path.resolve().name
    if isinstance(source, str) and not path.exists() and is_hub_id(source):
        return fetch(source).resolve(), source
    raise ExportError(f"{source} is no model directory: --exporter optimum reads Hugging Face directories and hub ids")


def _text(directory: Path) -> ModelText:
    """The text side of the model; refuses what is known not to work before anything is started."""
    config = read_json(directory / "config.json")
    refuse(config.text("model_type"), str(directory))
    refuse_quantized(config, directory)
    return read_text_files(directory, config, config.section("text_config") or config)


def _write_text(directory: Path, text: ModelText) -> None:
    (directory / TOKENIZER).write_text(text.tokenizer_json, encoding="utf-8")
    if text.chat_template is not None:
        (directory / CHAT_TEMPLATE).write_text(text.chat_template, encoding="utf-8")
