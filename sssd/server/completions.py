"""POST /v1/completions: prompts as text or token ids, answers as text. Knows no HTTP and no loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sssd.answer import Completion, Piece
from sssd.server import params
from sssd.server.echoes import echoed
from sssd.server.errors import bad_request
from sssd.server.exchange import Context, Head, Streaming
from sssd.server.logprobs import for_completion, joined
from sssd.server.protocol import CompletionRequest, Prompt
from sssd.server.replies import CompletionChoice, CompletionReply
from sssd.server.serving import Part
from sssd.text import Tokenizer


class CompletionExchange:
    """One call of the endpoint. Raises ApiError or RequestError."""

    def __init__(self, asked: CompletionRequest, context: Context) -> None:
        _refuse(asked)
        self._tokenizer = context.model.tokenizer
        self._asked = asked
        self._head = Head.new("cmpl", context.name_for(asked.model))
        self.n = asked.n or 1
        self.streaming = Streaming.of(asked)
        self.silent = asked.max_tokens == 0  # nothing but the prompt is to be told
        prompts = prompts_of(asked.prompt, self._tokenizer)
        self.jobs = params.jobs(
            asked,
            [ids for _, ids in prompts],
            context,
            max_tokens=1 if self.silent else asked.max_tokens,
            logprobs=asked.logprobs,
            prompt_logprobs=asked.logprobs if asked.echo else None,
        )
        scored = asked.logprobs is not None
        self._echoes = [echoed(self._tokenizer, *p, with_offsets=scored) for p in prompts] if asked.echo else []
        self._told = [False] * len(self.jobs)  # whether the stream of a choice has begun

    def opening(self) -> list[CompletionReply]:
        """Nothing comes before the first token."""
        return []

    def event(self, part: Part) -> CompletionReply:
        """One choice with the piece's text."""
        first = not self._told[part.choice]
        self._told[part.choice] = True
        finish = None if part.piece.completion is None else part.piece.completion.finish_reason
        return self._with([self._choice(part.choice, part.piece, finish, begins=first)])

    def closing(self) -> CompletionReply:
        """No choices."""
        return self._with([])

    def reply(self, completions: Sequence[Completion]) -> CompletionReply:
        """All choices."""
        return self._with([self._choice(i, c, c.finish_reason, begins=True) for i, c in enumerate(completions)])

    def _choice(self, index: int, told: Piece | Completion, finish: str | None, *, begins: bool) -> CompletionChoice:
        """A choice of what is told, behind its prompt where one is to be given back and this is the beginning."""
        echo = self._echoes[index // self.n] if self._echoes else None
        text = "" if self.silent else told.text
        choice = CompletionChoice(index=index, text=text, finish_reason=finish)
        ids = [] if self.silent else list(told.token_ids)
        if self._asked.return_token_ids:
            choice.token_ids = ids
            if begins:
                choice.prompt_token_ids = list(self.jobs[index].prompt)
        if self._asked.logprobs is not None:
            shift = len(echo.text) if echo else 0
            own = told.logprobs[: len(ids)]
            choice.logprobs = for_completion(self._tokenizer, own, [at + shift for at in told.offsets[: len(ids)]])
        if echo is not None and begins:
            choice.text = echo.text + text
            if choice.logprobs is not None:
                choice.logprobs = joined(echo.logprobs(self._tokenizer, told.prompt_logprobs), choice.logprobs)
        return choice

    def _with(self, choices: list[CompletionChoice]) -> CompletionReply:
        head = self._head
        return CompletionReply(id=head.id, created=head.created, model=head.model, choices=choices)


def _refuse(asked: CompletionRequest) -> None:
    if asked.suffix:
        raise bad_request("suffix is not supported: the model completes to the right only", "suffix")
    if asked.best_of not in (None, asked.n or 1):
        raise bad_request("best_of is supported only where it equals n", "best_of")
    if asked.max_tokens == 0 and not asked.echo:
        raise bad_request("max_tokens is 0: allowed is 1 or more, or 0 with echo", "max_tokens")


class Given(NamedTuple):
    """A prompt as it was given, and its token ids."""

    text: str | None
    token_ids: list[int]


def prompts_of(prompt: Prompt, tokenizer: Tokenizer) -> list[Given]:
    """One text, several, one list of token ids, or several. Raises ApiError for anything else."""
    if isinstance(prompt, str):
        return [Given(prompt, tokenizer.encode(prompt))]
    kinds = {type(item) for item in prompt}
    if kinds == {str}:
        return [Given(item, tokenizer.encode(item)) for item in prompt if isinstance(item, str)]
    if kinds == {int}:
        return [Given(None, [item for item in prompt if isinstance(item, int)])]
    if kinds == {list}:
        return [Given(None, item) for item in prompt if isinstance(item, list)]
    raise bad_request("prompt is an empty list or mixes kinds: give texts, or token ids, or lists of them", "prompt")
