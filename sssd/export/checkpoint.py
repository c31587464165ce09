"""From what a user names (a directory, a .gguf file, a hub id) to an opened, checked Checkpoint.

Owns the order of reading and the checks across files; knows neither the file formats nor any one family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sssd.architecture import Decoder
from sssd.errors import ExportError, UnsupportedModel
from sssd.export.config_fields import Config
from sssd.export.families import REQUIRED, Family, family_of
from sssd.export.gguf_families import architecture_of, gguf_config
from sssd.export.gguf_reader import read_gguf
from sssd.export.gguf_tokenizer import read_gguf_text
from sssd.export.gguf_weights import GgufTensors
from sssd.export.hub import fetch, is_hub_id
from sssd.export.model_text import ModelText, read_json, read_text_files, token_count
from sssd.export.naming import Naming, RawTensors, bind
from sssd.export.ropes import positions_allowed, rope_note
from sssd.export.safetensors_reader import open_safetensors
from sssd.export.source import Checkpoint


def open_checkpoint(source: str | Path, *, max_len: int | None = None, draft_layers: int | None = None) -> Checkpoint:
    """Open a Hugging Face directory, a .gguf file or a hub id `organisation/name`, and check that it is complete.

    `max_len` is the number of positions to export, by default all that the model was made for; `draft_layers` keeps
    the first layers only. Reads headers and text files, no weights. Raises ExportError for a source that is absent,
    damaged, incomplete or does not fit the options, UnsupportedModel for what sssd does not export, and MissingExtra.
    """
    path = Path(source)
    if path.is_dir():
        parts = _read_directory(path, path.resolve().name)
    elif path.is_file():
        parts = _read_file(path)
    elif isinstance(source, str) and is_hub_id(source):
        parts = _read_directory(fetch(source), source)
    else:
        raise ExportError(f"{source} does not exist: give a model directory, a .gguf file or a hub id like org/name")
    return _assemble(parts, max_len, draft_layers)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a reader found, before it is checked."""

    name: str
    where: str
    config: Config  # of the text decoder, with the family's defaults
    decoder: Callable[[Config, int], Decoder]
    naming: Naming
    tensors: RawTensors
    text: ModelText


def _read_directory(path: Path, name: str) -> _Parts:
    if not (path / "config.json").is_file():
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        hint = (
            f": name the file itself, one of {', '.join(ggufs)}" if ggufs else ": give a Hugging Face model directory"
        )
        raise ExportError(f"{path} has no config.json{hint}")
    config = read_json(path / "config.json")
    refuse_quantized(config, path)
    model_type = config.text("model_type")
    family = family_of(model_type)
    decoder_config = _decoder_config(config, family, model_type)
    tensors = open_safetensors(path)
    text = read_text_files(path, config, decoder_config)
    naming = _naming_in_use(family, tensors)
    return _Parts(name, str(path), decoder_config, family.decoder, naming, tensors, text)


def _decoder_config(config: Config, family: Family, model_type: str) -> Config:
    section = config if family.section is None else config.section(family.section)
    if section is None:
        raise ExportError(f"{config.where} lacks {family.section}: a {model_type} model keeps its text decoder there")
    return section.over({"model_type": model_type, **family.defaults})


def _naming_in_use(family: Family, tensors: RawTensors) -> Naming:
    found = tensors.shapes()
    return next((n for n in family.namings if f"{n.embed}.weight" in found), family.namings[0])


def _read_file(path: Path) -> _Parts:
    if path.suffix == ".safetensors":
        raise ExportError(f"{path} is one file of a model: give the directory that holds it with its config.json")
    file = read_gguf(path)
    architecture = architecture_of(file)
    tensors = GgufTensors(file)
    family = family_of(architecture.family)
    config = gguf_config(file, tensors).over(family.defaults)
    return _Parts(path.stem, str(path), config, family.decoder, architecture.naming, tensors, read_gguf_text(file))


def _assemble(parts: _Parts, max_len: int | None, draft_layers: int | None) -> Checkpoint:
    parts.config.require(REQUIRED)
    allowed = positions_allowed(parts.config)
    length = allowed if max_len is None else max_len
    if not 1 <= length <= allowed:
        raise ExportError(f"max_len {length} is not possible: {parts.name} was made for 1 to {allowed} positions")
    decoder = parts.decoder(parts.config, length)
    n_layers = len(decoder.layers)
    if draft_layers is not None and not 1 <= draft_layers <= n_layers:
        raise ExportError(
            f"draft_layers {draft_layers} is not possible: {parts.name} has 1 to {n_layers} layers to keep"
        )
    weights = bind(parts.tensors, decoder, parts.naming, where=parts.where, n_layers=draft_layers)
    check_token_ids(parts.text, decoder.vocab_size, parts.where)
    notes = [rope_note(parts.config, length)]
    if decoder.tied and f"{parts.naming.lm_head}.weight" in parts.tensors.shapes():
        notes.append(f"{parts.naming.lm_head}.weight is not read: the config ties the head to the embedding")
    if not parts.text.eos_ids:
        notes.append("no end-of-text token is declared")
    if draft_layers is not None:
        decoder = replace(decoder, layers=decoder.layers[:draft_layers])
        notes.append(f"the first {draft_layers} of {n_layers} layers")
    return Checkpoint(
        name=parts.name,
        decoder=decoder,
        weights=weights,
        max_len=length,
        eos_ids=parts.text.eos_ids,
        bos_id=parts.text.bos_id,
        tokenizer_json=parts.text.tokenizer_json,
        chat_template=parts.text.chat_template,
        notes=tuple(note for note in notes if note is not None),
    )


def refuse_quantized(config: Config, path: Path) -> None:
    """Raise UnsupportedModel for a directory whose weights are codes of some scheme."""
    if config.has("quantization_config"):
        raise UnsupportedModel(
            f"{path} is quantized (quantization_config): export the unquantized model, or a .gguf file"
        )


def check_token_ids(text: ModelText, vocab_size: int, where: str) -> None:
    """Raise ExportError where the tokenizer has tokens that the embedding has not."""
    n_tokens = token_count(text.tokenizer_json, where)
    if n_tokens > vocab_size:
        raise ExportError(
            f"{where}: the tokenizer has {n_tokens} tokens, the embedding only {vocab_size}: "
            "give the tokenizer that belongs to the model"
        )
    ends = {"bos": (text.bos_id,), "eos": text.eos_ids}
    outside = [f"{name} {i}" for name, ids in ends.items() for i in ids if i is not None and i >= vocab_size]
    if outside:
        raise ExportError(f"{where}: {', '.join(outside)}: token ids must be below {vocab_size}")
