"""Replies of the routes of responses, modelled for the API documentation."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.fields import Seconds, example
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
from jobs.responses.items import ItemStatus

_ID = "resp_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_RESPONSE: dict[str, Any] = {
    "id": _ID,
    "object": "response",
    "created_at": 1769860800,
    "completed_at": 1769860812,
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "llama-3.1-8b-instruct",
    "output": [
        {
            "id": "msg_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {
                    "type": "output_text",
                    "text": "Air scatters blue light more.",
                    "annotations": [],
                    "logprobs": [],
                }
            ],
        }
    ],
    "usage": {
        "input_tokens": 21,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 30,
    },
    "metadata": {"team": "research"},
    "background": True,
    "instructions": None,
    "max_output_tokens": 512,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "flex",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_ITEM: dict[str, Any] = {
    "id": "msg_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6fin0",
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_text", "text": "Why is the sky blue?"}],
}


class ResponseErrorReply(BaseModel):
    """Why a response failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteReply(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseInputTokens(BaseModel):
    """Tokens of the prompt by kind."""

    cached_tokens: int = Field(description="What the engine had in its cache; 0 if it does not tell.")
    cache_write_tokens: Literal[0]


class ResponseOutputTokens(BaseModel):
    """Generated tokens by kind."""

    reasoning_tokens: int


class ResponseUsageReply(BaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: ResponseInputTokens
    output_tokens: int
    output_tokens_details: ResponseOutputTokens
    total_tokens: int


class ResponseReply(BaseModel):
    """A response."""

    model_config = example(**_RESPONSE)

    id: str
    object: Literal["response"]
    created_at: Seconds
    completed_at: Seconds | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseErrorReply | None
    incomplete_details: IncompleteReply | None
    model: str
    output: list[dict[str, Any]] = Field(
        description="Items of type `reasoning` (what the model thought), `message` and `function_call`;"
        " empty until the response has ended. Partial if it is cancelled, failed or incomplete."
    )
    usage: ResponseUsageReply | None = Field(description="Null until the response has ended.")
    metadata: dict[str, str]
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default", "flex", "priority"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class InputItemReply(BaseModel):
    """An item of an input."""

    model_config = example(**_ITEM)

    id: str
    type: Literal["message", "reasoning", "function_call", "function_call_output"]
    role: Literal["user", "assistant", "system", "developer"] | None = None
    status: ItemStatus | None = None
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[dict[str, Any]] | None = None


class InputItemListReply(ListReply[InputItemReply]):
    """A page of the items of an input."""

    model_config = page_example(_ITEM)


class DeletedResponseReply(DeletionReply[Literal["response"]]):
    """A response that was deleted."""

    model_config = gone_example(_RESPONSE)
