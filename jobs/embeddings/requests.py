"""Requests for embeddings: OpenAI's body, validated, and its inputs as prompts of one job each."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import messages
from jobs.prompts.abilities import DIMENSIONS, EMBEDDINGS, UNKNOWN, Takes, TokenId, is_lacking, refusal
from jobs.prompts.openai import Generation
from jobs.validation import CachePolicy, Closed, NonEmpty, Text, complaints, from_validation

# OpenAI's limit of inputs.
MAX_INPUTS: Final = 2048
# More numbers than any model's vector has.
_MAX_DIMENSIONS: Final = 65_536
_BRANCHES: Final = frozenset({"[text]", "[texts]", "[ids]", "[lists]"})

# Of a body of megabytes the first wrong id says enough: each error takes a kilobyte.
_Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_Texts = Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS)]
_Lists = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_INPUTS)]


def _kind_of_input(value: object) -> str:
    match value:
        case [int(), *_]:
            return "[ids]"
        case [list(), *_]:
            return "[lists]"
        case list():
            return "[texts]"
        case _:
            return "[text]"


_Input = Annotated[
    Annotated[NonEmpty, Tag("[text]")]
    | Annotated[_Texts, Tag("[texts]")]
    | Annotated[_Ids, Tag("[ids]")]
    | Annotated[_Lists, Tag("[lists]")],
    Discriminator(_kind_of_input),
]


def _or_float(value: object) -> object:
    return "float" if value is None else value


class EmbeddingsRequest(Closed):
    """The body of /v1/embeddings."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "bge-m3", "input": ["The sky is blue.", "Grass is green."]}]
        }
    )

    model: NonEmpty
    input: _Input = Field(
        description=f"A text, a list of token ids, or up to {MAX_INPUTS} of either; each gets a vector. The"
        " tokens that the model puts around a text are added; token ids are taken as they are."
    )
    encoding_format: Annotated[Literal["float", "base64"], BeforeValidator(_or_float)] = Field(
        "float", description="How vectors are written: numbers, or base64 of float32, little-endian."
    )
    dimensions: int | None = Field(
        None, ge=1, le=_MAX_DIMENSIONS, description="Shorten vectors to so many numbers, where the model can."
    )
    user: Text | None = Field(None, description="Changes nothing.")
    share_equal: bool | None = Field(
        None,
        description="in a batch: let inputs that are equal run once; null: as the server is configured",
    )
    cache: CachePolicy | None = Field(
        None, description="in a batch: take the vectors of equal inputs that ended not longer ago than this"
    )

    @property
    def written_as(self) -> JsonObject:
        """What a batch keeps with its jobs of how vectors are written."""
        return {} if self.encoding_format == "float" else {"encoding_format": self.encoding_format}


def validate(body: Mapping[str, Any], takes: Takes = UNKNOWN) -> tuple[EmbeddingsRequest, Generation]:
    """Validate the body of a request for embeddings.

    Args:
        body: its JSON.
        takes: what engines can be asked for.

    Returns:
        The request, and what its jobs are asked for.

    Raises:
        InvalidRequestError: a parameter is invalid; `param` names it.
        UnsupportedParameterError: the model's engines do not embed, or cannot shorten vectors.
    """
    try:
        request = EmbeddingsRequest.model_validate(body)
    except ValidationError as error:
        raise _invalid(error) from None  # the original quotes the input
    _check_able(request, takes)
    sampling: JsonObject = {} if request.dimensions is None else {"dimensions": request.dimensions}
    inputs = tuple(messages.canonical_input(each) for each in _listed(request.input))
    return request, Generation(
        model=request.model,
        canonical=inputs[0],
        max_tokens=1,  # what is reserved beside the input, and not used
        sampling=sampling,
        stream=False,
        include_usage=False,
        share_equal=request.share_equal,
        cache=request.cache,
        inputs=inputs,
    )


def check_adapter(adapter: str | None) -> None:
    """Refuse an adapter: engines embed by the model as it is.

    Raises:
        UnsupportedParameterError: one is named.
    """
    if adapter is not None:
        message = f"model: the adapter {adapter!r} gives no embeddings; name the model alone."
        raise UnsupportedParameterError(message, param="model")


def name_of_input(request: EmbeddingsRequest, index: int) -> str:
    """Name the field that has an input."""
    return "input" if _kind_of_input(request.input) in {"[text]", "[ids]"} else f"input.{index}"


def _invalid(error: ValidationError) -> InvalidRequestError:
    found = complaints(error)
    first = found[0]
    if first["loc"][:1] == ("input",) and first["type"] == "too_long" and len(first["loc"]) == 2:
        message = f"input: must not have more than {MAX_INPUTS} inputs."
        return InvalidRequestError(message, param="input")
    return from_validation(found, branches=_BRANCHES)


def _listed(given: str | Sequence[Any]) -> Sequence[Any]:
    return [given] if _kind_of_input(given) in {"[text]", "[ids]"} else given


def _check_able(request: EmbeddingsRequest, takes: Takes) -> None:
    """Refuse what not every engine of the model can do.

    Raises:
        UnsupportedParameterError: its message lists what they can.
    """
    if is_lacking(EMBEDDINGS, request.model, takes):
        raise refusal("model", [EMBEDDINGS], request.model, takes)
    if request.dimensions is not None and is_lacking(DIMENSIONS, request.model, takes):
        raise refusal("dimensions", [DIMENSIONS], request.model, takes)
