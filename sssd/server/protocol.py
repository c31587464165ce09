"""Request bodies of the API, as msgspec structs. Owns names and types of fields; what they mean is params.py's.

Unknown fields are tolerated, as OpenAI's own server does with most; null is the same as absent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Prompt = str | list[str | TokenId | list[TokenId]]  # a list holds one kind only: checked by completions.py


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream tells beside the text."""

    include_usage: bool | None = None  # a last chunk with usage and no choices
    continuous_usage_stats: bool | None = None  # usage in every chunk


class Speculative(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the request allows its drafts; an extension of ours, so a mistyped field is an error."""

    enabled: bool = True
    max_draft_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None  # most draft tokens in a step
    sources: list[Literal["context", "datastore", "live", "prediction", "model"]] | None = None  # None = all
    namespace: Annotated[str, Meta(min_length=1, max_length=200)] | None = None  # whose text drafts come from
    remember: bool = True  # may the answer serve later requests of the namespace
    trace: bool = False  # every event of a stream says what was drafted (trace.py)


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message; only text can be served."""

    type: str
    text: str | None = None


class Prediction(msgspec.Struct, kw_only=True):
    """Text that the client expects in the answer."""

    type: Literal["content"] = "content"
    content: str | list[ContentPart]


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A named schema."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None  # the answer always keeps to the schema; a schema that cannot be kept to is an error


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The shape of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer, as vLLM names it; one of these."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """What an assistant called."""

    name: str
    arguments: str | dict[str, Any] = "{}"  # JSON text


class AssistantToolCall(msgspec.Struct, kw_only=True):
    """A call that stands in the conversation."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    tool_call_id: str | None = None


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that may be called."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON Schema
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool of the only kind there is."""

    type: Literal["function"] = "function"
    function: Function


class ToolName(msgspec.Struct, kw_only=True):
    """Which function."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The one function that is to be called."""

    type: Literal["function"] = "function"
    function: ToolName


class Common(msgspec.Struct, kw_only=True):
    """Fields that both endpoints have."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None  # tells the operator who asks; nothing depends on it
    response_format: ResponseFormat | None = None
    # beyond OpenAI, as vLLM names them
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    # ours
    timeout: Annotated[float, Meta(gt=0)] | None = None  # seconds
    speculative: Speculative | None = None
    prediction: Prediction | None = None


class CompletionRequest(Common, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class ChatRequest(Common, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # values for the model's template
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    # refused by name
    chat_template: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
