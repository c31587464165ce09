"""One call and its answer, whatever the endpoint: jobs out of a request, replies and stream events out of completions.

Owns the contract between endpoints (completions.py, chat.py) and delivery (stream.py, app.py).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sssd.answer import Completion
from sssd.model import Job, Model
from sssd.server.errors import ApiError, bad_request
from sssd.server.keys import ApiKey
from sssd.server.protocol import Common, StreamOptions
from sssd.server.replies import ChatChunk, ChatReply, CompletionReply
from sssd.server.serving import Part
from sssd.server.settings import Settings

Event = ChatChunk | CompletionReply


@dataclass(frozen=True, slots=True)
class Context:
    """What endpoints need to know of the server."""

    model: Model
    settings: Settings
    key: ApiKey | None = None  # the client's, of one call; None = there are no keys

    @property
    def names(self) -> tuple[str, ...]:
        """Names that requests may give; the first one is shown where none was given."""
        return self.settings.names or (self.model.spec.name,)

    def name_for(self, given: str | None) -> str:
        """The name to answer with. Raises ApiError for one that is not served."""
        if given is not None and given not in self.names:
            served = ", ".join(self.names)
            raise ApiError(404, f"no model {given!r}: served here is {served}", param="model", code="model_not_found")
        return given or self.names[0]


@dataclass(frozen=True, slots=True)
class Head:
    """What all events of a stream have in common."""

    id: str
    created: int  # seconds since 1970
    model: str

    @staticmethod
    def new(kind: str, model: str) -> Head:
        """With an id of its own."""
        return Head(f"{kind}-{secrets.token_hex(12)}", int(time.time()), model)


@dataclass(frozen=True, slots=True)
class Streaming:
    """What a stream was asked to tell beside the text."""

    usage: bool  # a last event with usage
    usage_always: bool  # usage in every event
    trace: bool  # what was drafted, in every event with text

    @staticmethod
    def of(asked: Common) -> Streaming | None:
        """None when no stream was asked for. Raises ApiError for what makes sense in a stream only."""
        options = asked.stream_options or StreamOptions()
        trace = asked.speculative is not None and asked.speculative.trace
        if not asked.stream:
            if trace:
                raise bad_request("speculative.trace needs stream to be true", "speculative.trace")
            return None
        return Streaming(bool(options.include_usage), bool(options.continuous_usage_stats), trace)


class Exchange(Protocol):
    """Made from a checked request; turns what the loop says into JSON."""

    @property
    def jobs(self) -> Sequence[Job]:
        """What to run; `n` jobs a prompt, prompt after prompt."""

    @property
    def n(self) -> int:
        """Answers a prompt."""

    @property
    def silent(self) -> bool:
        """Whether the answers' tokens are neither told nor counted: only the prompt was asked for."""

    @property
    def streaming(self) -> Streaming | None:
        """How to stream; None = answer at once."""

    def opening(self) -> Sequence[Event]:
        """Events before the first token."""

    def event(self, part: Part) -> Event:
        """The event of a piece, without usage."""

    def closing(self) -> Event:
        """An event without choices, for the usage."""

    def reply(self, completions: Sequence[Completion]) -> ChatReply | CompletionReply:
        """The whole answer, without usage and metrics."""
