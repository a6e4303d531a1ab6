"""What callers do with a batch, and the transitions that end it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from jobs import audit, files, ids, telemetry, turns
from jobs.audit import Action
from jobs.database import advisory_locks, database_now, note_ended, paging
from jobs.database.advisory_locks import Lock
from jobs.database.paging import FoundRows, Page, Range, SearchRange
from jobs.database.rows import matches, require
from jobs.errors import ConflictError, InvalidRequestError, NotFoundError
from jobs.models.batch import Batch
from jobs.states.batch import TERMINAL, TRANSITIONS, BatchState, Endpoint
from jobs.states.file import FileState
from jobs.turns import Turn
from jobs.validation import WINDOWS
from jobs.webhooks import outbox
from jobs.webhooks.events import batch_ended

# OpenAI's clients repeat an unanswered request twice within seconds.
_REPEATED_WITHIN: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A validated request for a batch.

    Attributes:
        completion_window: a key of `WINDOWS`.
        output_expires_seconds: lifetime of the result files from their completion; None: the default.
        webhook_url: receives an event when the batch ends.
        webhook_secret: signs that event, sealed; None: the tenant's default does.
    """

    input_file_id: UUID
    endpoint: Endpoint
    completion_window: str
    metadata: Mapping[str, str] | None = None
    output_expires_seconds: int | None = None
    webhook_url: str | None = None
    webhook_secret: bytes | None = None

    @property
    def sha256(self) -> bytes:
        """Digest of the requested fields."""
        fields = [
            str(self.input_file_id),
            self.endpoint,
            self.completion_window,
            self.metadata and dict(self.metadata),
            self.output_expires_seconds,
            self.webhook_url,
        ]
        return sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def create(session: Session, spec: BatchSpec, *, tenant_id: UUID) -> Batch:
    """Create a batch whose file waits to be validated.

    Raises:
        InvalidRequestError: the tenant has no such complete input file.
    """
    try:
        file = files.get(session, spec.input_file_id, tenant_id=tenant_id)
    except NotFoundError:
        raise InvalidRequestError("There is no such file.", param="input_file_id") from None
    if file.purpose != files.INPUT:
        message = f"The file's purpose is {file.purpose}, not {files.INPUT}."
        raise InvalidRequestError(message, param="input_file_id")
    if file.state != FileState.COMPLETE:
        raise InvalidRequestError("The file is not complete yet.", param="input_file_id")
    return _add(session, spec, tenant_id=tenant_id, retry_of=None)


def wait_for_others(session: Session, spec: BatchSpec) -> None:
    """Keep other transactions from creating the same batch until this one ends."""
    advisory_locks.hold(session, Lock.BATCH, of=spec.sha256.hex())


def find_repeated(session: Session, spec: BatchSpec, *, tenant_id: UUID) -> Batch | None:
    """Return the batch that the same request created in the last ten minutes, if any."""
    query = (
        select(Batch)
        .where(
            Batch.tenant_id == tenant_id,
            Batch.request_sha256 == spec.sha256,
            Batch.created_at >= database_now(session) - _REPEATED_WITHIN,
            Batch.retry_of.is_(None),
        )
        .order_by(Batch.id.desc())
        .limit(1)
    )
    return session.scalar(query)


def retry(session: Session, batch_id: UUID, *, tenant_id: UUID) -> Batch:
    """Create a batch of the lines that did not complete; validation writes its file.

    Raises:
        NotFoundError: the tenant has no such batch.
        ConflictError: it has not ended, nothing in it failed, or one of its files was deleted.
    """
    batch = get(session, batch_id, tenant_id=tenant_id)
    if not batch.is_terminal:
        raise ConflictError(f"A batch with status '{batch.state}' cannot be retried yet; cancel it first.")
    if batch.error_file_id is None:
        raise ConflictError("No line of this batch failed.")
    try:
        source = files.get(session, batch.input_file_id, tenant_id=tenant_id)
        files.get(session, batch.error_file_id, tenant_id=tenant_id)
    except NotFoundError:
        raise ConflictError("The input file or the error file of this batch no longer exists.") from None
    failed = files.create(
        session,
        tenant_id=tenant_id,
        purpose=files.INPUT,
        filename=f"retry-{source.filename.removeprefix('retry-')}",
        state=FileState.GROWING,
    )
    spec = BatchSpec(
        input_file_id=failed.id,
        endpoint=Endpoint(batch.endpoint),
        completion_window=batch.completion_window,
        metadata={name: str(value) for name, value in batch.labels.items()} if batch.labels else None,
        output_expires_seconds=batch.output_expires_seconds,
        webhook_url=batch.webhook_url,
        webhook_secret=batch.webhook_secret,
    )
    made = _add(session, spec, tenant_id=tenant_id, retry_of=batch.id)
    named = ids.batch_id(batch.id)
    audit.note(session, Action.BATCH_RETRY, named, tenant_id=tenant_id, made=ids.batch_id(made.id))
    return made


def cancel(session: Session, batch_id: UUID, *, tenant_id: UUID) -> Batch:
    """Start to cancel the batch: a service worker stops its jobs. Idempotent.

    Raises:
        NotFoundError: the tenant has no such batch.
        ConflictError: it has ended, or is about to.
    """
    query = select(Batch).where(Batch.id == batch_id, Batch.tenant_id == tenant_id)
    batch = require(session, query.with_for_update(), kind="batch")
    if batch.state in (BatchState.CANCELLING, BatchState.CANCELLED):
        return batch
    if batch.state not in TRANSITIONS["cancel"][0]:
        raise ConflictError(f"Cannot cancel a batch with status '{batch.state}'.")
    move(batch, "cancel", now=database_now(session))
    audit.note(session, Action.BATCH_CANCEL, ids.batch_id(batch_id), tenant_id=tenant_id)
    return batch


def hold(session: Session, turn: Turn) -> Batch | None:
    """Lock the batch whose file is being validated.

    Returns:
        The batch; None: it was cancelled, or the lease is lost.
    """
    held = turns.held(Batch, turn).with_for_update()
    return session.scalar(held.execution_options(populate_existing=True))


def get(session: Session, batch_id: UUID, *, tenant_id: UUID) -> Batch:
    """Return the tenant's batch.

    Raises:
        NotFoundError: the tenant has no such batch.
    """
    query = select(Batch).where(Batch.id == batch_id, Batch.tenant_id == tenant_id)
    return require(session, query, kind="batch")


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The fields of a batch that change while it runs."""

    state: str
    num_lines: int
    num_completed: int
    num_failed: int


def read_status(session: Session, batch_ids: Sequence[UUID]) -> dict[UUID, BatchStatus]:
    """Read the changing fields of batches of any tenant; leave out deleted ones."""
    rows = session.execute(
        select(Batch.id, Batch.state, Batch.num_lines, Batch.num_completed, Batch.num_failed).where(
            Batch.id.in_(batch_ids)
        )
    )
    return {row.id: BatchStatus(row.state, row.num_lines, row.num_completed, row.num_failed) for row in rows}


def list_batches(session: Session, wanted: Range) -> Page[Batch]:
    """List the tenant's batches.

    Raises:
        InvalidRequestError: the page starts after a batch that is not the tenant's.
    """
    query = select(Batch).where(Batch.tenant_id == wanted.tenant_id)
    return paging.read(session, query, (Batch.id, Batch.tenant_id), wanted, kind="batch")


def search(session: Session, wanted: SearchRange, *, state: str | None) -> FoundRows[Batch]:
    """Search for batches in this state; None: in any."""
    query = select(Batch).where(*matches((Batch.state, state)))
    of_tenant = matches((Batch.tenant_id, wanted.tenant_id))
    return paging.search(session, query, Batch.id, wanted, among=of_tenant)


def move(batch: Batch, verb: str, *, now: datetime) -> None:
    """Move the locked batch to the verb's state and record the time.

    Raises:
        ValueError: its current state does not allow the verb.
    """
    allowed, target = TRANSITIONS[verb]
    if batch.state not in allowed:
        raise ValueError(f"{verb} does not lead on from {batch.state}")
    batch.state = target
    batch.lease_id = batch.lease_expires_at = batch.run_after = None
    setattr(batch, f"{target}_at", now)


def end(session: Session, batch: Batch, verb: str, *, lifetime: timedelta) -> None:
    """End the locked batch, complete its files and append its event."""
    now = database_now(session)
    move(batch, verb, now=now)
    if batch.output_expires_seconds is not None:
        lifetime = timedelta(seconds=batch.output_expires_seconds)
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            files.complete(session, file_id, now=now, lifetime=lifetime)
    files.abandon(session, batch.input_file_id)
    session.flush()
    note_ended(session, [batch.id])
    outbox.publish(session, [batch_ended(batch)])
    telemetry.logger().info(
        telemetry.BATCH_ENDED,
        batch_id=ids.batch_id(batch.id),
        state=batch.state,
        num_completed=batch.num_completed,
        num_failed=batch.num_failed,
        num_stopped=batch.num_stopped,
        **telemetry.in_trace(batch.traceparent),
    )


def prune(session: Session, *, before: datetime, limit: int = 500) -> int:
    """Delete batches that ended before `before`, not their files; return how many."""
    ended = [getattr(Batch, f"{state}_at") < before for state in sorted(TERMINAL)]
    query = select(Batch).where(or_(*ended)).limit(limit)
    old = session.scalars(query.with_for_update(skip_locked=True)).all()
    for batch in old:
        session.delete(batch)
    session.flush()
    return len(old)


def _add(session: Session, spec: BatchSpec, *, tenant_id: UUID, retry_of: UUID | None) -> Batch:
    now = database_now(session)
    batch = Batch(
        tenant_id=tenant_id,
        state=BatchState.VALIDATING.value,
        endpoint=spec.endpoint.value,
        completion_window=spec.completion_window,
        input_file_id=spec.input_file_id,
        output_expires_seconds=spec.output_expires_seconds,
        retry_of=retry_of,
        labels=dict(spec.metadata) if spec.metadata is not None else None,
        num_lines=0,
        num_completed=0,
        num_failed=0,
        num_stopped=0,
        error_counts={},
        input_tokens=0,
        output_tokens=0,
        next_offset=0,
        next_line=1,
        is_expanded=False,
        webhook_url=spec.webhook_url,
        webhook_secret=spec.webhook_secret,
        request_sha256=spec.sha256,
        created_at=now,
        expires_at=now + WINDOWS[spec.completion_window],
        api_key_id=audit.key_of(session),
    )
    session.add(batch)
    session.flush()
    return batch
