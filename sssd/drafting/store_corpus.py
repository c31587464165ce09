"""Reading a corpus: JSONL, plain text, directories, standard input; tokenizing in batches. Owns what is a document.

Knows nothing of tokenizers beyond a callable, nor of datastores.

A JSONL line gives one document for its `text`, one for each stored turn of its `messages`, or one for each `answer`. A
plain text file is one document. A document of more than MOST_CHARACTERS is cut at the last line break before that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from sssd.drafting.store_file import explained
from sssd.errors import DatastoreError
from sssd.types import Int32

Turns = Literal["assistant", "all"]  # which messages are stored: a model's own answers draft best
InputFormat = Literal["jsonl", "text"]
Encode = Callable[[list[str]], Sequence[Sequence[int]]]

MOST_CHARACTERS = 1 << 20
STANDARD_INPUT = "-"
_BATCH_CHARACTERS = 1 << 20  # handed to the tokenizer at once
_JSONL = (".jsonl", ".ndjson")


def read_corpus(
    inputs: Sequence[str], *, turns: Turns = "assistant", stdin_format: InputFormat = "jsonl"
) -> Iterator[str]:
    """The documents of `inputs`: files, directories (every file below, sorted, hidden ones left out) or "-".

    *.jsonl and *.ndjson are JSONL, every other file is plain text. Raises DatastoreError, naming file and line, for
    what cannot be read; the inputs' existence is checked before the first document is given.
    """
    files = [file for given in inputs for file in _files_of(given)]
    return chain.from_iterable(_documents_of(file, turns, stdin_format) for file in files)


def tokenize(texts: Iterable[str], encode: Encode) -> Iterator[Int32]:
    """Token ids of each text, in order; `encode` sees about a million characters at once."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield from _encoded(batch, encode)
            batch, size = [], 0
    if batch:
        yield from _encoded(batch, encode)


def _encoded(batch: list[str], encode: Encode) -> Iterator[Int32]:
    rows = encode(batch)
    assert len(rows) == len(batch)
    return (np.asarray(row, np.int32) for row in rows)


def _files_of(given: str) -> list[str]:
    if given == STANDARD_INPUT:
        return [given]
    path = Path(given)
    if path.is_dir():
        below = (file for file in path.rglob("*") if file.is_file())
        seen = sorted(f for f in below if not any(part.startswith(".") for part in f.relative_to(path).parts))
        if not seen:
            raise DatastoreError(f"{path} holds no files: give a directory with .jsonl or text files")
        return [str(file) for file in seen]
    if not path.exists():
        raise DatastoreError(f"{path} does not exist: give a .jsonl file, a text file, a directory or - for stdin")
    return [given]


def _documents_of(name: str, turns: Turns, stdin_format: InputFormat) -> Iterator[str]:
    if name == STANDARD_INPUT:
        yield from _read(sys.stdin, "standard input", stdin_format == "jsonl", turns)
        return
    with explained(Path(name), "read"), Path(name).open(encoding="utf-8", newline="") as file:
        yield from _read(file, name, name.endswith(_JSONL), turns)


def _read(file: IO[str], name: str, jsonl: bool, turns: Turns) -> Iterator[str]:
    try:
        if jsonl:
            for number, line in enumerate(file, 1):
                if line.strip():
                    for text in _texts_of(line, f"{name}:{number}", turns):
                        yield from _pieces(text)
        else:
            yield from _text_pieces(file)
    except UnicodeDecodeError as error:
        raise DatastoreError(f"{name} is not UTF-8 text ({error.reason}): give .jsonl or text files") from error


def _texts_of(line: str, where: str, turns: Turns) -> list[str]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DatastoreError(f"{where} is not JSON ({error}): a .jsonl file has one object a line") from error
    if isinstance(record, dict):
        if isinstance(record.get("text"), str):
            return [record["text"]]
        if isinstance(record.get("messages"), list):
            return [_content(m, where) for m in record["messages"] if turns == "all" or _role(m, where) == "assistant"]
        answers = [record["answer"]] if isinstance(record.get("answer"), str) else record.get("answer")
        if isinstance(answers, list) and all(isinstance(answer, str) for answer in answers):
            asked = [record["prompt"]] if turns == "all" and isinstance(record.get("prompt"), str) else []
            return [*asked, *answers]
    raise DatastoreError(
        f"{where} has no text (string), messages (list) or answer (string or list): give one of them in each record"
    )


def _role(message: Any, where: str) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise DatastoreError(f"{where} has a message without a role: give role and content in each message")
    return str(message["role"])


def _content(message: Any, where: str) -> str:
    """A message's text: its content string or the text parts of its content list; nothing for tool calls alone."""
    _role(message, where)
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    raise DatastoreError(f"{where} has a message whose content is no text: give a string or a list of text parts")


def _pieces(text: str) -> Iterator[str]:
    while len(text) > MOST_CHARACTERS:
        cut = text.rfind("\n", 0, MOST_CHARACTERS) + 1 or MOST_CHARACTERS
        yield text[:cut]
        text = text[cut:]
    yield text


def _text_pieces(file: IO[str]) -> Iterator[str]:
    """A text file's pieces, read a piece at a time."""
    held = ""
    while more := file.read(MOST_CHARACTERS):
        held += more
        *whole, held = _pieces(held)
        yield from whole
    yield held
