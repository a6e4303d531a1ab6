"""The lines of an accepted batch become jobs, a part in each transaction; refused lines end at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Final, Self
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from jobs import files, ids, submission, telemetry
from jobs.batches import results
from jobs.batches.context import BatchTools
from jobs.batches.lines import (
    CANCELLED,
    EXPIRED,
    Envelope,
    answered_line,
    read_envelope,
    unanswered_line,
)
from jobs.database import database_now
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.errors import InvalidRequestError, LongbatchError, ModelNotFoundError, OverTokenQuotaError
from jobs.files import lines as file_lines
from jobs.files.lines import FileLine
from jobs.files.storage import BytesLostError
from jobs.ids import uuid7
from jobs.models import Job
from jobs.models.batch import Batch
from jobs.prompts.chat_template import ChatTemplateError
from jobs.prompts.openai import error_object, understand
from jobs.prompts.store import CountedPrompt, NewText
from jobs.states.batch import BatchState, Endpoint
from jobs.submission import JobSpec
from jobs.tenants import quotas
from jobs.tenants.quotas import Held, Limits

# A part is one transaction: large enough that its commit does not matter, small enough to hold in memory and
# to let others wait for the batch.
_MAX_LINES: Final = 500
_MAX_BYTES: Final = 4 * 2**20
# Of taking on its next lines, in a row, over about an hour; the lines that are left have failed then.
MAX_FAILURES: Final = 12
_FIRST_PAUSE: Final = timedelta(seconds=1)
_MAX_PAUSE: Final = timedelta(minutes=10)
_OTHER_PAUSE: Final = timedelta(seconds=5)
# Of a quota, so that a tenant's large batch does not keep out its other requests.
_FILLED: Final = 0.9


@dataclass(slots=True)
class _Part:
    """Lines that were understood, and those that were refused as they stand in the error file."""

    specs: list[JobSpec] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Quota:
    """What a batch's tenant holds, with the lines that were taken on since.

    Attributes:
        held: read without a lock; `admit` has the last word.
    """

    tenant_id: UUID
    limits: Limits
    held: Held

    def has_room_for(self, need: Held) -> bool:
        """Whether a line may become a job: batches leave some of the quota to what somebody waits for."""
        together = self.held + need
        return together.is_within(self.limits.part(_FILLED)) or (
            self.held.jobs == 0 and together.is_within(self.limits)
        )

    @classmethod
    def of(cls, session: Session, batch: Batch, tools: BatchTools) -> Self:
        """As it is now."""
        limits = quotas.read_limits(session, batch.tenant_id, tools.limits)
        return cls(batch.tenant_id, limits, quotas.held(session, batch.tenant_id))

    @property
    def is_full(self) -> bool:
        """Whether not even the smallest line has room."""
        return not self.has_room_for(Held(tokens=1, jobs=1))

    def takes(self, spec: JobSpec, capacities: Sequence[Capacity]) -> bool:
        """Whether there is room for this job, which is taken.

        Raises:
            OverTokenQuotaError: there will never be.
        """
        need = Held(tokens=submission.demand(spec, capacities), jobs=1)
        if need.tokens > self.limits.max_enqueued_tokens:
            quotas.check(need, need, limits=self.limits)
        if not self.has_room_for(need):
            return False
        self.held += need
        return True

    def admit(self, session: Session, more: Held) -> None:
        """Returns when there still is room, under the tenant's lock."""
        quotas.admit(session, self.tenant_id, more, limits=self.limits)


def expand(session: Session, batch_id: UUID, tools: BatchTools) -> Sequence[Job] | None:
    """The next lines of the batch are jobs, or stand in its error file; None: there are none, or not now.

    Lines for which the tenant's quota has no room wait until it has.

    Once the batch is being cancelled, or its window is over, its other lines end without becoming jobs.
    The row's lock and the offset in it fence: each line is taken once, whoever dies when.

    Raises:
        LimitError: somebody else filled the quota meanwhile; nothing may be committed.
    """
    query = select(Batch).where(
        Batch.id == batch_id,
        Batch.state.in_([BatchState.IN_PROGRESS, BatchState.CANCELLING]),
        ~Batch.is_expanded,
        Batch.num_lines > 0,
    )
    batch = session.scalar(query.with_for_update(skip_locked=True))
    if batch is None:
        return None
    if batch.num_failures >= MAX_FAILURES:
        return _give_up(session, batch, has_failed=True)
    is_stopping = batch.state == BatchState.CANCELLING or database_now(session) >= batch.expires_at
    quota = None if is_stopping else _Quota.of(session, batch, tools)
    if quota is not None and quota.is_full:
        return None
    try:
        lines, is_end = _next_lines(session, batch, tools)
    except BytesLostError:
        if not is_stopping:
            raise
        return _give_up(session, batch, has_failed=False)
    jobs: Sequence[Job] = ()
    requests = [line for line in lines if not line.is_blank]
    if quota is None:
        _stop(session, batch, requests, tools)
    else:
        jobs, left = _submit(session, batch, requests, tools, quota)
        if left is not None:
            lines, is_end = [line for line in lines if line.number < left], False
            if not lines:
                return None
    if lines:
        batch.next_offset = lines[-1].end
        batch.next_line = lines[-1].number + 1
    batch.is_expanded = is_end
    batch.num_failures = 0
    session.flush()
    return jobs


def note_failure(session: Session, batch_id: UUID) -> None:
    """Put a batch off whose next lines could not be taken on, each time for twice as long."""
    batch = session.scalar(select(Batch).where(Batch.id == batch_id).with_for_update())
    if batch is None or batch.state not in (BatchState.IN_PROGRESS, BatchState.CANCELLING):
        return
    pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(batch.num_failures, MAX_FAILURES))
    batch.run_after = database_now(session) + pause
    batch.num_failures = min(batch.num_failures + 1, MAX_FAILURES)


def put_off(session: Session, batch_id: UUID) -> None:
    """Put a batch off that could not be moved on for another reason than its lines."""
    later = func.clock_timestamp() + _OTHER_PAUSE
    session.execute(update(Batch).where(Batch.id == batch_id).values(run_after=later))


def _next_lines(session: Session, batch: Batch, tools: BatchTools) -> tuple[list[FileLine], bool]:
    """The lines of one part, and whether they are the last ones."""
    chunks = files.read_chunks(session, batch.input_file_id, tools.store, offset=batch.next_offset)
    found: list[FileLine] = []
    num_bytes = 0
    lines = file_lines.split(
        chunks, max_line_bytes=tools.max_line_bytes, offset=batch.next_offset, number=batch.next_line
    )
    for line in islice(lines, _MAX_LINES):
        found.append(line)
        num_bytes += len(line.content or b"")
        if num_bytes >= _MAX_BYTES:
            return found, False
    return found, len(found) < _MAX_LINES


def _stop(session: Session, batch: Batch, lines: Sequence[FileLine], tools: BatchTools) -> None:
    """The lines have ended without an answer."""
    reason = CANCELLED if batch.state == BatchState.CANCELLING else EXPIRED
    ended = [unanswered_line(uuid7().hex, _envelope(line, batch, tools).custom_id, reason) for line in lines]
    results.append_errors(session, batch, ended, tools.store)
    batch.num_stopped += len(ended)


def _give_up(session: Session, batch: Batch, *, has_failed: bool) -> Sequence[Job]:
    """Count lines that can be read no more as failed, or as stopped, so that the batch ends."""
    outstanding = select(func.count()).where(Job.batch_id == batch.id, ~Job.is_reported)
    num_left = batch.num_lines - batch.num_ended - (session.scalar(outstanding) or 0)
    batch.num_failed += num_left if has_failed else 0
    batch.num_stopped += 0 if has_failed else num_left
    batch.is_expanded = True
    session.flush()
    return ()


def _submit(
    session: Session, batch: Batch, lines: Sequence[FileLine], tools: BatchTools, quota: _Quota
) -> tuple[Sequence[Job], int | None]:
    """The jobs of these lines, and the number of the first line that found no room; None: all did."""
    registered = registry.registered_capacities(session)
    models = {tools.model, *registered}
    part = _Part()
    left = None
    for line in lines:
        envelope = _envelope(line, batch, tools)
        try:
            spec = _specification(envelope, line.number, batch, tools, models)
            if not quota.takes(spec, registered.get(spec.model) or [tools.fallback]):
                left = line.number
                break
            part.specs.append(spec)
        except LongbatchError as error:
            part.refused.append(_refusal(envelope.custom_id, error))
        except Exception as error:  # noqa: BLE001  # one line must not stop its batch
            part.refused.append(_unforeseen(batch, line.number, envelope.custom_id, error))
    jobs = _store(session, batch, part, tools, quota)
    results.append_errors(session, batch, part.refused, tools.store)
    batch.num_failed += len(part.refused)
    return jobs, left


def _store(session: Session, batch: Batch, part: _Part, tools: BatchTools, quota: _Quota) -> Sequence[Job]:
    """The jobs of the part; a line that the database refuses is refused alone.

    Raises:
        LimitError: as `expand`.
    """

    def submit(specs: Sequence[JobSpec]) -> Sequence[Job]:
        with session.begin_nested():
            return submission.submit(
                session, specs, tenant_id=batch.tenant_id, fallback=tools.fallback, admit=quota.admit
            )

    try:
        return submit(part.specs)
    except (DataError, IntegrityError):
        jobs: list[Job] = []
    for spec in part.specs:
        try:
            jobs += submit([spec])
        except (DataError, IntegrityError) as error:
            custom_id = spec.custom_id or ""
            part.refused.append(_unforeseen(batch, spec.batch_line, custom_id, error))
    return jobs


def _envelope(line: FileLine, batch: Batch, tools: BatchTools) -> Envelope:
    return read_envelope(line, Endpoint(batch.endpoint), max_line_bytes=tools.max_line_bytes)


def _specification(
    envelope: Envelope, number: int, batch: Batch, tools: BatchTools, models: set[str]
) -> JobSpec:
    """The job of a line.

    Raises:
        InvalidRequestError: its body asks for what there is not.
        ModelNotFoundError: nobody serves its model.
    """
    asked = understand(Endpoint(batch.endpoint), envelope.body)
    if asked.stream:
        raise InvalidRequestError("A batch has no streams.", param="stream")
    if asked.model not in models:
        raise ModelNotFoundError(param="model")
    return JobSpec(
        text=NewText(asked.canonical, _count(asked.canonical, tools)),
        task="generate",
        model=asked.model,
        max_tokens=asked.max_tokens or tools.default_max_tokens,
        sampling=asked.sampling,
        custom_id=envelope.custom_id,
        expires_at=batch.expires_at,
        batch_id=batch.id,
        batch_line=number,
    )


def _count(canonical: str, tools: BatchTools) -> CountedPrompt | None:
    if len(canonical) > tools.max_inline_chars:
        return None
    try:
        return tools.counter.count_prompt(canonical)
    except ChatTemplateError:
        return None  # counting it later meets the same error and ends the job with it


def _refusal(custom_id: str, error: LongbatchError) -> bytes:
    status = _STATUSES.get(type(error), 400)
    body = error_object(error.code, error.message, param=error.param, status=status)
    return answered_line(uuid7().hex, custom_id, status=status, body=body)


def _unforeseen(batch: Batch, number: int | None, custom_id: str, error: Exception) -> bytes:
    telemetry.logger().error(
        telemetry.ROW_FAILED,
        loop="batches",
        batch_id=ids.batch_id(batch.id),
        line=number,
        error=type(error).__name__,
        exception=telemetry.describe_error((type(error), error, error.__traceback__)),
    )
    body = error_object(LongbatchError.code, "The request could not be taken on.", status=500)
    return answered_line(uuid7().hex, custom_id, status=500, body=body)


_STATUSES: Final[Mapping[type[LongbatchError], int]] = {ModelNotFoundError: 404, OverTokenQuotaError: 429}
