"""Replies of the interactive routes, modelled for the API documentation."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.fields import Seconds, example
from api.http.replies import IF_TOLD, ChatLogProbs, PromptDetails, ToolCallReply
from jobs.prompts.estimates import TokenCounts
from jobs.views import FinishReasonName

_USAGE: dict[str, Any] = {
    "prompt_tokens": 21,
    "completion_tokens": 9,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
_MODEL: dict[str, Any] = {
    "id": "llama-3.1-8b-instruct",
    "object": "model",
    "created": 1769860800,
    "owned_by": "longbatch",
    "token_counts": "exact",
}


class CompletionDetails(BaseModel):
    """Generated tokens by kind."""

    reasoning_tokens: int = Field(description="Tokens of thinking, its tags included.")


class TokenUsage(BaseModel):
    """Tokens of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = IF_TOLD
    completion_tokens_details: CompletionDetails


class AssistantMessage(BaseModel):
    """The model's answer."""

    role: Literal["assistant"]
    content: str | None = Field(description="Null if it only calls functions.")
    reasoning_content: str | None = Field(
        description="What the model thought first, without its tags; null: nothing."
    )
    refusal: None
    tool_calls: list[ToolCallReply] = Field(
        [], description="The functions that it calls; left out if there are none."
    )


class ChatChoice(BaseModel):
    """One choice of the answer."""

    index: int = Field(description="From 0; with `n` there are several.")
    message: AssistantMessage
    logprobs: ChatLogProbs | None = Field(description="Of the visible text's tokens; null: not asked for.")
    finish_reason: FinishReasonName


class ChatCompletionReply(BaseModel):
    """A chat completion."""

    model_config = example(
        id="chatcmpl-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
        object="chat.completion",
        created=1769860800,
        model="llama-3.1-8b-instruct",
        choices=[
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Paris is the capital.",
                    "reasoning_content": None,
                    "refusal": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        usage=_USAGE,
        system_fingerprint=None,
    )

    id: str
    object: Literal["chat.completion"]
    created: Seconds
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    system_fingerprint: None


class TextLogProbsReply(BaseModel):
    """The log probabilities of a text's tokens, by their places."""

    tokens: list[str] = Field(
        description="A token that ends inside a character is written as `bytes:` and its bytes."
    )
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None = Field(
        description="The most likely tokens in the place of each, and that token; null: none were asked for."
    )
    text_offset: list[int] = Field(description="Where each token begins in `text`, in characters.")


class TextChoice(BaseModel):
    """One choice of the answer."""

    index: int = Field(description="From 0; with `n` there are several.")
    text: str
    logprobs: TextLogProbsReply | None = Field(description="Of the text's tokens; null: not asked for.")
    finish_reason: FinishReasonName


class TextCompletionReply(BaseModel):
    """A text completion."""

    model_config = example(
        id="cmpl-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
        object="text_completion",
        created=1769860800,
        model="llama-3.1-8b-instruct",
        choices=[{"index": 0, "text": " a time", "logprobs": None, "finish_reason": "length"}],
        usage=_USAGE,
        system_fingerprint=None,
    )

    id: str
    object: Literal["text_completion"]
    created: Seconds
    model: str
    choices: list[TextChoice]
    usage: TokenUsage
    system_fingerprint: None


class GenerateReply(BaseModel):
    """A generated text."""

    model_config = example(text=" a time", finish_reason="length", usage=_USAGE)

    text: str
    finish_reason: FinishReasonName
    usage: TokenUsage


class EmbeddingReply(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int = Field(description="Of the input, from 0.")
    embedding: list[float] | str = Field(description="A text in base64 if `encoding_format` asks for it.")


class EmbeddingUsage(BaseModel):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """The vectors of all inputs."""

    model_config = example(
        object="list",
        data=[{"object": "embedding", "index": 0, "embedding": [0.0123, -0.0456]}],
        model="bge-m3",
        usage={"prompt_tokens": 7, "total_tokens": 7},
    )

    object: Literal["list"]
    data: list[EmbeddingReply]
    model: str
    usage: EmbeddingUsage


class ModelReply(BaseModel):
    """A model that this server serves."""

    model_config = example(**_MODEL)

    id: str
    object: Literal["model"]
    created: Seconds
    owned_by: str
    parent: str | None = Field(None, description="The model that an adapter changes; models have none.")
    root: str | None = Field(None, description="As `parent`.")
    token_counts: TokenCounts


class ModelListReply(BaseModel):
    """The models that this server serves."""

    model_config = example(object="list", data=[_MODEL])

    object: Literal["list"]
    data: list[ModelReply]
