"""A prompt as the completions endpoint gives it back: its text, and its tokens with where they stand in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sssd.server.logprobs import for_completion
from sssd.server.replies import CompletionLogprobs
from sssd.text import Detokenizer, Tokenizer
from sssd.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """One prompt of a call that asked for it back."""

    text: str
    token_ids: list[int]
    offsets: list[int]  # of each token: characters of the text before it; only where logprobs were asked for

    def logprobs(self, tokenizer: Tokenizer, given: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Entries of all its tokens; the first one has no log-probability."""
        rest = for_completion(tokenizer, given, self.offsets[1:])
        return CompletionLogprobs(
            [tokenizer.token_text(self.token_ids[0]), *rest.tokens],
            [None, *rest.token_logprobs],
            [None, *rest.top_logprobs],
            [self.offsets[0], *rest.text_offset],
        )


def echoed(tokenizer: Tokenizer, text: str | None, token_ids: list[int], *, with_offsets: bool) -> EchoedPrompt:
    """The prompt given as `text`, or as ids only. Cost of offsets: decoding a few tokens for each."""
    shown = tokenizer.decode(token_ids, skip_special=False) if text is None else text
    if not with_offsets:
        return EchoedPrompt(shown, token_ids, [])
    growing = Detokenizer(tokenizer, skip_special=False)
    offsets = []
    for token in token_ids:
        offsets.append(growing.n_characters)
        growing.push(token)
    growing.finish()
    added = growing.n_characters - len(shown)  # what the tokenizer puts in front by itself is not in the text
    return EchoedPrompt(shown, token_ids, [min(max(at - added, 0), len(shown)) for at in offsets])
