"""Log-probabilities in the two formats of the API. Knows tokens and their text, no request and no loop."""

from __future__ import annotations

from collections.abc import Sequence

from sssd.server.replies import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from sssd.text import Tokenizer
from sssd.types import TokenLogprob


def for_chat(tokenizer: Tokenizer, given: Sequence[TokenLogprob]) -> ChatLogprobs:
    """One entry a token, with its bytes."""
    content = []
    for one in given:
        top = [TopLogprob(tokenizer.token_text(i), p, list(tokenizer.token_bytes(i))) for i, p in one.top]
        own = tokenizer.token_bytes(one.token)
        content.append(ChatTokenLogprob(tokenizer.token_text(one.token), one.logprob, list(own), top))
    return ChatLogprobs(content)


def joined(a: CompletionLogprobs, b: CompletionLogprobs) -> CompletionLogprobs:
    """The tokens of both, in order."""
    return CompletionLogprobs(
        a.tokens + b.tokens,
        a.token_logprobs + b.token_logprobs,
        a.top_logprobs + b.top_logprobs,
        a.text_offset + b.text_offset,
    )


def for_completion(tokenizer: Tokenizer, given: Sequence[TokenLogprob], offsets: Sequence[int]) -> CompletionLogprobs:
    """Parallel arrays; a token that is not among the best is among its alternatives all the same."""
    names = [tokenizer.token_text(one.token) for one in given]
    tops: list[dict[str, float] | None] = []
    for name, one in zip(names, given, strict=True):
        tops.append({tokenizer.token_text(i): p for i, p in one.top} | {name: one.logprob})
    return CompletionLogprobs(names, [one.logprob for one in given], tops, list(offsets))
