"""Turn the lines of an accepted batch into jobs, one slice per transaction; reject invalid lines at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final, Self
from uuid import UUID

from sqlalchemy import func, select, update
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
from jobs.errors import (
    InvalidRequestError,
    LongbatchError,
    ModelNotFoundError,
    OverStorageQuotaError,
    OverTokenQuotaError,
)
from jobs.files import lines as file_lines
from jobs.files.lines import FileLine
from jobs.files.storage import BytesLostError
from jobs.ids import uuid7
from jobs.job_rows import NewJob
from jobs.models import Job
from jobs.models.batch import Batch
from jobs.prompts.counter import count_short, count_some
from jobs.prompts.openai import Generation, error_object, validate_request
from jobs.prompts.store import CountedPrompt, NewText
from jobs.states.batch import BatchState, Endpoint
from jobs.submission import JobSpec, Refusal
from jobs.tenants import quotas
from jobs.tenants.quotas import QuotaUsage, TenantLimits

# A slice is one transaction: large enough that its commit does not matter, small enough to hold in memory and
# to let other writers of the batch in between.
_MAX_LINES: Final = 500
_MAX_BYTES: Final = 4 * 2**20
# Consecutive failures to expand the next lines, over about an hour; after that the remaining lines fail.
MAX_FAILURES: Final = 12
_FIRST_PAUSE: Final = timedelta(seconds=1)
_MAX_PAUSE: Final = timedelta(minutes=10)
_OTHER_PAUSE: Final = timedelta(seconds=5)
# Fraction of a quota, so that a tenant's large batch leaves room for its other requests.
_FILLED: Final = 0.9


@dataclass(slots=True)
class _LineRequest:
    """The request of one line, and how far it came.

    Attributes:
        asked: None: it is refused.
        refusal: its line in the error file; None: it is not refused yet.
    """

    number: int
    custom_id: str
    asked: Generation | None = None
    refusal: bytes | None = None


@dataclass(slots=True)
class _Quota:
    """What a batch's tenant holds, including the lines expanded since.

    Attributes:
        held: read without a lock; `admit` decides under it.
    """

    tenant_id: UUID
    limits: TenantLimits
    held: QuotaUsage

    def has_room_for(self, need: QuotaUsage) -> bool:
        """Return True if a line may become a job.

        Batches leave part of the quota to the tenant's other requests.
        """
        together = self.held + need
        return together.is_within(self.limits.part(_FILLED)) or (
            self.held.jobs == 0 and together.is_within(self.limits)
        )

    @classmethod
    def of(cls, session: Session, batch: Batch, tools: BatchTools) -> Self:
        """Read the tenant's current quota and use."""
        limits = quotas.read_limits(session, batch.tenant_id, tools.limits)
        return cls(batch.tenant_id, limits, quotas.current_usage(session, batch.tenant_id, limits=limits))

    @property
    def is_full(self) -> bool:
        """True if not even the smallest line fits."""
        return not self.has_room_for(QuotaUsage(tokens=1, jobs=1, stored_bytes=1))

    def take(self, spec: JobSpec, capacities: Sequence[Capacity]) -> bool:
        """Take room for this job out of the quota, and return False if there is none now.

        Raises:
            LimitError: the job exceeds the quota by itself and can never fit.
        """
        tokens = submission.demand(spec, capacities)
        need = QuotaUsage(tokens=tokens, jobs=1, stored_bytes=spec.text.stored_bytes)
        quotas.check(replace(need, jobs=0), need, limits=self.limits)
        if not self.has_room_for(need):
            return False
        self.held += need
        return True

    def admit(self, session: Session, more: QuotaUsage) -> None:
        """Check under the tenant's lock that there still is room."""
        quotas.admit(session, self.tenant_id, more, limits=self.limits)


def expand(session: Session, batch_id: UUID, tools: BatchTools) -> Sequence[NewJob] | None:
    """Turn the batch's next lines into jobs, or into lines of its error file.

    Lines that exceed the tenant's quota wait until there is room. Once the batch is being cancelled or its
    window has ended, its remaining lines end without becoming jobs. The row's lock and the offset in it are
    the fence: each line is expanded once, whichever process dies.

    Returns:
        The new jobs; None: the batch has no lines to expand, or none now.

    Raises:
        LimitError: another transaction filled the quota meanwhile; roll back.
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
    jobs: Sequence[NewJob] = ()
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
    """Postpone a batch whose next lines failed to expand, twice as long each time."""
    batch = session.scalar(select(Batch).where(Batch.id == batch_id).with_for_update())
    if batch is None or batch.state not in (BatchState.IN_PROGRESS, BatchState.CANCELLING):
        return
    pause = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(batch.num_failures, MAX_FAILURES))
    batch.run_after = database_now(session) + pause
    batch.num_failures = min(batch.num_failures + 1, MAX_FAILURES)


def put_off(session: Session, batch_id: UUID) -> None:
    """Postpone a batch that could not proceed for a reason other than its lines."""
    later = func.clock_timestamp() + _OTHER_PAUSE
    session.execute(update(Batch).where(Batch.id == batch_id).values(run_after=later))


def _next_lines(session: Session, batch: Batch, tools: BatchTools) -> tuple[list[FileLine], bool]:
    """Read the lines of one slice, and whether they are the last ones."""
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
    """End the lines without an answer."""
    reason = CANCELLED if batch.state == BatchState.CANCELLING else EXPIRED
    ended = [unanswered_line(uuid7().hex, _envelope(line, batch, tools).custom_id, reason) for line in lines]
    results.append_errors(session, batch, ended, tools.store)
    batch.num_stopped += len(ended)


def _give_up(session: Session, batch: Batch, *, has_failed: bool) -> Sequence[NewJob]:
    """Count unreadable lines as failed or stopped, so that the batch can end."""
    outstanding = select(func.count()).where(Job.batch_id == batch.id, ~Job.is_reported)
    num_left = batch.num_lines - batch.num_ended - (session.scalar(outstanding) or 0)
    batch.num_failed += num_left if has_failed else 0
    batch.num_stopped += 0 if has_failed else num_left
    batch.is_expanded = True
    session.flush()
    return ()


def _submit(
    session: Session, batch: Batch, lines: Sequence[FileLine], tools: BatchTools, quota: _Quota
) -> tuple[Sequence[NewJob], int | None]:
    """Submit jobs for these lines.

    Returns:
        The jobs, and the number of the first line without room (None: all fit).
    """
    registered = registry.registered_capacities(session)
    requests = _read_requests(lines, batch, tools, {tools.model, *registered})
    prompts = [each.asked.canonical if each.asked else "" for each in requests]
    counts = count_some(prompts, tools.counter, max_chars=tools.max_inline_chars)
    specs: list[JobSpec] = []
    left = None
    for request in requests:
        try:
            counted = next(counts)  # lazily: a full quota ends this early
            if request.asked is None:
                continue
            spec = _specification(request, request.asked, counted, batch, tools)
            if not quota.take(spec, registered.get(spec.model) or [tools.default_capacity]):
                left = request.number
                break
            specs.append(spec)
        except LongbatchError as error:
            request.refusal = _refusal(request.custom_id, error)
        except Exception as error:  # noqa: BLE001  # one line must not stop its batch
            request.refusal = _unforeseen(batch, request.number, request.custom_id, error)
    jobs, refused = _store(session, batch, specs, tools, quota)
    refused += [each.refusal for each in requests if each.refusal and (left is None or each.number < left)]
    results.append_errors(session, batch, refused, tools.store)
    batch.num_failed += len(refused)
    return jobs, left


def _read_requests(
    lines: Sequence[FileLine], batch: Batch, tools: BatchTools, models: set[str]
) -> list[_LineRequest]:
    """Validate the requests of these lines; their prompts are not counted yet."""
    requests: list[_LineRequest] = []
    for line in lines:
        envelope = _envelope(line, batch, tools)
        request = _LineRequest(line.number, envelope.custom_id)
        requests.append(request)
        try:
            request.asked = _validated(envelope, batch, models)
        except LongbatchError as error:
            request.refusal = _refusal(request.custom_id, error)
        except Exception as error:  # noqa: BLE001  # one line must not stop its batch
            request.refusal = _unforeseen(batch, line.number, request.custom_id, error)
    return requests


def _store(
    session: Session, batch: Batch, specs: Sequence[JobSpec], tools: BatchTools, quota: _Quota
) -> tuple[list[NewJob], list[bytes]]:
    """Store the slice's jobs in sets.

    Returns:
        The jobs, and the error lines of those that the database refuses.

    Raises:
        LimitError: see `expand`.
    """
    submit = partial(
        submission.submit_set,
        session,
        tenant_id=batch.tenant_id,
        default_capacity=tools.default_capacity,
        admit=quota.admit,
    )
    jobs: list[NewJob] = []
    refused: list[bytes] = []
    for each in submission.submit_each(session, specs, submit):
        if isinstance(each, Refusal):
            custom_id = each.spec.custom_id or ""
            refused.append(_unforeseen(batch, each.spec.batch_line, custom_id, each.error))
        else:
            jobs += each
    return jobs, refused


def _envelope(line: FileLine, batch: Batch, tools: BatchTools) -> Envelope:
    return read_envelope(line, Endpoint(batch.endpoint), max_line_bytes=tools.max_line_bytes)


def _validated(envelope: Envelope, batch: Batch, models: set[str]) -> Generation:
    """Validate the request of a line.

    Raises:
        InvalidRequestError: its body asks for something that batches do not support.
        ModelNotFoundError: its model is not served.
    """
    asked = validate_request(Endpoint(batch.endpoint), envelope.body)
    if asked.stream:
        raise InvalidRequestError("Requests of a batch cannot stream.", param="stream")
    if asked.model not in models:
        raise ModelNotFoundError(param="model")
    return asked


def _specification(
    request: _LineRequest, asked: Generation, counted: CountedPrompt | None, batch: Batch, tools: BatchTools
) -> JobSpec:
    """Build the job of a line; count its prompt now if it is short and not counted yet.

    Raises:
        InvalidRequestError: the chat template fails with its `chat_template_kwargs`.
    """
    if counted is None:
        counted = count_short(asked.canonical, tools.counter, max_chars=tools.max_inline_chars)
    return JobSpec(
        text=NewText(asked.canonical, counted),
        task="generate",
        model=asked.model,
        max_tokens=asked.max_tokens or tools.default_max_tokens,
        sampling=asked.sampling,
        custom_id=request.custom_id,
        expires_at=batch.expires_at,
        batch_id=batch.id,
        batch_line=request.number,
    )


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
    body = error_object(LongbatchError.code, "The request could not be submitted.", status=500)
    return answered_line(uuid7().hex, custom_id, status=500, body=body)


_STATUSES: Final[Mapping[type[LongbatchError], int]] = {
    ModelNotFoundError: 404,
    OverTokenQuotaError: 429,
    OverStorageQuotaError: 429,
}
