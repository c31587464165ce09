"""POST /v1/completions: prompts as text or token ids, answers as text. Knows no HTTP and no loop."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from sssd.answer import Completion
from sssd.server import params
from sssd.server.errors import bad_request
from sssd.server.exchange import Context, Head, Streaming
from sssd.server.logprobs import for_completion
from sssd.server.protocol import CompletionRequest, Prompt
from sssd.server.replies import CompletionChoice, CompletionLogprobs, CompletionReply
from sssd.server.serving import Part
from sssd.text import Tokenizer
from sssd.types import TokenLogprob


class CompletionExchange:
    """One call of the endpoint. Raises ApiError or RequestError."""

    def __init__(self, asked: CompletionRequest, context: Context) -> None:
        _refuse(asked)
        self._tokenizer = context.model.tokenizer
        self._asked = asked
        self._head = Head.new("cmpl", context.name_for(asked.model))
        self.n = asked.n or 1
        self.streaming = Streaming.of(asked)
        self.jobs = params.jobs(
            asked,
            prompt_ids(asked.prompt, self._tokenizer),
            context.model,
            context.settings,
            max_tokens=asked.max_tokens,
            logprobs=asked.logprobs,
        )

    def opening(self) -> list[CompletionReply]:
        """Nothing comes before the first token."""
        return []

    def event(self, part: Part) -> CompletionReply:
        """One choice with the piece's text."""
        piece = part.piece
        finish = None if piece.completion is None else piece.completion.finish_reason
        return self._with(
            [
                CompletionChoice(
                    index=part.choice,
                    text=piece.text,
                    logprobs=self._logprobs(piece.logprobs, piece.offsets),
                    finish_reason=finish,
                    token_ids=list(piece.token_ids) if self._asked.return_token_ids else UNSET,
                )
            ]
        )

    def closing(self) -> CompletionReply:
        """No choices."""
        return self._with([])

    def reply(self, completions: Sequence[Completion]) -> CompletionReply:
        """All choices."""
        return self._with(
            [
                CompletionChoice(
                    index=i,
                    text=done.text,
                    logprobs=self._logprobs(done.logprobs, done.offsets),
                    finish_reason=done.finish_reason,
                    token_ids=list(done.token_ids) if self._asked.return_token_ids else UNSET,
                )
                for i, done in enumerate(completions)
            ]
        )

    def _logprobs(self, given: Sequence[TokenLogprob], offsets: Sequence[int]) -> CompletionLogprobs | None:
        return None if self._asked.logprobs is None else for_completion(self._tokenizer, given, offsets)

    def _with(self, choices: list[CompletionChoice]) -> CompletionReply:
        head = self._head
        return CompletionReply(id=head.id, created=head.created, model=head.model, choices=choices)


def _refuse(asked: CompletionRequest) -> None:
    if asked.suffix:
        raise bad_request("suffix is not supported: the model completes to the right only", "suffix")
    if asked.best_of not in (None, asked.n or 1):
        raise bad_request("best_of is supported only where it equals n", "best_of")
    if asked.echo:
        raise bad_request("echo is not supported", "echo")


def prompt_ids(prompt: Prompt, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of every prompt: one text, several, one list of ids, or several. Raises ApiError for anything else."""
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)]
    kinds = {type(item) for item in prompt}
    if kinds == {str}:
        return [tokenizer.encode(item) for item in prompt if isinstance(item, str)]
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if kinds == {list}:
        return [item for item in prompt if isinstance(item, list)]
    raise bad_request("prompt is an empty list or mixes kinds: give texts, or token ids, or lists of them", "prompt")
