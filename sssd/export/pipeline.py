"""From a checkpoint to a bundle: storage, weights file, graph, parity, manifest. Owns their order, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sssd.architecture import Decoder
from sssd.engines.ort import OrtEngine
from sssd.engines.stored import StoredWeights
from sssd.errors import BundleError, ExportError, MissingExtra
from sssd.export.graph import (
    SPARE_POSITIONS,
    GraphOptions,
    build_graph,
    cache_shape,
    input_specs,
    output_specs,
    rope_tables,
    table_tensors,
)
from sssd.export.half import half_graph
from sssd.export.parity import N_SLOTS, compare, observe
from sssd.export.rebuild import is_bundle, rebuild_plan
from sssd.export.source import Checkpoint
from sssd.export.storage import Weight, choose_storage, encode, notes, tensors
from sssd.export.targets import TARGETS, Target, form_for, range_notes, weights_for
from sssd.export.tensorrt.plan_bundle import add_plan, require_builder
from sssd.export.weights import Layout, Tensor, plan_layout, write_weights
from sssd.plan import PlanOptions
from sssd.spec import (
    CHAT_TEMPLATE,
    FORMAT_REVISION,
    GRAPH,
    LAYOUT_REVISION,
    TOKENIZER,
    WEIGHTS,
    Bundle,
    EngineSpec,
    Exporter,
    Manifest,
    ParityCheck,
    ScoreKind,
    WeightType,
    open_bundle,
    staged_directory,
    verify_files,
    write_manifest,
)

Progress = Callable[[str, int, int], None]  # (stage, done so far, in all)
Stored = dict[str, Weight]


def branch_noise(weights: WeightType) -> float | None:
    """How far ONNX Runtime's CPU scores may be off where a path is not stored in consecutive columns.

    Seen over real prompts: 6e-5 with float32 activations. int8 and int4 kernels quantize activations, which turns a
    last-bit difference into whole logits.
    """
    return None if weights in ("int8", "int4") else 0.005


MIN_WIDTH = 2  # seen on ONNX Runtime's CPU: from here on a column's scores are the same bits at every width


def silent(stage: str, done: int, of: int) -> None:
    """A Progress that shows nothing."""


def export_model(
    source: str | Path,
    out: str | Path,
    *,
    target: Target = "onnx",
    weights: WeightType | None = None,
    max_len: int | None = None,
    draft_layers: int | None = None,
    scores: ScoreKind | None = None,
    plan: PlanOptions | None = None,
    exporter: Exporter = "native",
    optimum_python: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export a checkpoint (a Hugging Face directory, a .gguf file or a hub id) to a bundle directory.

    With the target "tensorrt" the source may be a bundle made for it: then only its plan is built anew.
    `weights` and `scores` are the target's own where not given. `max_len` lowers the tokens that a slot can hold;
    `draft_layers` keeps only the first layers, for a draft model; `plan` goes with the target "tensorrt". The native
    exporter writes the families that it declares; "optimum" traces any other Hugging Face decoder, for the target
    "onnx", in the interpreter `optimum_python` or this one. Writing holds one weight at a time; parity then loads the
    graph as an engine does. Raises ExportError and its kinds, or MissingExtra; `out` is then as it was.
    """
    from sssd.export.checkpoint import open_checkpoint

    chosen = weights_for(target, weights)
    if plan is not None and target != "tensorrt":
        raise ExportError(f"plan options go with --target tensorrt, not with {target}")
    options = (plan or PlanOptions()) if target == "tensorrt" else None
    report = progress or silent
    _require_packages()
    if options is not None and is_bundle(source):
        if draft_layers is not None or scores is not None:
            raise ExportError(f"{source} is a bundle: its layers and scores are what they are; export its checkpoint")
        return rebuild_plan(
            Path(source), Path(out), plan=options, weights=weights, max_len=max_len, force=force, progress=report
        )
    if options is not None:
        require_builder(options)
    if exporter == "optimum":
        from sssd.export.optimum.pipeline import export_traced

        return export_traced(
            source,
            Path(out),
            target=target,
            weights=chosen,
            scores=scores or TARGETS[target].scores,
            max_len=max_len,
            draft_layers=draft_layers,
            force=force,
            python=None if optimum_python is None else Path(optimum_python),
            progress=report,
        )
    if optimum_python is not None:
        raise ExportError(f"optimum_python {optimum_python} is for the exporter optimum, the exporter is {exporter}")
    checkpoint = open_checkpoint(source, max_len=max_len, draft_layers=draft_layers)
    return write_bundle(
        checkpoint,
        Path(out),
        target=target,
        weights=chosen,
        scores=scores or TARGETS[target].scores,
        plan=options,
        force=force,
        progress=report,
    )


def write_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    weights: WeightType,
    scores: ScoreKind,
    force: bool,
    target: Target = "onnx",
    plan: PlanOptions | None = None,
    progress: Progress = silent,
) -> Bundle:
    """Write a bundle beside `out`, check it, and rename it; nothing is left where any of this fails."""
    decoder = checkpoint.decoder
    options = GraphOptions(max_len=checkpoint.max_len, scores=scores)
    with staged_directory(out, force=force) as staged:
        form = form_for(target, weights, decoder, checkpoint.weights)
        stored = choose_storage(decoder, checkpoint.weights, weights, form)
        layout = _write_weights(staged, checkpoint, stored, options, progress)
        graph = build_graph(decoder, stored, layout.tensors, options)
        (staged / GRAPH).write_bytes(graph.SerializeToString())
        (staged / TOKENIZER).write_text(checkpoint.tokenizer_json, encoding="utf-8")
        if checkpoint.chat_template is not None:
            (staged / CHAT_TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")
        manifest = _manifest(checkpoint, stored, weights, options)
        checks = _parity(Bundle(staged, manifest), decoder, progress)
        manifest = replace(manifest, parity=checks, notes=(*manifest.notes, *range_notes(form, decoder)))
        if target == "onnx-cuda":
            (staged / GRAPH).write_bytes(half_graph(graph, "float16").SerializeToString())
            manifest = replace(manifest, spec=in_float16(manifest.spec))
        elif plan is not None:
            manifest = add_plan(staged, out.resolve().name, manifest, plan, None, progress)
        manifest = write_manifest(staged, manifest)
    return Bundle(out, manifest)


def in_float16(spec: EngineSpec) -> EngineSpec:
    """The spec of a bundle whose graph computes in float16: its caches are float16, too."""
    inputs, outputs = (
        tuple(replace(t, dtype="float16") if "S" in t.dims else t for t in specs)
        for specs in (spec.inputs, spec.outputs)
    )
    return replace(spec, kv_dtype="float16", inputs=inputs, outputs=outputs)


def check_bundle(bundle: str | Path, *, progress: Progress | None = None) -> tuple[ParityCheck, ...]:
    """Hash a bundle's files and compare its graph with the reference again.

    Empty for a bundle that declares no decoder: there is nothing to compare with. Raises BundleError naming every
    file that differs, or ParityError.
    """
    opened = open_bundle(bundle)
    wrong = verify_files(opened)
    if wrong:
        raise BundleError(f"bundle {opened.path} is damaged: {'; '.join(wrong)}; export it again")
    decoder = opened.manifest.decoder
    return () if decoder is None else _parity(opened, decoder, progress or silent)


def _parity(bundle: Bundle, decoder: Decoder, progress: Progress) -> tuple[ParityCheck, ...]:
    progress("parity", 0, 2)
    engine = OrtEngine(bundle, n_slots=N_SLOTS, exact=True)
    observations = observe(engine)
    engine.close()  # before the reference needs the memory
    progress("parity", 1, 2)
    in_half = bundle.spec.kv_dtype == "float16"
    checks = compare(observations, decoder, StoredWeights(bundle.file(WEIGHTS)).load, in_float16=in_half)
    progress("parity", 2, 2)
    return checks


def _write_weights(
    directory: Path, checkpoint: Checkpoint, stored: Stored, options: GraphOptions, progress: Progress
) -> Layout:
    tables = table_tensors(checkpoint.decoder, options)
    layout = plan_layout([*(t for weight in stored.values() for t in tensors(weight)), *tables])
    try:
        write_weights(directory / WEIGHTS, layout, _arrays(checkpoint, stored, options, progress))
    except OSError as e:
        raise ExportError(f"cannot write {layout.n_bytes:,} bytes of weights: {e.strerror}; free some space") from e
    return layout


def _arrays(
    checkpoint: Checkpoint, stored: Stored, options: GraphOptions, progress: Progress
) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    for done, weight in enumerate(stored.values()):
        progress("weights", done, len(stored))
        yield from encode(weight, checkpoint.weights)
    positions = options.max_len + SPARE_POSITIONS
    tables = [table for rope in checkpoint.decoder.ropes for table in rope_tables(rope, positions)]
    yield from zip(table_tensors(checkpoint.decoder, options), tables, strict=True)
    progress("weights", len(stored), len(stored))


def _manifest(checkpoint: Checkpoint, stored: Stored, weights: WeightType, options: GraphOptions) -> Manifest:
    decoder = checkpoint.decoder
    spec = EngineSpec(
        name=checkpoint.name,
        vocab_size=decoder.vocab_size,
        n_layers=len(decoder.layers),
        n_kv_heads=decoder.n_kv_heads,
        head_dim=decoder.head_dim,
        max_len=options.max_len,
        kv_dtype="float32",
        weights=weights,
        scores=options.scores,
        n_scores=decoder.vocab_size if options.scores == "logits" else options.n_scores,
        eos_ids=checkpoint.eos_ids,
        bos_id=checkpoint.bos_id,
        min_width=MIN_WIDTH,
        branch_noise=branch_noise(weights),
        inputs=input_specs(cache_shape(decoder)),
        outputs=output_specs(cache_shape(decoder), decoder.vocab_size, options),
    )
    return Manifest(
        format_revision=FORMAT_REVISION,
        layout_revision=LAYOUT_REVISION,
        spec=spec,
        decoder=decoder,
        source=checkpoint.name,
        notes=(*checkpoint.notes, *notes(stored, weights)),
        tools={name: import_module(name).__version__ for name in ("sssd", "numpy", "onnx", "onnxruntime")},
        parity=(),
        files=(),
    )


def _require_packages() -> None:
    """Before anything is read or written."""
    for module, extra in (("onnx", "export"), ("ml_dtypes", "export"), ("onnxruntime", "cpu")):
        if find_spec(module) is None:
            raise MissingExtra(module, extra)
