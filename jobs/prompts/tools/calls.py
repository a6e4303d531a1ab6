"""Calls of functions: in a conversation, in an answer, and as OpenAI writes them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final, TypeAlias
from uuid import UUID

Json: TypeAlias = dict[str, object]

_ID_CHARS: Final = 24  # as many as OpenAI's have


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in a conversation.

    Attributes:
        id: by which a result names it.
        name: of the function.
        arguments: JSON, as the model wrote it; nothing keeps a model from writing something else.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call in an answer.

    Attributes:
        at: characters of the answer's text before it.
        name: of the function.
        arguments: as in `ToolCall`; the beginning alone if the answer was cut there.
    """

    at: int
    name: str
    arguments: str


def write_calls(calls: Sequence[MadeCall]) -> str | None:
    """Write the calls of an answer as the JSON that is stored; None: there are none."""
    return json.dumps([asdict(each) for each in calls], ensure_ascii=False) if calls else None


def read_calls(written: str | None) -> tuple[MadeCall, ...]:
    """Read what `write_calls` wrote."""
    return tuple(MadeCall(**each) for each in json.loads(written)) if written else ()


def call_id(job_id: UUID, index: int) -> str:
    """Name a call of a job's answer: whoever reads the answer finds the same name, wherever it is read."""
    return f"call_{sha256(job_id.bytes + index.to_bytes(4)).hexdigest()[:_ID_CHARS]}"


def call_objects(calls: Sequence[MadeCall], job_id: UUID) -> list[Json]:
    """Write the calls of an answer as OpenAI's `tool_calls`."""
    return [
        call_object(ToolCall(call_id(job_id, index), each.name, each.arguments))
        for index, each in enumerate(calls)
    ]


def call_object(call: ToolCall) -> Json:
    """Write a call as OpenAI's `tool_calls` have it."""
    function: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
