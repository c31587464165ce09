"""The bundle: what an exported model says about itself. Owns the manifest, its two revisions and the file hashes.

Knows neither how a graph is built nor how it is run. A bundle is a directory:

    manifest.json         a Manifest, written last
    model.onnx            the graph; its weights are external data
    weights.safetensors   every weight, by canonical name
    tokenizer.json        as the `tokenizers` package reads it
    chat_template.jinja   absent when the model has none
    NAME.plan             a TensorRT plan, and NAME.trt.onnx that it was built from, where one was asked for
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from sssd.architecture import Decoder
from sssd.errors import BundleError, ExportError, RevisionMismatch
from sssd.plan import PlanInfo

FORMAT_REVISION = 1  # rises when manifest.json changes in a way that an older reader would misread
LAYOUT_REVISION = 1  # rises when the graph's inputs, outputs or their meaning change

MANIFEST = "manifest.json"
GRAPH = "model.onnx"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"

WeightType = Literal["fp32", "fp16", "bf16", "int8", "int4", "fp8"]
ScoreKind = Literal["logits", "topk"]
Exporter = Literal["native", "optimum"]  # what made the graph: our own builder, or a trace of the model's own code


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of the graph."""

    name: str
    dtype: str  # numpy's name: int64, float32, bool, ...
    dims: tuple[int | str, ...]  # B rows, T columns, R scored columns, S cache length, or a number


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that a runtime has to know of an engine; nothing is guessed from the graph."""

    name: str  # what a user calls the model
    vocab_size: int  # rows of the embedding; ids are below it
    n_layers: int
    n_kv_heads: int
    head_dim: int
    max_len: int  # most tokens a slot can hold, prompt and output together
    kv_dtype: str
    weights: WeightType
    scores: ScoreKind  # "logits": all of them; "topk": the n_scores best and their log-sum-exp
    n_scores: int  # K of "topk"; vocab_size for "logits"
    eos_ids: tuple[int, ...]
    bos_id: int | None
    min_width: int  # narrowest width from which a column's scores no longer depend on the width
    # how far scores may be off at a column whose path does not stand in consecutive columns, since sums over keys then
    # round in another order: 0 = exact there too, None = unbounded (rounding is amplified by quantized activations)
    branch_noise: float | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token of one slot takes."""
        item = 4 if self.kv_dtype == "float32" else 2
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * item


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the bundle, as it was when the manifest was written."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class ParityCheck:
    """One comparison of the graph with the reference."""

    name: str
    max_abs_diff: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json."""

    format_revision: int
    layout_revision: int
    spec: EngineSpec
    decoder: Decoder | None  # None when the graph came from an exporter that declares no decoder
    source: str  # what was exported, without its directory
    notes: tuple[str, ...]  # choices that export made and a user may want to know
    tools: dict[str, str]  # package -> version
    parity: tuple[ParityCheck, ...]
    files: tuple[FileEntry, ...]
    plan: PlanInfo | None = None  # absent from bundles without one, and ignored by readers that know none


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk whose manifest has been read."""

    path: Path
    manifest: Manifest

    @property
    def spec(self) -> EngineSpec:
        """The engine's own facts."""
        return self.manifest.spec

    def file(self, name: str) -> Path:
        """Path of one of the bundle's files."""
        return self.path / name

    def has(self, name: str) -> bool:
        """Whether the manifest lists the file."""
        return any(entry.name == name for entry in self.manifest.files)


class _Revisions(msgspec.Struct):
    format_revision: int
    layout_revision: int


def open_bundle(path: str | Path) -> Bundle:
    """Read the manifest of a bundle, given the directory or any file inside it.

    Checks revisions and that every listed file is there with its size; hashes are `verify_files`' business.
    Raises BundleError or RevisionMismatch.
    """
    given = Path(path)
    directory = given.parent if given.is_file() else given
    if not directory.is_dir():
        raise BundleError(
            f"no bundle at {given}: give the directory that `sssd export --out` made, or a file inside it"
        )
    manifest = _read_manifest(directory / MANIFEST)
    problems = [_size_problem(directory, entry) for entry in manifest.files]
    if any(problems):
        raise BundleError(f"bundle {directory} is damaged: {'; '.join(p for p in problems if p)}; export it again")
    return Bundle(directory, manifest)


def _read_manifest(path: Path) -> Manifest:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{path.parent} is not a bundle: it has no {MANIFEST}; make one with `sssd export`") from None
    try:
        found = msgspec.json.decode(data, type=_Revisions)
        if (found.format_revision, found.layout_revision) != (FORMAT_REVISION, LAYOUT_REVISION):
            raise RevisionMismatch(
                f"{path.parent} has format revision {found.format_revision} and layout revision "
                f"{found.layout_revision}; this sssd reads {FORMAT_REVISION} and {LAYOUT_REVISION}: export it again"
            )
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as e:
        raise BundleError(f"{path} is not a manifest: {e}; export the model again") from None


def _size_problem(directory: Path, entry: FileEntry) -> str | None:
    try:
        size = (directory / entry.name).stat().st_size
    except FileNotFoundError:
        return f"{entry.name} is missing"
    return None if size == entry.size else f"{entry.name} has {size} bytes instead of {entry.size}"


def verify_files(bundle: Bundle) -> list[str]:
    """Every file whose sha256 differs from the manifest's, as one sentence each. Reads everything."""
    return [
        f"{entry.name}: sha256 is {found[:12]}..., the manifest says {entry.sha256[:12]}..."
        for entry in bundle.manifest.files
        if (found := _sha256(bundle.file(entry.name))) != entry.sha256
    ]


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Hash the directory's files and write manifest.json, last, by renaming; returns it with the file list."""
    names = sorted(p.name for p in directory.iterdir() if p.is_file() and p.name != MANIFEST)
    entries = tuple(FileEntry(n, (directory / n).stat().st_size, _sha256(directory / n)) for n in names)
    complete = replace(manifest, files=entries)
    staged = directory / (MANIFEST + ".new")
    staged.write_bytes(msgspec.json.format(msgspec.json.encode(complete), indent=2) + b"\n")
    staged.replace(directory / MANIFEST)
    return complete


@contextmanager
def staged_directory(out: Path, *, force: bool) -> Iterator[Path]:
    """A scratch directory beside `out` that becomes `out` when the block ends well, and vanishes otherwise.

    Raises ExportError when `out` exists and `force` is off, or holds something that is not a bundle.
    """
    if out.exists():
        if not force:
            raise ExportError(f"{out} exists: give another --out, or --force to replace it")
        if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST).exists()):
            raise ExportError(f"{out} exists and is not a bundle: --force replaces bundles only; give another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as e:
        raise ExportError(f"cannot write beside {out}: {e.strerror}; give an --out that is writable") from None
    try:
        yield staged
        _swap(staged, out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _swap(staged: Path, out: Path) -> None:
    staged.chmod(0o755)
    if not out.exists():
        staged.rename(out)
        return
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    out.rename(old)
    staged.rename(out)
    shutil.rmtree(old)
