"""What a request may ask of an engine besides a prompt: names, fields, and what engines of a model take."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from jobs.answers.log_probs import MAX_SCORES, MAX_TOP
from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts.guides import GuideKind
from jobs.validation import Closed, StopString

# What workers of the release before pass on too, or refuse by name when the job starts.
ALWAYS: Final = frozenset({"temperature", "top_p", "top_k", "min_tokens"})
# Answers may call functions, which their worker finds.
TOOLS: Final = "tools"
# Answers may come from an adapter of the model.
LORA: Final = "lora"
GUIDED: Final = frozenset(kind.value for kind in GuideKind)
# The penalties for tokens that came before, by their value that penalizes none.
PENALTIES: Final[Mapping[str, float]] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
}
# The engine gives the vector of a prompt; one that takes nothing else generates no text.
EMBEDDINGS: Final = "embeddings"
# Vectors of fewer numbers are the first of them, for which the model was trained (Matryoshka).
DIMENSIONS: Final = "dimensions"
# What a kind of engines lacks unless its server or a setting tells otherwise.
VECTORS: Final = frozenset({EMBEDDINGS, DIMENSIONS})
# The log probability of each token, and those of others in its place.
SCORED: Final = frozenset({"logprobs", "top_logprobs"})
ABILITIES: Final = (
    ALWAYS
    | GUIDED
    | SCORED
    | PENALTIES.keys()
    | {"min_p", "logit_bias", "bad_words", "stop_token_ids", "ignore_eos", LORA}
    | VECTORS
)
# An engine that went on in the middle would not see what they are about.
_WHOLE: Final = frozenset({*PENALTIES, "bad_words"})

# What all engines of a model take. A model that is not in it may be asked for anything: none of its engines
# was seen lately, and the one that gets the job refuses by name what it lacks.
Takes = Mapping[str, frozenset[str]]
UNKNOWN: Final[Takes] = {}


_TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class SamplingFields(Closed):
    """The fields of all requests that generate, besides those that every engine takes."""

    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="Per earlier occurrence of a token in the answer."
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Once for each token that the answer has."
    )
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="Divides the scores of tokens in prompt and answer; 1: none."
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="Only tokens this likely, relative to the most likely one."
    )
    logit_bias: dict[_TokenName, _Bias] | None = Field(
        None, max_length=1024, description="Added to the scores of these token ids."
    )
    bad_words: list[StopString] | None = Field(None, max_length=64, description="Never part of the answer.")
    stop_token_ids: list[TokenId] | None = Field(
        None, max_length=64, description="The answer ends before the first of these tokens."
    )
    ignore_eos: bool | None = Field(None, description="Do not end the answer at the model's end token.")
    min_tokens: int | None = Field(None, ge=0, lt=2**31, description="No end token before so many tokens.")

    def picked(self, model: str, takes: Takes, *, max_tokens: int | None) -> JsonObject:
        """Return those that change anything, as a job's sampling has them.

        Args:
            model: that is to answer.
            takes: what its engines take.
            max_tokens: of the request; None: it has no limit of its own.

        Raises:
            InvalidRequestError: more tokens are wanted than may come.
            UnsupportedParameterError: not every engine of the model takes one of them, or generates text.
        """
        if not generates(takes.get(model, ALWAYS)):
            raise refusal("model", ["requests for text"], model, takes)
        found = {
            name: value
            for name in _SAMPLING_NAMES
            if (value := getattr(self, name)) is not None
            and value != PENALTIES.get(name)
            and (value or name in PENALTIES)
        }
        for name in found:
            if is_lacking(name, model, takes):
                raise refusal(name, [name], model, takes)
        if max_tokens is not None and found.get("min_tokens", 0) > max_tokens:
            message = "min_tokens: must not exceed max_tokens."
            raise InvalidRequestError(message, param="min_tokens")
        return found


class LogProbFields(Closed):
    """What a request may ask of the log probabilities of its answer's tokens, as OpenAI's chat does."""

    logprobs: bool | None = Field(None, description="Return the log probability of each token of the answer.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TOP,
        description="Return so many of the most likely tokens in the place of each; needs `logprobs`.",
    )

    def scored(self, model: str, takes: Takes, *, max_tokens: int | None) -> JsonObject:
        """Return what is asked for, as a job's sampling has it.

        Args:
            model: that is to answer.
            takes: what its engines take.
            max_tokens: of the request; None: it has no limit of its own.

        Raises:
            InvalidRequestError: `top_logprobs` is set without `logprobs`, or they are more than is kept.
            UnsupportedParameterError: not every engine of the model tells them.
        """
        if self.logprobs:
            return scored(self.top_logprobs or 0, "top_logprobs", model, takes, max_tokens=max_tokens)
        if self.top_logprobs:
            message = "top_logprobs: needs logprobs to be true."
            raise InvalidRequestError(message, param="top_logprobs")
        return {}


# A text completion asks for them by one number.
TextLogProbs = Annotated[
    Annotated[int, Field(ge=0, le=MAX_TOP)] | None,
    BeforeValidator(lambda value: None if value is False else value),
]


def scored(num_top: int, param: str, model: str, takes: Takes, *, max_tokens: int | None) -> JsonObject:
    """Return the log probabilities that a request asks for, as a job's sampling has them.

    Args:
        num_top: alternatives of each token.
        param: the field that asks for those.
        model: that is to answer.
        takes: what its engines take.
        max_tokens: of the request; None: it has no limit of its own.

    Raises:
        InvalidRequestError: they are more than is kept.
        UnsupportedParameterError: not every engine of the model tells them.
    """
    if is_lacking("logprobs", model, takes):
        raise refusal("logprobs", ["logprobs"], model, takes)
    if num_top and is_lacking("top_logprobs", model, takes):
        raise refusal(param, ["top_logprobs"], model, takes)
    if max_tokens is not None and max_tokens > most_scored(num_top):
        least = f"max_tokens must not exceed {most_scored(num_top)} with {num_top} of them for each token"
        raise InvalidRequestError(f"{param}: {least}.", param=param)
    return {"logprobs": num_top}


def most_scored(num_top: int) -> int:
    """Return for how many tokens log probabilities are kept, with so many alternatives of each."""
    return MAX_SCORES // (1 + num_top)


# Pydantic takes as long to say them as to check most requests.
_SAMPLING_NAMES: Final = tuple(SamplingFields.model_fields)


def needs_whole(sampling: Mapping[str, object]) -> bool:
    """Return True if one request must generate the whole answer."""
    return not _WHOLE.isdisjoint(sampling)


def generates(taken: frozenset[str]) -> bool:
    """Return True if engines that take this generate text."""
    return EMBEDDINGS not in taken or not taken <= VECTORS


def is_lacking(name: str, model: str, takes: Takes) -> bool:
    """Return True if not every engine of the model takes this."""
    return model in takes and name not in takes[model]


def refusal(param: str, needs: Iterable[str], model: str, takes: Takes) -> UnsupportedParameterError:
    """Word why requests for this model cannot have a field."""
    listed = ", ".join(sorted(takes[model])) or "none of these parameters"
    missing = " and ".join(sorted(needs))
    message = f"{param}: not every engine of the model {model!r} takes {missing}; its engines take {listed}."
    return UnsupportedParameterError(message, param=param)
