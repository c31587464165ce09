"""From an answer's text to its tool calls, as it streams. A pure state machine over a buffer.

What it says joined together is the same however the text is cut into pieces. Knows formats as tool_formats.py declares
them; no JSON bodies of the API, no tokens.

    text  --opening mark, or a bracket where calls may stand bare--> frame
    frame --a call's head--> arguments --> tail --> frame
    frame --closing mark, or anything that is no call--> text
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from sssd.server.tool_formats import ToolFormat, arguments_text

_LETTERS = string.ascii_letters + string.digits
_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL)
_FIRST_KEY = re.compile(r'\{\s*(?:"([^"]*)"|[^\s"])')
_CALL_KEYS = ("name", "arguments", "parameters", "type", "function", "id")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of one call."""

    index: int  # of the call within the answer
    id: str | None  # with the call's first piece only
    name: str | None  # with the call's first piece only
    arguments: str  # JSON text, to be joined


@dataclass(frozen=True, slots=True)
class Read:
    """What became certain: text that is no call, and pieces of calls."""

    content: str
    calls: tuple[CallPiece, ...]


class ToolCallReader:
    """Reads one answer. `names` are the tools that may be called: an object that stands bare must name one."""

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._form = form
        self._names = names
        self._mode: Literal["text", "frame", "arguments", "tail"] = "text"
        self._buffer = ""  # not certain yet
        self._raw: str | None = ""  # what a frame has taken before its first call, content if none comes; then None
        self._bare = False  # this frame has no opening mark
        self._blank = True  # nothing but white space since the beginning, or since a call
        self._scan = _Scan()
        self._content: list[str] = []
        self._pieces: list[CallPiece] = []
        self.n_calls = 0

    def push(self, text: str) -> Read:
        """Read on; what is certain now."""
        self._buffer += text
        steps = {"text": self._text, "frame": self._frame, "arguments": self._arguments, "tail": self._tail}
        while self._buffer and steps[self._mode]():
            pass
        return self._read()

    def finish(self) -> Read:
        """The end of the answer. What may have become a call and did not is content."""
        if self._mode == "text" and not (self._blank and self.n_calls):
            self._content.append(self._buffer)
        elif self._mode == "frame" and self._raw is not None:
            self._content.append(self._raw + self._buffer)
        self._buffer = ""
        return self._read()

    def _read(self) -> Read:
        read = Read("".join(self._content), tuple(self._pieces))
        self._content, self._pieces = [], []
        return read

    # ---- one step in each mode: whether there is more to do ----------------------------------------

    def _text(self) -> bool:
        form, mark = self._form, self._form.opening.strip()
        rest = self._buffer.lstrip()
        if self._blank and not rest:
            return False
        if self._blank and mark and mark.startswith(rest):
            return False
        marked = bool(mark) and rest.startswith(mark)
        if self._blank and form.bare and not marked and rest[0] == ("[" if form.listed else "{"):
            return self._open(self._buffer, rest, bare=True)
        at = self._buffer.find(mark) if mark else -1
        if at >= 0:
            if self._buffer[:at].strip() or not self._blank:
                self._content.append(self._buffer[:at])
            return self._open(mark, self._buffer[at + len(mark) :], bare=False)
        if self._blank and self.n_calls:
            self._buffer = rest
        keep = _overlap(self._buffer, mark)
        sure = len(self._buffer) - keep
        self._content.append(self._buffer[:sure])
        self._blank = self._blank and not sure
        self._buffer = self._buffer[sure:]
        return False

    def _open(self, raw: str, rest: str, *, bare: bool) -> bool:
        self._mode, self._bare = "frame", bare
        self._raw, self._buffer = (raw[: len(raw) - len(rest)] if bare else raw), rest
        return True

    def _frame(self) -> bool:
        form, closing = self._form, self._form.closing.strip()
        skipped = len(self._buffer) - len(self._buffer.lstrip(" \t\r\n" + ("[,]" if form.listed else ";")))
        rest = self._buffer[skipped:]
        if self._raw is not None:
            self._raw += self._buffer[:skipped]
        self._buffer = rest
        if not rest:
            return False
        if rest[0] == "{":
            return self._head(rest)
        if closing and rest.startswith(closing):
            return self._close(rest[len(closing) :])
        if closing and closing.startswith(rest):
            return False
        return self._close(rest)

    def _close(self, rest: str) -> bool:
        """Back to text; a frame without a call was text all along."""
        if self._raw is not None:
            self._content.append(self._raw + self._buffer[: len(self._buffer) - len(rest)])
        self._blank = self._raw is None
        self._mode, self._buffer, self._raw = "text", rest, ""
        return True

    def _head(self, rest: str) -> bool:
        head = _HEAD.match(rest)
        if head is not None:
            name = _loads(head[1])
            if isinstance(name, str) and (not self._bare or name in self._names):
                return self._begin(name, rest[head.end() :], "arguments")
            return self._no_call()
        whole = _object(rest)
        if whole is not None:
            call, end = whole
            name = call.get("name")
            if isinstance(name, str) and (not self._bare or name in self._names):
                self._begin(name, rest[end:], "frame")
                self._add(arguments_text(call.get("arguments", call.get("parameters", {}))))
                return True
            return self._no_call()
        first = _FIRST_KEY.match(rest)
        return self._no_call() if self._bare and first is not None and first[1] not in _CALL_KEYS else False

    def _no_call(self) -> bool:
        """The object is content, and what follows it text."""
        self._content.append((self._raw or "") + self._buffer[:1])
        self._mode, self._raw, self._buffer, self._blank = "text", "", self._buffer[1:], False
        return True

    def _begin(self, name: str, rest: str, mode: Literal["frame", "arguments"]) -> bool:
        self._pieces.append(CallPiece(self.n_calls, _new_id(), name, ""))
        self.n_calls += 1
        self._mode, self._raw, self._buffer, self._scan = mode, None, rest, _Scan()
        return True

    def _add(self, arguments: str) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.index == self.n_calls - 1:
            self._pieces[-1] = CallPiece(last.index, last.id, last.name, last.arguments + arguments)
        else:
            self._pieces.append(CallPiece(self.n_calls - 1, None, None, arguments))

    def _arguments(self) -> bool:
        end = self._scan.end_of(self._buffer)
        if end is None:
            self._add(self._buffer)
            self._buffer = ""
            return False
        self._add(self._buffer[:end])
        self._mode, self._buffer, self._scan = "tail", self._buffer[end:], _Scan(depth=1)
        return True

    def _tail(self) -> bool:
        end = self._scan.end_of(self._buffer)
        if end is None:
            self._buffer = ""
            return False
        self._mode, self._buffer = "frame", self._buffer[end:]
        return True


class _Scan:
    """Finds where a JSON object ends, piece by piece."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = self._escaped = False

    def end_of(self, text: str) -> int | None:
        """The place behind the bracket that closes the first one; None when it is not in this piece."""
        for i, c in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = c == "\\", c != '"'
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return None


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


def _new_id() -> str:
    """Nine letters and digits: templates of Mistral insist on that, no other minds."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def _loads(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return None


def _object(text: str) -> tuple[dict[str, object], int] | None:
    """The JSON object that the text begins with, and where it ends; None when it is not complete."""
    end = _Scan().end_of(text)
    if end is None:
        return None
    parsed = _loads(text[:end])
    return (parsed if isinstance(parsed, dict) else {}), end
