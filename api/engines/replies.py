"""Replies about engines, modelled for the API documentation."""

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from api.http.fields import example
from api.http.halts import PAUSED, HaltReply, halt_object
from api.http.replies import ListReply, page_example
from jobs.models import Worker
from jobs.queries import EngineUsage
from jobs.scheduling.halts import halt_of
from jobs.views import rfc3339

_ENGINE: Final[dict[str, Any]] = {
    "id": "a6000-1",
    "object": "engine",
    "model": "llama-3.1-8b-instruct",
    **PAUSED,
    "is_ready": True,
    "not_ready_reason": None,
    "refused_worker": None,
    "seen_at": "2026-01-31T12:01:00.123456Z",
    "slots": 4,
    "slots_booked": 2,
    "waiting_room": 0,
    "blocks": 2048,
    "blocks_booked": 1530,
    "tokens_per_block": 64,
    "max_input_len": 96_000,
    "max_seq_len": 131_072,
}


class RefusedWorkerReply(BaseModel):
    """A worker that could not register its engine."""

    name: str = Field(description="Its host and process id.")
    model: str | None = Field(description="The model that it is to serve.")
    reason: str


class RegisteredEngineReply(HaltReply):
    """An engine: whether it starts jobs, what it can hold, and what is reserved on it."""

    model_config = example(**_ENGINE)

    id: str = Field(description="The name that its worker is configured with.")
    object: Literal["engine"]
    model: str
    is_ready: bool = Field(
        description="A worker has looked for jobs for it within 30 s, and would give it some but for an"
        " operator's order."
    )
    not_ready_reason: str | None = Field(
        description="Why no job starts: its worker is silent, has not looked for jobs lately, or says this."
    )
    refused_worker: RefusedWorkerReply | None = Field(
        description="A worker that is to feed an engine of this name and does not, because its server fails a"
        " check or the name is another engine's. An engine that was never registered has 0 slots and blocks."
    )
    seen_at: datetime = Field(description="When its worker last found it ready.")
    slots: int
    slots_booked: int = Field(
        description="Requests that it has or may still have; more than `slots` while some wait for one."
    )
    waiting_room: int = Field(description="Requests that may wait inside the engine for a slot.")
    blocks: int
    blocks_booked: int
    tokens_per_block: int
    max_input_len: int
    max_seq_len: int


class EngineListReply(ListReply[RegisteredEngineReply]):
    """All engines by name; never more than one page."""

    model_config = page_example(_ENGINE)

    last_id: str | None


def _refused(worker: Worker | None) -> dict[str, Any] | None:
    if worker is None:
        return None
    return {"name": worker.name, "model": worker.model, "reason": worker.refusal}


def engine_object(usage: EngineUsage) -> dict[str, Any]:
    """Convert an engine to the shape that operators see."""
    engine = usage.engine
    return {
        "id": engine.name,
        "object": "engine",
        "model": engine.model,
        **halt_object(halt_of(engine), num_running=usage.held_slots),
        "is_ready": usage.not_ready_reason is None,
        "not_ready_reason": usage.not_ready_reason,
        "refused_worker": _refused(usage.refused),
        "seen_at": rfc3339(engine.seen_at),
        "slots": engine.max_batch_size,
        "slots_booked": usage.held_slots,
        "waiting_room": engine.waiting_room,
        "blocks": engine.max_blocks,
        "blocks_booked": usage.held_blocks,
        "tokens_per_block": engine.tokens_per_block,
        "max_input_len": engine.max_input_len,
        "max_seq_len": engine.max_seq_len,
    }
