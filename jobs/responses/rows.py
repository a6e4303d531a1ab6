"""What is kept of responses besides their jobs: written with the job, read for callers, deleted with it."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy import LargeBinary, select, type_coerce
from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.base import JsonObject
from jobs.database.sealed_columns import sealer_in
from jobs.database.statements import insert_set
from jobs.errors import NotFoundError
from jobs.models import Job, PromptText, Result, StoredResponse
from jobs.models.prompt import BODY
from jobs.prompts.store import NewText, unpacked
from jobs.responses.objects import NOTHING, ResponseOutput, ResponseState, response_object, stored_output
from jobs.sealing.content import ContentUnreadableError


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """What is kept of a response besides its job.

    Attributes:
        request: the parameters that it repeats.
        input: its items; None: it cannot be retrieved.
    """

    request: NewText
    input: NewText | None = None

    @property
    def texts(self) -> list[NewText]:
        """What is stored with it."""
        return [self.request] if self.input is None else [self.request, self.input]


def response_spec(repeated: JsonObject, items: Sequence[JsonObject] | None = None) -> ResponseSpec:
    """Pack what is kept of a response; without items it cannot be retrieved."""
    kept = None if items is None else NewText(to_json({"input": items}).decode())
    return ResponseSpec(NewText(json.dumps({"response": repeated}, sort_keys=True, ensure_ascii=False)), kept)


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response that can be retrieved.

    Attributes:
        job: that generates its output.
        repeated: the parameters of its request.
        output: of a job that has ended.
    """

    job: Job
    repeated: JsonObject
    output: ResponseOutput = NOTHING

    @property
    def is_background(self) -> bool:
        """True if its caller does not wait for it."""
        return self.repeated["background"] is True

    def as_object(self) -> JsonObject:
        """Return it as callers see it."""
        return response_object(ResponseState.of(self.job), self.repeated, self.output)


def insert(
    session: Session,
    specs: Mapping[UUID, ResponseSpec],
    *,
    tenant_id: UUID,
    text_ids: Mapping[bytes, UUID],
) -> None:
    """Insert what is kept of responses, by their jobs, which this transaction has inserted."""
    if not specs:
        return
    found = list(specs.values())
    inserting = insert_set(
        StoredResponse,
        {
            "job_id": list(specs),
            "tenant_id": [tenant_id] * len(found),
            "request_id": [text_ids[each.request.sha256] for each in found],
            "input_id": [each.input and text_ids[each.input.sha256] for each in found],
        },
    )
    statements.fetch(session, *inserting)


def find(session: Session, response_id: UUID, *, tenant_id: UUID) -> KeptResponse:
    """Read the tenant's response.

    Raises:
        NotFoundError: the tenant has no such response, or it was not to be stored.
    """
    row = session.execute(
        select(Job, PromptText.body)
        .join(StoredResponse, StoredResponse.job_id == Job.id)
        .join(PromptText, PromptText.id == StoredResponse.request_id)
        .where(Job.id == response_id, Job.tenant_id == tenant_id, StoredResponse.input_id.is_not(None))
    ).one_or_none()
    if row is None:
        raise NotFoundError("There is no such response.")
    job, body = row
    output = NOTHING if job.finalized_at is None else read_output(session, job.id)
    return KeptResponse(job, unpacked(body, "response"), output)


def repeated_by(session: Session, job_ids: Collection[UUID]) -> dict[UUID, JsonObject]:
    """Read the parameters that the responses of these jobs repeat, by their jobs.

    Those that cannot be read are left out.
    """
    sealer = sealer_in(session)
    rows = session.execute(
        select(StoredResponse.job_id, PromptText.id, type_coerce(PromptText.body, LargeBinary))
        .join(PromptText, PromptText.id == StoredResponse.request_id)
        .where(StoredResponse.job_id.in_(job_ids))
    ).all()
    bodies = {text_id: body for _, text_id, body in rows}  # few: equal ones are stored once
    found: dict[UUID, JsonObject] = {}
    for text_id, body in bodies.items():
        with suppress(ContentUnreadableError):
            found[text_id] = unpacked(sealer.open_bytes(body, BODY.place), "response")
    return {job_id: found[text_id] for job_id, text_id, _ in rows if text_id in found}


def read_output(session: Session, job_id: UUID) -> ResponseOutput:
    """Read what the response's job generated, whole or partial."""
    result = session.get(Result, job_id)
    if result is None:
        return NOTHING
    return stored_output(
        output=result.output,
        reasoning=result.reasoning,
        reasoning_tokens=result.reasoning_tokens,
        log_probs=result.log_probs,
        tool_calls=result.tool_calls,
    )


def read_items(session: Session, response_id: UUID, *, tenant_id: UUID) -> list[JsonObject]:
    """Read the items of a response's input, in their order.

    Raises:
        NotFoundError: as `find`.
    """
    body = session.scalar(
        select(PromptText.body)
        .join(StoredResponse, StoredResponse.input_id == PromptText.id)
        .where(StoredResponse.job_id == response_id, StoredResponse.tenant_id == tenant_id)
    )
    if body is None:
        raise NotFoundError("There is no such response.")
    items: list[JsonObject] = unpacked(body, "input")
    return items


def text_ids_of(session: Session, job_ids: Collection[UUID]) -> set[UUID]:
    """Find the texts that are kept for the responses of these jobs."""
    rows = session.execute(
        select(StoredResponse.request_id, StoredResponse.input_id).where(StoredResponse.job_id.in_(job_ids))
    )
    return {text_id for row in rows for text_id in row if text_id is not None}
