"""Text and token ids: tokenizer, chat template, incremental detokenizer, stop strings.

The only file that turns ids into text. Knows no engine and no drafter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sssd.errors import BundleError, RequestError
from sssd.spec import CHAT_TEMPLATE, TOKENIZER, Bundle


def _byte_characters() -> dict[str, int]:
    """The characters under which byte-level tokenizers keep bytes in their vocabulary: printable ones as they are."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_characters()


class ToolCall(NamedTuple):
    """A tool that an assistant's message calls."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str  # "system", "user", "assistant", or "tool" for what a call gave back
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str | None = None  # of a tool: which call this answers
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates know messages: what is not there has no key."""
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in self.tool_calls
        ]
        others = {"tool_calls": calls, "tool_call_id": self.tool_call_id, "name": self.name}
        return {"role": self.role, "content": self.content} | {k: v for k, v in others.items() if v}


class Tokenizer:
    """A bundle's tokenizer.json and chat template. Raises BundleError when either cannot be read."""

    def __init__(self, bundle: Bundle) -> None:
        from tokenizers import Tokenizer as Core

        self._path = bundle.file(TOKENIZER)
        try:
            self._core = Core.from_file(str(self._path))
        except Exception as e:  # the package raises plain Exception
            raise BundleError(f"{self._path} is not a tokenizer: {e}; export the model again") from None
        self._eos_ids = bundle.spec.eos_ids
        self._bos_id = bundle.spec.bos_id
        self._byte_level = "ByteLevel" in str(self._core.decoder)
        self._template = bundle.file(CHAT_TEMPLATE).read_text("utf-8") if bundle.has(CHAT_TEMPLATE) else None

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat_prompt` can work."""
        return self._template is not None

    def fingerprint(self) -> str:
        """sha256 of the vocabulary: equal for tokenizers that give every id the same meaning."""
        vocab = sorted(self._core.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        return hashlib.sha256("\0".join(f"{i}\0{token}" for token, i in vocab).encode()).hexdigest()

    def to_json(self) -> str:
        """The whole of it as a tokenizer.json."""
        return str(self._core.to_str())

    def tokens(self) -> dict[int, str]:
        """The vocabulary: what each id is."""
        return {i: token for token, i in self._core.get_vocab(with_added_tokens=True).items()}

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids; `special` lets the tokenizer add what it adds by itself (a BOS, for most)."""
        return list(self._core.encode(text, add_special_tokens=special).ids)

    def encode_all(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Token ids of many texts at once, on all cores."""
        return [list(e.ids) for e in self._core.encode_batch_fast(list(texts), add_special_tokens=special)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text, without special tokens unless told otherwise; bytes that are no UTF-8 become U+FFFD."""
        return str(self._core.decode(list(ids), skip_special_tokens=skip_special))

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the text, by itself; a special token's bytes are its name's."""
        name = self._core.id_to_token(token)
        if name is None:
            return b""
        if self._byte_level:
            found = [_BYTES.get(c) for c in name]
            return name.encode() if None in found else bytes(b for b in found if b is not None)
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        return str(name).replace("▁", " ").encode()

    def token_text(self, token: int) -> str:
        """A token by itself as text; what is no UTF-8 is shown as OpenAI shows it, such as "bytes:\\xe2\\x82"."""
        data = self.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in data)

    @property
    def chat_template(self) -> str:
        """The template's text, "" without one."""
        return self._template or ""

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = {},
        generation_prompt: bool = True,
    ) -> str:
        """The conversation as the model's template writes it, up to where the assistant speaks.

        `tools` are functions in OpenAI's JSON, {"type": "function", "function": {"name", "description", "parameters"}};
        `variables` are what else the template may read, such as enable_thinking.
        The text holds its own special tokens: encode it with `special=False`. Raises RequestError when the bundle has
        no template or the template refuses the messages.
        """
        if self._template is None:
            raise RequestError(
                "the bundle has no chat template: give a plain prompt, or export a chat model", param="messages"
            )
        own = {
            "messages": [m.for_template() for m in messages],
            "tools": list(tools) or None,
            "add_generation_prompt": generation_prompt,
            "bos_token": self._special(self._bos_id),
            "eos_token": self._special(self._eos_ids[0] if self._eos_ids else None),
        }
        taken = sorted(own.keys() & variables.keys())
        if taken:
            raise RequestError(
                f"a chat template's variable cannot be {taken[0]!r}: the request itself sets it",
                param="chat_template_kwargs",
            )
        try:
            return str(_environment().from_string(self._template).render(own | dict(variables)))
        except Exception as e:  # the template is a program of others: given what it did not expect, it fails anyhow
            why = " ".join(str(e).split())
            raise RequestError(f"the chat template refuses these messages: {why}", param="messages") from None

    def _special(self, token: int | None) -> str:
        return "" if token is None else str(self._core.id_to_token(token) or "")


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json  # jinja's own writes for web pages: < becomes \\u003c
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **layout)


class Detokenizer:
    """Text of a growing output, piece by piece: the pieces joined are `decode` of all tokens.

    A piece is held back while it ends inside a character. Cost of `push`: decoding a window of a few tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._decode = partial(tokenizer.decode, skip_special=skip_special)
        self._ids: list[int] = []
        self._begin = 0  # first token of the window that gives context to the decoder
        self._end = 0  # tokens before this one have been turned into text
        self._sent = 0  # characters given out so far

    @property
    def n_characters(self) -> int:
        """Characters given out so far."""
        return self._sent

    def push(self, token: int) -> str:
        """Add one token; the text that is certain now."""
        self._ids.append(token)
        before = self._decode(self._ids[self._begin : self._end])
        now = self._decode(self._ids[self._begin :])
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""
        self._begin, self._end = self._end, len(self._ids)
        self._sent += len(now) - len(before)
        return now[len(before) :]

    def finish(self) -> str:
        """The text held back, as `decode` shows it when nothing follows."""
        rest = self._decode(self._ids)[self._sent :]
        self._sent += len(rest)
        return rest


class Cut(NamedTuple):
    """What an output stream gives out after one token."""

    text: str
    stopped: bool  # a stop string is complete; nothing follows


class OutputText:
    """An output's text up to its first stop string: what could still become one is held back."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], *, include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._stop = stop
        self._include_stop = include_stop
        self._held = ""  # text that may be the beginning of a stop string

    @property
    def n_characters(self) -> int:
        """Characters of the text so far, those held back included; a character counts when its last byte is there."""
        return self._detokenizer.n_characters

    def push(self, token: int) -> Cut:
        """Add one token. After a stop string the stream is over."""
        return self._cut(self._detokenizer.push(token))

    def finish(self) -> str:
        """The rest, when the output ended otherwise; a stop string in it still cuts."""
        cut = self._cut(self._detokenizer.finish())
        rest, self._held = "" if cut.stopped else self._held, ""
        return cut.text + rest

    def _cut(self, piece: str) -> Cut:
        text = self._held + piece
        found = [(at, len(s)) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            self._held = ""
            at, length = min(found)
            return Cut(text[: at + length if self._include_stop else at], stopped=True)
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return Cut(text[: len(text) - keep], stopped=False)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
