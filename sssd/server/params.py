"""From the API's fields to our own options. Owns defaults, and what is refused by name.

Knows no HTTP: what cannot be honoured is an ApiError that names the field.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

import numpy as np

from sssd.config import SamplingParams
from sssd.constraint import Constraint
from sssd.model import Job, Model
from sssd.server.errors import ApiError, bad_request
from sssd.server.exchange import Context
from sssd.server.protocol import Common, ContentPart, Prediction
from sssd.server.settings import Settings
from sssd.server.structured import constraint_of
from sssd.types import DraftOptions, Int32, Source

MOST_STOPS = 16  # OpenAI allows four


def jobs(
    asked: Common,
    prompts: Sequence[Sequence[int]],
    context: Context,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    constraint: Constraint | None = None,
) -> list[Job]:
    """`n` jobs a prompt, prompt after prompt. Raises ApiError or RequestError naming the field.

    `constraint` is what the endpoint wants of the answers; without one it is what the request's fields say.
    """
    settings = context.settings
    n = 1 if asked.n is None else asked.n
    if n * len(prompts) > settings.max_choices:
        raise bad_request(f"{len(prompts)} prompts with n {n} are more than {settings.max_choices} answers", "n")
    wanted = constraint_of(asked) if constraint is None else constraint
    seed = secrets.randbits(63) if asked.seed is None else asked.seed % 2**64
    options = _drafting(asked, context)
    params = _sampling(asked, settings, logprobs, prompt_logprobs)
    timeout = settings.timeout if asked.timeout is None else asked.timeout
    return [
        Job(
            prompt,
            replace(params, max_tokens=_fitting(max_tokens, len(prompt), context), seed=_seed(seed, i)),
            options,
            max_draft_tokens=_draft_tokens(asked),
            priority=asked.priority or 0,
            deadline=None if timeout is None else monotonic() + timeout,
            constraint=wanted,
        )
        for prompt in prompts
        for i in range(n)
    ]


def _fitting(given: int | None, prompt_len: int, context: Context) -> int:
    """As many tokens as fit and the key allows, unless the request says how many. Raises ApiError for too many."""
    limit = None if context.key is None else context.key.max_tokens
    if given is None:
        room = max(1, context.model.spec.max_len - prompt_len)
        return room if limit is None else min(room, limit)
    if limit is not None and given > limit:
        raise bad_request(f"max_tokens is {given}: this API key allows up to {limit}", "max_tokens")
    return given


def _seed(seed: int, choice: int) -> int:
    """Each answer to a prompt draws by a seed of its own, which depends on the given one only."""
    if choice == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest(), "little")


def _sampling(asked: Common, settings: Settings, logprobs: int | None, prompt_logprobs: int | None) -> SamplingParams:
    """All but max_tokens and the seed, which differ between the jobs of a call."""
    return SamplingParams(
        max_tokens=2**31,
        min_tokens=asked.min_tokens or 0,
        temperature=settings.temperature if asked.temperature is None else asked.temperature,
        top_k=0 if asked.top_k in (None, -1) else asked.top_k,  # -1 is how vLLM says off
        top_p=1.0 if asked.top_p is None else asked.top_p,
        min_p=asked.min_p or 0.0,
        repetition_penalty=1.0 if asked.repetition_penalty is None else asked.repetition_penalty,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        logit_bias=_bias(asked.logit_bias or {}),
        stop=_stops(asked.stop),
        stop_ids=tuple(asked.stop_token_ids or ()),
        ignore_eos=bool(asked.ignore_eos),
        include_stop=bool(asked.include_stop_str_in_output),
        skip_special=asked.skip_special_tokens is not False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), bias) for token, bias in given.items())
    except ValueError:
        raise bad_request("logit_bias has a key that is no token id", "logit_bias") from None


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > MOST_STOPS:
        raise bad_request(f"stop has {len(stops)} strings: allowed are {MOST_STOPS}", "stop")
    return stops


def _draft_tokens(asked: Common) -> int | None:
    if asked.speculative is None:
        return None
    return asked.speculative.max_draft_tokens if asked.speculative.enabled else 0


def _drafting(asked: Common, context: Context) -> DraftOptions:
    given = asked.speculative
    prediction = None if asked.prediction is None else _predicted(asked.prediction, context.model)
    allowed = DraftOptions().namespaces if context.key is None else context.key.namespaces
    if given is None:
        return DraftOptions(allowed, prediction=prediction)
    if given.namespace is not None and context.key is not None and given.namespace not in allowed:
        raise ApiError(
            403,
            f"speculative.namespace is {given.namespace!r}: this API key may use {', '.join(allowed)}",
            param="speculative.namespace",
            code="namespace_not_allowed",
        )
    sources = None if given.sources is None else frozenset(Source[name.upper()] for name in given.sources)
    namespaces = allowed if given.namespace is None else (given.namespace,)
    return DraftOptions(namespaces, given.remember, prediction, sources)


def _predicted(given: Prediction, model: Model) -> Int32:
    return np.array(model.tokenizer.encode(text_of(given.content, "prediction"), special=False), np.int32)


def text_of(content: str | list[ContentPart] | None, field: str) -> str:
    """The text of a message's content. Raises ApiError naming `field` for a part that is no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise bad_request(f"{field}[{i}] is of type {part.type!r}: only text is served", f"{field}[{i}].type")
    return "".join(part.text or "" for part in content)
