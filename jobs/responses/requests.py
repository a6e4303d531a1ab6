"""Requests for responses, validated, and put as requests for chat completions, which they are otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationError

from jobs.answers.log_probs import MAX_TOP
from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import openai
from jobs.prompts.abilities import UNKNOWN, SamplingFields, Takes
from jobs.prompts.openai import Generation
from jobs.prompts.structured import JsonObjectFormat, JsonSchemaOptions, TextFormat
from jobs.prompts.tools.definitions import MAX_TOOLS
from jobs.responses.items import BRANCHES, ResponseInput, chat_messages, items_of, stored_item
from jobs.responses.tools import (
    TOOL_BRANCHES,
    ResponseTool,
    ResponseToolChoice,
    chat_tools,
    shown_choice,
)
from jobs.states.batch import Endpoint
from jobs.validation import (
    MAX_OUTPUT_TOKENS,
    MAX_TOP_K,
    CachePolicy,
    Closed,
    Metadata,
    NonEmpty,
    Stop,
    TemplateVariables,
    Text,
)

ServiceTier = Literal["auto", "default", "flex", "priority"]
# Unsupported parameters, with the values that request nothing.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({},),
    "truncation": ("disabled",),
}
_IGNORED: Final = frozenset({"prompt_cache_options", "prompt_cache_retention"})
_NO_CHAINS: Final = "{} is not supported: send the earlier items in input."
# Fields that a chat has by the same name.
_SHARED: Final = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stream",
    "structured_fallback",
    "chat_template_kwargs",
    "share_equal",
    "cache",
    *SamplingFields.model_fields,
)
# Fields that a chat has by another name, the longest first.
_RENAMED: Final[Mapping[str, str]] = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}
_FORMATS: Final = frozenset({"text", "json_object", "json_schema"})
_ANY_TEXT: Final[JsonObject] = {"type": "text"}


class ResponseJsonSchema(JsonSchemaOptions):
    """JSON by a schema."""

    type: Literal["json_schema"]


def _format_kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"[{kind}]" if isinstance(kind, str) and kind in _FORMATS else None


_FORMAT_BRANCHES: Final = frozenset(f"[{name}]" for name in _FORMATS)
ResponseTextFormat = Annotated[
    Annotated[TextFormat, Tag("[text]")]
    | Annotated[JsonObjectFormat, Tag("[json_object]")]
    | Annotated[ResponseJsonSchema, Tag("[json_schema]")],
    Discriminator(
        _format_kind,
        custom_error_type="response_format",
        custom_error_message="type must be text, json_object or json_schema",
    ),
]


class ResponseTextOptions(Closed):
    """The form of the answer."""

    format: ResponseTextFormat | None = Field(
        None, description="Checked before the response is complete, as `response_format` of a chat is."
    )
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(Closed):
    """What a stream carries besides its events."""

    include_obfuscation: bool = False


class ResponseRequest(SamplingFields):
    """The body of /v1/responses."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "llama-3.1-8b-instruct",
                    "input": "Why is the sky blue?",
                    "max_output_tokens": 512,
                    "background": True,
                    "service_tier": "flex",
                }
            ]
        }
    )

    model: NonEmpty
    input: ResponseInput
    instructions: Text | None = Field(None, description="The system message, ahead of the input.")
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2, description="null: 1")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="null: a different one for each request")
    stop: Stop | None = None
    text: ResponseTextOptions | None = None
    structured_fallback: Literal["words"] | None = Field(None, description="As in chat completions.")
    chat_template_kwargs: TemplateVariables | None = None
    metadata: Metadata | None = None
    background: bool = Field(False, description="Answer at once; the response is to be polled.")
    store: bool | None = Field(None, description="false: the response cannot be retrieved. null: true.")
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    service_tier: ServiceTier | None = Field(
        None,
        description="`flex`: after all that callers wait for, as jobs and batches; `default`: ahead of those;"
        " `priority`: also ahead of your own `default` requests. null and `auto`: `default`.",
    )
    tools: list[ResponseTool] | None = Field(
        None, max_length=MAX_TOOLS, description="Functions that the model may call; the only kind of tools."
    )
    tool_choice: ResponseToolChoice | None = Field(None, description="As in chat completions.")
    parallel_tool_calls: bool | None = Field(None, description="As in chat completions.")
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, max_length=1, description="Return the log probability of each token of the answer."
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP, description="Return so many of the most likely tokens in the place of each."
    )
    webhook_url: NonEmpty | None = Field(
        None, description="With `background`: notified once the response has ended; https only."
    )
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs deliveries; null: your default secret (GET /v1/webhook_secret)."
    )
    share_equal: bool | None = Field(None, description="As in chat completions.")
    cache: CachePolicy | None = Field(None, description="As in chat completions.")

    @property
    def is_stored(self) -> bool:
        """True if it can be retrieved later."""
        return self.store is not False


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A validated request.

    Attributes:
        request: as the caller sent it.
        generation: what it asks the model to generate.
        repeated: the parameters that the response repeats.
    """

    request: ResponseRequest
    generation: Generation
    repeated: JsonObject

    @property
    def items(self) -> list[JsonObject]:
        """The items of its input, as they are kept."""
        return [stored_item(item) for item in items_of(self.request.input)]


def validate(body: Mapping[str, Any], takes: Takes = UNKNOWN) -> AskedResponse:
    """Validate the body of a request to /v1/responses.

    Args:
        body: its JSON.
        takes: what engines can be asked for.

    Raises:
        InvalidRequestError: a parameter is invalid or not supported; `param` names it.
    """
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise UnsupportedParameterError(_NO_CHAINS.format(name), param=name)
    given = openai.supported(_without_empty(body), _NEUTRAL, _IGNORED)
    try:
        request = ResponseRequest.model_validate(given)
    except ValidationError as error:
        branches = BRANCHES | TOOL_BRANCHES | _FORMAT_BRANCHES
        raise openai.invalid_request(error, ResponseRequest, branches=branches) from None  # quotes the prompt
    _check_modes(request)
    try:
        generation = openai.validate_request(Endpoint.CHAT, _chat(request), takes)
    except InvalidRequestError as error:
        raise _renamed(error) from None
    return AskedResponse(request, generation, _repeated(request))


def _without_empty(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop the fields of `reasoning` that are null: clients send all of them."""
    reasoning = body.get("reasoning")
    if not isinstance(reasoning, dict):
        return body
    return {**body, "reasoning": {name: each for name, each in reasoning.items() if each is not None}}


def _check_modes(request: ResponseRequest) -> None:
    if request.background and not request.is_stored:
        raise InvalidRequestError("store: a response in the background is always stored.", param="store")
    if not request.background and request.webhook_url is not None:
        message = "webhook_url: only responses in the background have webhooks; their callers do not wait."
        raise InvalidRequestError(message, param="webhook_url")


def _chat(request: ResponseRequest) -> JsonObject:
    """Put the request as one for a chat completion."""
    found: JsonObject = {name: each for name in _SHARED if (each := getattr(request, name)) is not None}
    found["messages"] = chat_messages(items_of(request.input), request.instructions)
    found |= chat_tools(request.tools, request.tool_choice, is_parallel=request.parallel_tool_calls)
    found["max_completion_tokens"] = request.max_output_tokens
    if request.include or request.top_logprobs:
        found |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.cache is not None:
        found["cache"] = request.cache.model_dump()
    form = request.text.format if request.text else None
    if isinstance(form, ResponseJsonSchema):
        options = form.model_dump(exclude={"type"}, by_alias=True, exclude_none=True)
        found["response_format"] = {"type": "json_schema", "json_schema": options}
    elif form is not None:
        found["response_format"] = {"type": form.type}
    return found


def _renamed(error: InvalidRequestError) -> InvalidRequestError:
    """Name the field of an error about the chat as the response's caller did."""
    param, message = error.param or "", error.message
    for old, new in _RENAMED.items():
        if param == old or param.startswith(f"{old}."):
            renamed = new + param.removeprefix(old)
            return type(error)(message.replace(param, renamed), param=renamed, details=error.details)
    if param.startswith("tools."):
        renamed = param.replace(".function", "", 1)
        return type(error)(message.replace(param, renamed), param=renamed, details=error.details)
    return error


def _repeated(request: ResponseRequest) -> JsonObject:
    form = request.text.format if request.text else None
    return {
        "background": request.background,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": tier_of(request),
        "store": request.is_stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": form.model_dump(by_alias=True, exclude_none=True) if form else _ANY_TEXT},
        "tool_choice": shown_choice(request.tool_choice),
        "tools": [tool.shown() for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


def tier_of(request: ResponseRequest) -> ServiceTier:
    """Return the tier that the request gets."""
    return "default" if request.service_tier in (None, "auto") else request.service_tier
