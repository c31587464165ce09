"""POST /v1/chat/completions: a conversation through the model's template. Knows no HTTP and no loop."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from sssd.answer import Completion
from sssd.server import params
from sssd.server.errors import bad_request
from sssd.server.exchange import Context, Head, Streaming
from sssd.server.logprobs import for_chat
from sssd.server.protocol import ChatMessage, ChatRequest
from sssd.server.replies import ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatLogprobs, ChatReply, Delta
from sssd.server.serving import Part
from sssd.text import Message, Tokenizer
from sssd.types import TokenLogprob


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
        limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        self.jobs = params.jobs(
            asked,
            [conversation_ids(asked.messages, self._tokenizer)],
            context.model,
            context.settings,
            max_tokens=limit,
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        )

    def opening(self) -> list[ChatChunk]:
        """Every answer's role."""
        first = Delta(role="assistant", content="")
        return [self._chunk([ChatChunkChoice(index=i, delta=first)]) for i in range(self.n)]

    def event(self, part: Part) -> ChatChunk:
        """One choice with the piece's text."""
        piece = part.piece
        finish = None if piece.completion is None else piece.completion.finish_reason
        return self._chunk(
            [
                ChatChunkChoice(
                    index=part.choice,
                    delta=Delta(content=piece.text) if piece.text else Delta(),
                    logprobs=self._logprobs(piece.logprobs),
                    finish_reason=finish,
                    token_ids=list(piece.token_ids) if self._asked.return_token_ids else UNSET,
                )
            ]
        )

    def closing(self) -> ChatChunk:
        """No choices."""
        return self._chunk([])

    def reply(self, completions: Sequence[Completion]) -> ChatReply:
        """All choices."""
        choices = [
            ChatChoice(
                index=i,
                message=ChatAnswer(content=done.text),
                logprobs=self._logprobs(done.logprobs),
                finish_reason=done.finish_reason,
                token_ids=list(done.token_ids) if self._asked.return_token_ids else UNSET,
            )
            for i, done in enumerate(completions)
        ]
        head = self._head
        return ChatReply(id=head.id, created=head.created, model=head.model, choices=choices)

    def _logprobs(self, given: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return for_chat(self._tokenizer, given) if self._asked.logprobs else None

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        head = self._head
        return ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices)


def _refuse(asked: ChatRequest) -> None:
    if asked.tools:
        raise bad_request("tools are not supported", "tools")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")


def conversation_ids(messages: Sequence[ChatMessage], tokenizer: Tokenizer) -> list[int]:
    """The conversation as the model's template writes it, in token ids. Raises ApiError or RequestError."""
    turns = [Message(m.role, params.text_of(m.content, f"messages[{i}].content")) for i, m in enumerate(messages)]
    return tokenizer.encode(tokenizer.chat_prompt(turns), special=False)
