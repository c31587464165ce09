"""What a checkpoint says about text: tokenizer, chat template, the ids that begin and end a text.

Owns the text files of a Hugging Face directory and the size of a tokenizer; knows no weights and no hyperparameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sssd.errors import ExportError
from sssd.export.config_fields import Config


class ModelText(NamedTuple):
    """The text side of a checkpoint."""

    tokenizer_json: str
    chat_template: str | None  # Jinja
    bos_id: int | None
    eos_ids: tuple[int, ...]


def read_json(path: Path) -> Config:
    """A JSON object as a Config. Raises ExportError when the file is absent or no JSON object."""
    if not path.is_file():
        raise ExportError(f"{path.parent} has no {path.name}: it is needed to export a model directory")
    try:
        values = json.loads(_read(path))
    except ValueError as error:
        raise ExportError(f"{path} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ExportError(f"{path} holds a {type(values).__name__}: a JSON object is needed")
    return Config(values, str(path))


def read_text_files(directory: Path, config: Config, decoder_config: Config) -> ModelText:
    """The text side of a model directory; `decoder_config` may be a section of `config` and is asked second.

    Raises ExportError when tokenizer.json is absent, or a file is malformed.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        hint = " (tokenizer.model alone is not read)" if (directory / "tokenizer.model").is_file() else ""
        raise ExportError(f"{directory} has no tokenizer.json{hint}: save the model's fast tokenizer beside it")
    tokenizer_config = _optional_json(directory / "tokenizer_config.json")
    generation = _optional_json(directory / "generation_config.json")
    configs = (generation, config, decoder_config)
    bos_ids = _first_ids(configs, "bos_token_id")
    return ModelText(
        tokenizer_json=_read(path),
        chat_template=_chat_template(directory, tokenizer_config),
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=_first_ids(configs, "eos_token_id"),
    )


def token_count(tokenizer_json: str, where: str) -> int:
    """One more than the largest token id of a tokenizer.json. Raises ExportError when it is malformed."""
    try:
        tokenizer = json.loads(tokenizer_json)
        vocab = tokenizer["model"]["vocab"]
        last = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
        return 1 + max((last, *(int(token["id"]) for token in tokenizer.get("added_tokens") or ())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{where}: tokenizer.json is malformed: save the model's fast tokenizer again") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is no UTF-8 text: download or save it again") from error


def _optional_json(path: Path) -> Config:
    return read_json(path) if path.is_file() else Config({}, str(path))


def _first_ids(configs: Iterable[Config], name: str) -> tuple[int, ...]:
    return next((config.ids(name) for config in configs if config.has(name)), ())


def _chat_template(directory: Path, tokenizer_config: Config) -> str | None:
    """chat_template.jinja, or the older chat_template.json, or what tokenizer_config.json holds."""
    jinja = directory / "chat_template.jinja"
    if jinja.is_file():
        return _read(jinja)
    for config in (_optional_json(directory / "chat_template.json"), tokenizer_config):
        if config.has("chat_template"):
            named = config.named_texts("chat_template")
            if "default" not in named:
                raise ExportError(f"{config.where}: chat_template names {', '.join(named)}, one must be called default")
            return named["default"]
    return None
