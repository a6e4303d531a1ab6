"""OpenAI's text endpoints: their requests, validated, and their response objects."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import PydanticCustomError

from jobs.answers.choices import MAX_CHOICES
from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import messages
from jobs.prompts.abilities import (
    UNKNOWN,
    LogProbFields,
    SamplingFields,
    Takes,
    TextLogProbs,
    most_scored,
    needs_whole,
    scored,
)
from jobs.prompts.structured import StructuredFields, with_words
from jobs.prompts.tools.definitions import CHOICE_BRANCHES
from jobs.prompts.tools.forms import ANY_FORM, AnswerFields, AnswerForm
from jobs.prompts.tools.turns import TURN_BRANCHES, AssistantTurn, Content, ToolTurn, messages_of, turn_kind
from jobs.states.batch import Endpoint
from jobs.validation import (
    MAX_OUTPUT_TOKENS,
    MAX_TOP_K,
    SAMPLING,
    CachePolicy,
    Closed,
    NonEmpty,
    Stop,
    TemplateVariables,
    complaints,
    from_validation,
)

# OpenAI's default; other jobs are greedy unless they set a temperature.
_DEFAULTS: Final[JsonObject] = {"temperature": 1.0}
# Unsupported parameters, with the values that request nothing: clients often send those.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),  # deprecated in favour of tools; a function must be defined as one
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (False, True),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
_INSTEAD: Final[Mapping[str, str]] = {
    "function_call": "is not supported; OpenAI replaced it with tool_choice.",
    "functions": "is not supported; OpenAI replaced it with tools.",
}
# Describe the caller and change nothing.
_IGNORED: Final = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})


def _role(value: object) -> object:
    return "system" if value == "developer" else value


def _prompt(value: object) -> object:
    match value:
        case [str(only)]:
            return only
        case list():
            raise PydanticCustomError("prompt", "only one text is supported.")
        case _:
            return value


class ChatMessage(Closed):
    """One turn of a system or user."""

    role: Annotated[Literal["system", "user"], BeforeValidator(_role)]
    content: Content
    refusal: None = None


ChatTurn = Annotated[
    Annotated[ChatMessage, Tag("[plain]")]
    | Annotated[AssistantTurn, Tag("[assistant]")]
    | Annotated[ToolTurn, Tag("[tool]")],
    Discriminator(turn_kind),
]


class StreamOptions(Closed):
    """What a stream carries besides the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _Generation(SamplingFields):
    """The parameters that both endpoints take."""

    model: NonEmpty
    max_tokens: int | None = Field(None, ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float | None = Field(
        None, ge=0, le=2, description="null: 1; 0: the most likely token each time"
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="null: a different one for each request")
    stop: Stop | None = None
    n: int | None = Field(
        None, ge=1, le=MAX_CHOICES, description="Choices of the answer, each drawn for itself; null: one."
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    share_equal: bool | None = Field(
        None,
        description="in a batch: let lines that ask for the same run once, each with its result; null: as the"
        " server is configured. Requests that wait for their answer always run",
    )
    cache: CachePolicy | None = Field(
        None, description="in a batch: take the result of an equal line that ended not longer ago than this"
    )


class ChatRequest(AnswerFields, LogProbFields, _Generation):
    """The body of /v1/chat/completions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "llama-3.1-8b-instruct",
                    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
                    "max_tokens": 512,
                }
            ]
        }
    )

    messages: list[ChatTurn] = Field(min_length=1, max_length=4096)
    chat_template_kwargs: TemplateVariables | None = Field(
        None,
        description="Variables for the model's chat template, such as `enable_thinking`; one that the"
        " template does not know has no effect.",
    )
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_OUTPUT_TOKENS)


class TextRequest(StructuredFields, _Generation):
    """The body of /v1/completions; the prompt is not framed by a chat template."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "llama-3.1-8b-instruct", "prompt": "The sky is blue because", "max_tokens": 512}
            ]
        }
    )

    prompt: Annotated[NonEmpty, BeforeValidator(_prompt)]
    logprobs: TextLogProbs = Field(
        None,
        description="Return the log probability of each token, and so many of the most likely tokens in its"
        " place.",
    )

    def scored(self, model: str, takes: Takes, *, max_tokens: int | None) -> JsonObject:
        """Return what is asked for, as `LogProbFields.scored` does."""
        if self.logprobs is None:
            return {}
        return scored(self.logprobs, "logprobs", model, takes, max_tokens=max_tokens)


@dataclass(frozen=True, slots=True)
class Generation:
    """A validated request.

    Attributes:
        canonical: the prompt, as stored.
        max_tokens: None if the caller set no limit.
        sampling: temperature, 1 by default; top_p, top_k, seed, stop as given.
        stream: whether to stream the tokens.
        include_usage: whether the stream ends with the usage.
        share_equal: whether it may run once with equal ones; None: as the server is configured.
        cache: the results that it takes instead of a run; None: none.
        form: what its answer must be.
        num_choices: answers that it wants.
        inputs: what it wants vectors of, as stored; then it generates nothing, and `canonical` is the first.
    """

    model: str
    canonical: str
    max_tokens: int | None
    sampling: JsonObject
    stream: bool
    include_usage: bool
    share_equal: bool | None = None
    cache: CachePolicy | None = None
    form: AnswerForm = ANY_FORM
    num_choices: int = 1
    inputs: tuple[str, ...] = ()

    @property
    def prompts(self) -> tuple[str, ...]:
        """The distinct prompts of its jobs; all choices have the same."""
        return self.inputs or (self.canonical,)

    @property
    def num_jobs(self) -> int:
        """How many jobs it is: one for each choice, or for each input."""
        return len(self.inputs) or self.num_choices

    @property
    def is_whole(self) -> bool:
        """True if one request must generate the whole answer."""
        return bool(self.inputs) or self.form.guide is not None or needs_whole(self.sampling)

    def tokens_within(self, default: int) -> int:
        """Return its limit of tokens; without one of its own the default, or for how many all is kept."""
        if self.max_tokens is not None:
            return self.max_tokens
        num_top = self.sampling.get("logprobs")
        return min(default, most_scored(num_top)) if isinstance(num_top, int) else default


# What is supported by one of them is not neutral there.
_NEUTRAL_IN: Final = {
    kind: {name: values for name, values in _NEUTRAL.items() if name not in kind.model_fields}
    for kind in (ChatRequest, TextRequest)
}
_SAMPLED: Final = {
    kind: tuple(name for name in kind.model_fields if name in SAMPLING) for kind in (ChatRequest, TextRequest)
}


def validate_request(endpoint: Endpoint, body: Mapping[str, Any], takes: Takes = UNKNOWN) -> Generation:
    """Validate the body of a request to `endpoint`.

    Args:
        endpoint: what it asks for.
        body: its JSON.
        takes: what engines can be asked for.

    Raises:
        InvalidRequestError: a parameter is invalid or not supported; `param` names it.
    """
    kind: type[ChatRequest | TextRequest] = ChatRequest if endpoint is Endpoint.CHAT else TextRequest
    given = supported(body, _NEUTRAL_IN[kind])
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        raise invalid_request(error, kind) from None  # the original quotes the prompt
    form, canonical = _asked(request, takes)
    max_tokens = _max_tokens(request)
    return Generation(
        model=request.model,
        canonical=canonical,
        max_tokens=max_tokens,
        sampling=_DEFAULTS
        | {name: value for name in _SAMPLED[kind] if (value := getattr(request, name)) is not None}
        | request.picked(request.model, takes, max_tokens=max_tokens)
        | request.scored(request.model, takes, max_tokens=max_tokens),
        stream=request.stream,
        include_usage=request.stream_options is not None and request.stream_options.include_usage,
        share_equal=request.share_equal,
        cache=request.cache,
        form=form,
        num_choices=request.n or 1,
    )


def usage_object(
    *,
    prompt_tokens: int | None,
    completion_tokens: int,
    reasoning_tokens: int = 0,
    cached_tokens: int | None = None,
) -> JsonObject:
    """Build the `usage` of one completion.

    Args:
        prompt_tokens: None: not counted.
        completion_tokens: generated.
        reasoning_tokens: part of `completion_tokens`.
        cached_tokens: part of `prompt_tokens`; None: the engine did not tell, and the details are left out.
    """
    details = {} if cached_tokens is None else {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": (prompt_tokens or 0) + completion_tokens,
        **details,
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def error_object(code: str, message: str, *, param: str | None = None, status: int = 400) -> JsonObject:
    """Build the body of an error response."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def too_long_message(*, limit: int, prompt_tokens: int, max_tokens: int, is_least: bool = False) -> str:
    """Word the error for a request that can never fit; clients match its beginning."""
    total = prompt_tokens + max_tokens
    least = "at least " if is_least else ""  # counting stopped at the limit
    return (
        f"This model's maximum context length is {limit} tokens. However, you requested {least}{total} tokens"
        f" ({least}{prompt_tokens} in the prompt, {max_tokens} for the completion)."
    )


def supported(
    body: Mapping[str, Any],
    neutral: Mapping[str, tuple[object, ...]] = _NEUTRAL,
    ignored: Collection[str] = _IGNORED,
) -> dict[str, Any]:
    """Return the parameters that take effect here; null counts as absent.

    Args:
        body: of the request.
        neutral: unsupported parameters, with the values that request nothing.
        ignored: parameters that change nothing.

    Raises:
        UnsupportedParameterError: a parameter requests something that Longbatch does not do.
    """
    found: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in ignored:
            continue
        if name not in neutral:
            found[name] = value
        # `0 == False`, so booleans match only booleans; 0.0 may match 0.
        elif not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral[name]
        ):
            instead = _INSTEAD.get(name, "is not supported with this value.")
            raise UnsupportedParameterError(f"{name} {instead}", param=name)
    return found


def invalid_request(
    error: ValidationError, kind: type[BaseModel], *, branches: frozenset[str] = frozenset()
) -> InvalidRequestError:
    """Turn pydantic's first complaint about a body of this kind into an error that names the field."""
    first = complaints(error)[0]
    named = from_validation(error, branches=branches | TURN_BRANCHES | CHOICE_BRANCHES)
    if first["type"] == "extra_forbidden" and named.param not in kind.model_fields:
        return UnsupportedParameterError(f"There is no parameter {named.param!r} here.", param=named.param)
    return named


def _max_tokens(request: ChatRequest | TextRequest) -> int | None:
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    if newer is not None and request.max_tokens is not None and newer != request.max_tokens:
        raise InvalidRequestError(
            "max_tokens and max_completion_tokens must not differ.", param="max_completion_tokens"
        )
    return request.max_tokens if newer is None else newer


def _asked(request: ChatRequest | TextRequest, takes: Takes) -> tuple[AnswerForm, str]:
    """Return what the answer must be, and the prompt."""
    if isinstance(request, TextRequest):
        form = AnswerForm(request.guide_on(request.model, takes))
        form.check_fallback(is_stream=request.stream, is_chat=False)
        return form, messages.canonical_text(request.prompt)
    form, tools = request.form_on(request.model, takes)
    form.check_fallback(is_stream=request.stream, is_chat=True)
    turns = with_words(messages_of(request.messages, param="messages"), form.guide)
    return form, messages.canonical(turns, variables=request.chat_template_kwargs, tools=tools)
