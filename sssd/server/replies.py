"""Response bodies of the API, as msgspec structs. Owns names and types; knows no request and no loop."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from sssd.server.trace import Trace


class PromptDetails(msgspec.Struct):
    """About the prompt's tokens."""

    cached_tokens: int  # of them, copied from another request's KV instead of computed


class CompletionDetails(msgspec.Struct):
    """About the answer's tokens."""

    accepted_prediction_tokens: int  # draft tokens from the client's `prediction` that the answer holds
    rejected_prediction_tokens: int  # and those that were tried in vain
    reasoning_tokens: int = 0
    audio_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens of a call; a prompt counts once, however many answers it gets."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SpeculativeMetrics(msgspec.Struct):
    """How drafting went, under the names that vLLM gives."""

    mean_acceptance_length: float  # tokens a step, the target's own token among them
    draft_acceptance_rate: float | None  # None = nothing was drafted
    acceptance_histogram: list[int]  # steps in which 0, 1, 2, ... draft tokens were accepted
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int  # most draft tokens that a step may carry
    by_source: dict[str, list[int]]  # source -> [accepted, drafted]; ours


class Metrics(msgspec.Struct):
    """What a call took."""

    speculative_decoding: SpeculativeMetrics


# ---- text completions ---------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct):
    """Parallel arrays, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]  # None for the first token of an echoed prompt
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # characters before the token


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionReply(msgspec.Struct, kw_only=True):
    """Body of an answer, or of one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: Metrics | UnsetType = UNSET
    speculative: Trace | UnsetType = UNSET


# ---- chat ---------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct):
    """One alternative at a token's place."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct):
    """One token and its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry a token."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """The function of a call, or a piece of it."""

    name: str | UnsetType = UNSET
    arguments: str  # JSON text


class ToolCall(msgspec.Struct, kw_only=True):
    """A call, or in a stream a piece of one, which then has an index."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CalledFunction


class ChatAnswer(msgspec.Struct, kw_only=True):
    """The message that answers."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatReply(msgspec.Struct, kw_only=True):
    """Body of an answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: Metrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    """What a stream's event adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: Metrics | UnsetType = UNSET
    speculative: Trace | UnsetType = UNSET


# ---- models and tokens ---------------------------------------------------------------------------


class ModelCard(msgspec.Struct, kw_only=True):
    """One name under which the model is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "sssd"
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """Body of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeReply(msgspec.Struct, kw_only=True):
    """Body of an answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeReply(msgspec.Struct, kw_only=True):
    """Body of an answer of /detokenize."""

    prompt: str


class VersionReply(msgspec.Struct, kw_only=True):
    """Body of GET /version."""

    version: str
