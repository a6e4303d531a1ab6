"""Turn the lines of an accepted batch into jobs, one slice per transaction; reject invalid lines at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final, Self
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from jobs import files, submission
from jobs.adapters.offers import read_offer
from jobs.batches import results
from jobs.batches.context import BatchTools
from jobs.batches.line_requests import LineReader, LineRequest
from jobs.batches.lines import CANCELLED, EXPIRED, read_envelope, unanswered_line
from jobs.database import database_now, statements
from jobs.database.sealed_columns import sealer_in
from jobs.database.statements import Query
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.errors import LimitOf, LongbatchError, UnavailableError
from jobs.files import lines as file_lines
from jobs.files.lines import FileLine
from jobs.files.storage import BytesLostError
from jobs.ids import uuid7
from jobs.models import Job
from jobs.models.batch import Batch
from jobs.sealing.content import ContentSealer, ContentUnreadableError
from jobs.states.batch import BatchState, Endpoint
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from jobs.tenants import key_quotas, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from jobs.traces import subjects
from jobs.traces.context import JobsTrace

# A slice is one transaction: large enough that its commit and its 25 other statements do not matter, small
# enough to hold in memory and to let other writers of the batch in between.
_MAX_LINES: Final = 1000
_MAX_BYTES: Final = 4 * 2**20
# The choices of one line are stored together.
_MAX_JOBS: Final = 2000
# Consecutive failures to expand the next lines, over about an hour; after that the remaining lines fail.
MAX_FAILURES: Final = 12
_FIRST_PAUSE: Final = timedelta(seconds=1)
_MAX_PAUSE: Final = timedelta(minutes=10)
_OTHER_PAUSE: Final = timedelta(seconds=5)
# Fraction of a quota, so that a tenant's large batch leaves room for its other requests.
_FILLED: Final = 0.9
# The file has them no more, or in a form that nothing opens: later tries of other lines would not help.
_UNREADABLE: Final = (BytesLostError, ContentUnreadableError)


@dataclass(slots=True)
class _Room:
    """What a batch's tenant, or its key, holds, including the lines expanded since.

    Attributes:
        owner_id: of the tenant or the key.
        held: read without a lock; `_Quota.admit` decides under it.
        filled: the part of the limits that batches may fill.
    """

    of: LimitOf
    owner_id: UUID
    limits: TenantLimits
    held: QuotaUsage
    filled: TenantLimits = field(init=False)

    def __post_init__(self) -> None:
        self.filled = self.limits.part(_FILLED)

    def has_room_for(self, need: QuotaUsage) -> bool:
        """Return True if a line may become a job.

        Batches leave part of the quota to other requests of the tenant or the key.
        """
        together = self.held + need
        return together.is_within(self.filled) or (self.held.jobs == 0 and together.is_within(self.limits))


@dataclass(slots=True)
class _Quota:
    """The quotas that a batch's lines count towards.

    Attributes:
        of_key: its key's; None: it has none.
        rooms: in each of them.
        sealer: of what lines store.
    """

    tenant_id: UUID
    limits: TenantLimits
    of_key: KeyQuota | None
    rooms: Sequence[_Room]
    sealer: ContentSealer

    @classmethod
    def of(cls, session: Session, batch: Batch, tools: BatchTools) -> Self:
        """Read the current quotas and their use."""
        limits = quotas.read_limits(session, batch.tenant_id, tools.limits)
        held = quotas.current_usage(session, batch.tenant_id, limits=limits)
        rooms = [_Room(LimitOf.TENANT, batch.tenant_id, limits, held)]
        of_key = key_quotas.read(session, batch.api_key_id)
        if of_key is not None:
            held = key_quotas.current_usage(session, of_key)
            rooms.append(_Room(LimitOf.KEY, of_key.key_id, of_key.limits, held))
        return cls(batch.tenant_id, limits, of_key, rooms, sealer_in(session))

    @property
    def full(self) -> list[UUID]:
        """The tenant, or the key, for which not even the smallest line fits."""
        least = QuotaUsage(tokens=1, jobs=1, stored_bytes=1)
        return [room.owner_id for room in self.rooms if not room.has_room_for(least)]

    def take(self, specs: Sequence[JobSpec], capacities: Sequence[Capacity]) -> bool:
        """Take room for a line's jobs out of the quotas, and return False if there is none now.

        Raises:
            LimitError: the line exceeds a quota by itself and can never fit.
        """
        tokens = sum(submission.demand(spec, capacities) for spec in specs)
        texts = {text.sha256: text for spec in specs for text in spec.texts}
        stored_bytes = sum(text.stored_bytes(self.sealer) for text in texts.values())
        need = QuotaUsage(tokens=tokens, jobs=len(specs), stored_bytes=stored_bytes)
        for room in self.rooms:
            quotas.check(need, need, limits=room.limits, of=room.of)
        if not all(room.has_room_for(need) for room in self.rooms):
            return False
        for room in self.rooms:
            room.held += need
        return True

    def admit(self, session: Session, more: QuotaUsage, then: Sequence[Query]) -> None:
        """Check under the locks of key and tenant that there still is room, and execute what follows."""
        if self.of_key is not None:
            key_quotas.admit(session, self.of_key, more)
        quotas.admit(session, self.tenant_id, more, limits=self.limits)
        statements.fetch_all(session, then)


def expand(session: Session, batch_id: UUID, tools: BatchTools, *, full: set[UUID]) -> Sequence[Job] | None:
    """Turn the batch's next lines into jobs, or into lines of its error file.

    Lines that exceed the quota of the tenant or the key wait until there is room. Once the batch is being
    cancelled or its window has ended, its remaining lines end without becoming jobs. The row's lock and the
    offset in it are the fence: each line is expanded once, whichever process dies.

    Args:
        session: of the transaction.
        batch_id: of the batch.
        tools: of the service worker.
        full: gets the tenant, or the key, whose quota has no room for any line.

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
    if quota is not None and quota.full:
        full.update(quota.full)
        return None
    try:
        lines, following, is_end = _next_lines(session, batch, tools)
    except _UNREADABLE:
        if not is_stopping:
            raise
        return _give_up(session, batch, has_failed=False)
    jobs: Sequence[Job] = ()
    if quota is None:
        _stop(session, batch, [line for line in lines if not line.is_blank], tools)
    else:
        jobs, left = _submit(session, batch, lines, tools, quota, following=following)
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


def _next_lines(
    session: Session, batch: Batch, tools: BatchTools
) -> tuple[Sequence[FileLine], Sequence[FileLine], bool]:
    """Read the lines of one slice, those of the slice after it, and whether the first are the last ones."""
    found = tools.ahead.kept(batch.id, start=batch.next_offset)
    start, number = (found[-1].end, found[-1].number + 1) if found else (batch.next_offset, batch.next_line)
    chunks = files.read_chunks(session, batch.input_file_id, tools.store, offset=start)
    lines = file_lines.split(chunks, max_line_bytes=tools.max_line_bytes, offset=start, number=number)
    found = found or _slice_of(lines)
    try:
        following = _slice_of(lines)
    except (
        BytesLostError,
        ContentUnreadableError,
        UnavailableError,
    ):  # that is for the next slice to find out
        return found, [], False
    if following:
        tools.ahead.keep(batch.id, following, start=found[-1].end)
    return found, following, not following


def _slice_of(lines: Iterator[FileLine]) -> list[FileLine]:
    found: list[FileLine] = []
    num_bytes = 0
    for line in islice(lines, _MAX_LINES):
        found.append(line)
        num_bytes += len(line.content or b"")
        if num_bytes >= _MAX_BYTES:
            break
    return found


def _stop(session: Session, batch: Batch, lines: Sequence[FileLine], tools: BatchTools) -> None:
    """End the lines without an answer."""
    reason = CANCELLED if batch.state == BatchState.CANCELLING else EXPIRED
    read = partial(read_envelope, endpoint=Endpoint(batch.endpoint), max_line_bytes=tools.max_line_bytes)
    ended = [unanswered_line(uuid7().hex, read(line).custom_id, reason) for line in lines]
    results.append_errors(session, batch, ended, tools.store)
    batch.num_stopped += len(ended)


def _give_up(session: Session, batch: Batch, *, has_failed: bool) -> Sequence[Job]:
    """Count unreadable lines as failed or stopped, so that the batch can end."""
    outstanding = select(func.count()).where(Job.batch_id == batch.id, ~Job.is_reported, Job.choice == 0)
    num_left = batch.num_lines - batch.num_ended - (session.scalar(outstanding) or 0)
    batch.num_failed += num_left if has_failed else 0
    batch.num_stopped += 0 if has_failed else num_left
    batch.is_expanded = True
    session.flush()
    return ()


def _submit(
    session: Session,
    batch: Batch,
    lines: Sequence[FileLine],
    tools: BatchTools,
    quota: _Quota,
    *,
    following: Sequence[FileLine],
) -> tuple[Sequence[Job], int | None]:
    """Submit jobs for these lines, while a thread reads those that follow.

    Returns:
        The jobs, and the number of the first line without room (None: all fit).
    """
    registered = registry.registered_capacities(session)
    offer = read_offer(session, served=tools.model, tenant_id=batch.tenant_id)
    reader = LineReader(batch.id, Endpoint(batch.endpoint), batch.expires_at, offer, tools)
    specs: list[JobSpec] = []
    refused: list[bytes] = []
    left, taken = None, 0
    trace = subjects.trace_of_jobs(batch, max_jobs=tools.max_traced)
    key = batch.next_offset, offer
    for request in tools.ahead.take(batch.id, key, partial(reader.read, lines)):
        taken = request.number
        try:
            if request.specs:
                capacities = registered.get(request.specs[0].model) or [tools.default_capacity]
                is_full = len(specs) >= _MAX_JOBS
                if is_full or not quota.take(request.specs, capacities):
                    left = request.number
                    break
                specs += _traced(request, batch, trace)
        except LongbatchError as error:
            request.refusal = reader.refusal(request.number, request.custom_id, error)
        if request.refusal is not None:
            refused.append(request.refusal)
    if left is None:  # what was read ahead may end before the slice does
        left = next((each.number for each in lines if each.number > taken and not each.is_blank), None)
    if left is None and following:
        tools.ahead.begin(batch.id, (lines[-1].end, offer), lambda: _first_of(reader.read(following)))
    by = Submitter(
        quota.tenant_id,
        tools.default_capacity,
        quota.admit,
        batch.in_progress_at,  # when the first of the batch were stored
        api_key_id=batch.api_key_id,
        key_quota=quota.of_key,
    )
    jobs, not_stored = _store(session, specs, reader, by)
    refused += not_stored
    results.append_errors(session, batch, refused, tools.store)
    batch.num_failed += len(refused)
    return jobs, left


def _traced(request: LineRequest, batch: Batch, trace: JobsTrace | None) -> Sequence[JobSpec]:
    """Return the jobs of a line, in the batch's trace if that holds this line.

    A line may have thousands of jobs, of which the trace holds its share.
    """
    # Blank lines have numbers, too.
    num_lines = max(batch.num_lines, request.number)
    if trace is None or trace.of(request.number - 1, among=num_lines) is None:
        return request.specs
    of_line, num_jobs = trace.share(among=num_lines), len(request.specs)
    return [
        replace(spec, traceparent=of_line.of(place, among=num_jobs))
        for place, spec in enumerate(request.specs)
    ]


def _first_of(requests: Iterable[LineRequest]) -> list[LineRequest]:
    """List requests up to the jobs of one slice: 1000 lines may have a million inputs."""
    found: list[LineRequest] = []
    num_jobs = 0
    for each in requests:
        found.append(each)
        num_jobs += len(each.specs)
        if num_jobs >= _MAX_JOBS:
            break
    return found


def _store(
    session: Session, specs: Sequence[JobSpec], reader: LineReader, by: Submitter
) -> tuple[list[Job], list[bytes]]:
    """Store the slice's jobs.

    Returns:
        The jobs, and the error lines of those lines of which the database refuses a job.

    Raises:
        LimitError: see `expand`.
    """
    jobs: list[Job] = []
    refused: dict[int | None, bytes] = {}
    for spec, outcome in zip(specs, submission.submit_each(session, specs, by), strict=True):
        if isinstance(outcome, Job):
            jobs.append(outcome)
        elif (line := spec.batch_line) not in refused:
            refused[line] = reader.refusal(line, spec.custom_id or "", outcome)
    return jobs, [*refused.values()]
