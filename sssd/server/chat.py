"""POST /v1/chat/completions: a conversation through the model's template. Knows no HTTP and no loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from sssd.answer import Completion
from sssd.server import params
from sssd.server.errors import bad_request
from sssd.server.exchange import Context, Head, Streaming
from sssd.server.logprobs import for_chat
from sssd.server.protocol import ChatMessage, ChatRequest, TokenizeRequest
from sssd.server.replies import ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatLogprobs, ChatReply, Delta
from sssd.server.serving import Part
from sssd.server.tool_calls import Read
from sssd.server.tools import as_calls, as_deltas, of_turn, tool_use
from sssd.text import Message, Tokenizer
from sssd.types import TokenLogprob

_REFUSED = {
    "chat_template": "the model's own is used; give it values in chat_template_kwargs",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "only text is served",
}


class ChatExchange:
    """One call of the endpoint. Raises ApiError or RequestError."""

    def __init__(self, asked: ChatRequest, context: Context) -> None:
        _refuse(asked)
        self._tokenizer = context.model.tokenizer
        self._asked = asked
        self._head = Head.new("chatcmpl", context.name_for(asked.model))
        self.n = asked.n or 1
        self.silent = False
        self.streaming = Streaming.of(asked)
        self._tools = tools = tool_use(asked, self._tokenizer.chat_template)
        self._readers = [tools.reader() for _ in range(self.n)] if tools else []
        limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        self.jobs = params.jobs(
            asked,
            [conversation_ids(asked, asked.messages, self._tokenizer, tools=tools.for_prompt if tools else ())],
            context,
            max_tokens=limit,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            constraint=tools.forced if tools else None,
        )

    def opening(self) -> list[ChatChunk]:
        """Every answer's role."""
        first = Delta(role="assistant", content="")
        return [self._chunk([ChatChunkChoice(index=i, delta=first)]) for i in range(self.n)]

    def event(self, part: Part) -> ChatChunk:
        """One choice with the piece's text."""
        piece, done = part.piece, part.piece.completion
        delta = self._delta(part.choice, piece.text, ends=done is not None)
        return self._chunk(
            [
                ChatChunkChoice(
                    index=part.choice,
                    delta=delta,
                    logprobs=self._logprobs(piece.logprobs),
                    finish_reason=None if done is None else self._finish(part.choice, done.finish_reason),
                    token_ids=list(piece.token_ids) if self._asked.return_token_ids else UNSET,
                )
            ]
        )

    def _delta(self, index: int, text: str, *, ends: bool) -> Delta:
        if self._tools is None:
            return Delta(content=text) if text else Delta()
        reader = self._readers[index]
        read = reader.push(text)
        last = reader.finish() if ends else Read("", ())
        content = read.content + last.content
        calls = as_deltas(self._tools.shown(read.calls + last.calls))
        return Delta(content=content or UNSET, tool_calls=calls or UNSET)

    def _finish(self, index: int, reason: str) -> str:
        return "tool_calls" if reason == "stop" and self._tools and self._readers[index].n_calls else reason

    def closing(self) -> ChatChunk:
        """No choices."""
        return self._chunk([])

    def reply(self, completions: Sequence[Completion]) -> ChatReply:
        """All choices."""
        choices = [
            ChatChoice(
                index=i,
                message=self._message(i, done.text),
                logprobs=self._logprobs(done.logprobs),
                finish_reason=self._finish(i, done.finish_reason),
                token_ids=list(done.token_ids) if self._asked.return_token_ids else UNSET,
            )
            for i, done in enumerate(completions)
        ]
        head = self._head
        return ChatReply(id=head.id, created=head.created, model=head.model, choices=choices)

    def _message(self, index: int, text: str) -> ChatAnswer:
        if self._tools is None:
            return ChatAnswer(content=text)
        read, last = self._readers[index].push(text), self._readers[index].finish()
        calls = as_calls(self._tools.shown(read.calls + last.calls))
        content = read.content + last.content
        return ChatAnswer(content=content or None, tool_calls=calls) if calls else ChatAnswer(content=content)

    def _logprobs(self, given: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return for_chat(self._tokenizer, given) if self._asked.logprobs else None

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        head = self._head
        return ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices)


def _refuse(asked: ChatRequest) -> None:
    for name, why in _REFUSED.items():
        if getattr(asked, name) is not None:
            raise bad_request(f"{name} is not supported: {why}", name)
    if asked.modalities not in (None, ["text"]):
        raise bad_request("modalities: only text is served", "modalities")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")


def conversation_ids(
    asked: ChatRequest | TokenizeRequest,
    messages: Sequence[ChatMessage],
    tokenizer: Tokenizer,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The conversation as the model's template writes it, in token ids. Raises ApiError or RequestError."""
    turns = [
        Message(
            m.role,
            params.text_of(m.content, f"messages[{i}].content"),
            of_turn(m.tool_calls or (), f"messages[{i}].tool_calls"),
            m.tool_call_id,
            m.name,
        )
        for i, m in enumerate(messages)
    ]
    text = tokenizer.chat_prompt(
        turns,
        tools=tools,
        variables=asked.chat_template_kwargs or {},
        generation_prompt=asked.add_generation_prompt is not False,
    )
    return tokenizer.encode(text, special=False)
