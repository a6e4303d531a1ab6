"""Halts over HTTP: the body of an order, who orders, and what is shown of an order."""

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field
from starlette.requests import Request

from api.http.body import parse, read_body
from api.http.fields import example
from api.runtime.api_keys import Caller
from jobs.scheduling.halts import MAX_REASON_CHARS, Halt, Operator
from jobs.states.halt import HaltState, state_of
from jobs.validation import Closed, Line
from jobs.views import rfc3339

_MAX_BYTES: Final = 8 * 1024

PAUSED: Final[dict[str, Any]] = {
    "state": "paused",
    "reason": "new driver",
    "by": {"key": "lb_0123456789abcdef", "name": "ops"},
    "since": "2026-01-31T12:00:00.123456Z",
}


class HaltRequest(Closed):
    """Why no job is to start; tenants whose jobs wait for it read this."""

    model_config = example(reason="new driver")

    reason: Line = Field(max_length=MAX_REASON_CHARS)


class ResumeRequest(Closed):
    """Why jobs are to start again, for the log; the body may be left out."""

    model_config = example(reason="the driver is there")

    reason: Annotated[Line, Field(max_length=MAX_REASON_CHARS)] | None = None


class OperatorReply(BaseModel):
    """The API key that gave an order."""

    key: str | None = Field(description="Its public part, as `GET /v1/keys` has it; null: the command line.")
    name: str


class HaltReply(BaseModel):
    """Whether jobs start, and who ordered that they do not."""

    state: HaltState = Field(
        description="`paused`: none starts, running ones go on. `draining`: the same, and some still run;"
        " `drained`: none runs any more."
    )
    reason: str | None
    by: OperatorReply | None
    since: datetime | None


async def read_halt(request: Request) -> HaltRequest:
    """Read the body of an order."""
    return parse(HaltRequest, await read_body(request, max_bytes=_MAX_BYTES))


async def read_resume(request: Request) -> ResumeRequest:
    """Read the body of a resumption, which may be empty."""
    raw = await read_body(request, max_bytes=_MAX_BYTES)
    return parse(ResumeRequest, raw) if raw else ResumeRequest()


def operator_of(caller: Caller) -> Operator:
    """Return the caller as the one who orders."""
    return Operator(caller.key, caller.key_name)


def halt_object(halt: Halt | None, *, num_running: int) -> dict[str, Any]:
    """Convert a halt, or its absence, to the shape that callers see."""
    return {
        "state": state_of(halt.kind if halt else None, num_running=num_running),
        "reason": halt and halt.reason,
        "by": halt and {"key": halt.by.key, "name": halt.by.name},
        "since": halt and rfc3339(halt.since),
    }
