"""Bulk submission: turns lines into jobs, one slice per transaction, with flat memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Final, TypeVar
from uuid import UUID

from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from api.http.body import Line, parse
from api.http.idempotency import IdempotencyHeaders
from api.jobs.acceptance import Draft, counted_together, draft
from api.jobs.line_destinations import LineDestinations
from api.jobs.replies import BulkError
from api.jobs.requests import JobRequest
from api.jobs.tensors import check_files
from api.runtime.api_keys import Caller
from api.runtime.services import Acceptance, Services
from jobs import ids, submission, telemetry
from jobs.errors import (
    IdempotencyConflictError,
    LimitError,
    LongbatchError,
    RequestRateError,
    TooLargeError,
    UnavailableError,
)
from jobs.models import Job, JsonObject
from jobs.states import TERMINAL
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently

# A slice is one transaction: large enough that the commit does not matter, small enough to hold in memory.
_SLICE_LINES: Final = 300
_SLICE_BYTES: Final = 4 * 2**20
# The inline limit here is this fraction of a single request's: counting a slice then takes 0.2 s of CPU.
_INLINE_FRACTION: Final = 8
T = TypeVar("T")
# The jobs, and the errors of the others, by line number.
Parsed = tuple[dict[int, JobSpec], list[tuple[int, LongbatchError]]]


@dataclass(slots=True)
class BulkReport:
    """The outcome of each line.

    Attributes:
        ids: of the jobs from accepted lines, in line order.
        num_rejected: may exceed the number of errors, since lines over the limit share one.
        since: when the first jobs were stored.
    """

    ids: list[str] = field(default_factory=list)
    errors: list[BulkError] = field(default_factory=list)
    num_rejected: int = 0
    since: datetime | None = None

    def reject(self, number: int, error: LongbatchError) -> None:
        """Record that the line was not accepted."""
        self.num_rejected += 1
        self.errors.append(BulkError(line=number, code=error.code, message=error.message, param=error.param))


async def submit_lines(
    services: Services, lines: AsyncIterator[Line], *, caller: Caller, idempotency: IdempotencyHeaders
) -> BulkReport:
    """Store a job for every valid line, and report the lines that were rejected.

    Raises:
        UnavailableError: the database failed before any job was stored.
        LimitError: the tenant's quota is full, and no job was stored.
        IdempotencyConflictError: the key was used with other lines, from the first slice on.
        TooLargeError: the body was too large before any job was stored.
    """
    report = BulkReport()
    destinations = LineDestinations(services.check_destination)
    failure: LongbatchError | None = None
    number = 0

    async def parse_slice(lines: Sequence[Line]) -> Parsed | LongbatchError:
        try:
            return ({}, []) if failure else await _parse_slice(services, lines, caller)
        except LongbatchError as error:  # what is stored by then is reported all the same
            return error

    slices = _sliced(_within_limit(lines, report, max_lines=services.settings.api.max_bulk_lines))
    async with aclosing(_ahead(slices, parse_slice)) as parsed_slices:
        async for group, parsed in parsed_slices:
            if isinstance(parsed, LongbatchError):
                failure = failure or parsed
            elif failure is None:
                guard = _guard_of(idempotency, group, number=number)
                failure = await _submit_slice(
                    services, parsed, report, destinations, caller=caller, guard=guard
                )
                number += 1
                continue
            for line in group:  # read to the end, so that the caller sees the report
                report.reject(line.number, failure)
    if failure is not None and not report.ids:
        raise failure
    report.errors.sort(key=lambda error: error["line"])
    return report


async def _within_limit(
    lines: AsyncIterator[Line], report: BulkReport, *, max_lines: int
) -> AsyncIterator[Line]:
    """Yield non-empty lines up to the limit, and reject the others with one error."""
    num_lines = 0
    try:
        async for line in lines:
            if line.content is not None and not line.content.strip():
                continue
            num_lines += 1
            if num_lines <= max_lines:
                yield line
            elif num_lines == max_lines + 1:
                message = (
                    f"A bulk request may have at most {max_lines} lines; this and later ones were rejected."
                )
                report.reject(line.number, TooLargeError(message))
            else:
                report.num_rejected += 1
    except TooLargeError as error:
        if not num_lines:
            raise
        report.reject(num_lines + 1, error)


async def _sliced(lines: AsyncIterator[Line]) -> AsyncIterator[list[Line]]:
    pending: list[Line] = []
    num_bytes = 0
    async for line in lines:
        pending.append(line)
        num_bytes += len(line.content or b"")
        if len(pending) == _SLICE_LINES or num_bytes >= _SLICE_BYTES:
            yield pending
            pending, num_bytes = [], 0
    if pending:
        yield pending


async def _ahead(
    slices: AsyncIterator[list[Line]], parse_slice: Callable[[Sequence[Line]], Awaitable[T]]
) -> AsyncGenerator[tuple[list[Line], T], None]:
    """Yield each slice parsed; read and parse the next one while the caller stores it."""

    async def read() -> tuple[list[Line], T] | None:
        lines = await anext(slices, None)
        return None if lines is None else (lines, await parse_slice(lines))

    reading = asyncio.create_task(read())
    try:
        while (found := await reading) is not None:
            reading = asyncio.create_task(read())
            yield found
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)  # nothing outlives the request


async def _parse_slice(services: Services, lines: Sequence[Line], caller: Caller) -> Parsed:
    chars = services.settings.api.inline_count_chars // _INLINE_FRACTION
    acceptance = await services.acceptance(max_inline_chars=chars, scopes=caller.scopes)
    num_bytes = sum(len(line.content or b"") for line in lines)
    return await services.compute_apart(num_bytes, _parse_lines, lines, acceptance)


async def _submit_slice(
    services: Services,
    parsed: Parsed,
    report: BulkReport,
    destinations: LineDestinations,
    *,
    caller: Caller,
    guard: IdempotencyGuard | None,
) -> LongbatchError | None:
    """Store the slice's valid lines as jobs.

    Returns:
        The error that keeps later lines from being stored; None if they may go on.
    """
    specs, errors = parsed
    for number, located in zip([*specs], await services.locate([*specs.values()]), strict=True):
        if isinstance(located, LongbatchError):
            errors.append((number, located))
        else:
            specs[number] = located
    urls = {number: spec.webhook_url for number, spec in specs.items() if spec.webhook_url is not None}
    errors += (await destinations.check(urls)).items()
    numbers = list(specs)
    faults = await check_files(services, list(specs.values()), tenant_id=caller.tenant_id)
    errors += [(numbers[place], error) for place, error in faults.items()]
    for number, error in errors:
        if specs.pop(number, None) is not None or number not in numbers:
            report.reject(number, error)
    if not specs:
        return None
    try:
        named_urls = {spec.webhook_url for spec in specs.values() if spec.webhook_url is not None}
        await services.register_destinations(named_urls, tenant_id=caller.tenant_id)
        by = _submitter(services, report, caller)
        job_ids, outcomes = await services.submit(by, _store, list(specs.values()), by=by, guard=guard)
    except (UnavailableError, LimitError, IdempotencyConflictError) as error:
        for number in specs:
            report.reject(number, error)
        return error
    for number, outcome in zip(specs, outcomes, strict=False):
        if isinstance(outcome, DatabaseError):
            report.reject(number, _unforeseen(number, outcome))
    new = [each for each in outcomes if isinstance(each, Job)]
    services.doorbell.ring_for(new)
    report.ids += [ids.job_id(job_id) for job_id in job_ids]
    report.since = report.since or next((job.created_at for job in new), None)
    return await _charge(services, caller, sum(job.state in TERMINAL for job in new))


def _store(
    session: Session, specs: Sequence[JobSpec], *, by: Submitter, guard: IdempotencyGuard | None
) -> tuple[list[UUID], list[Job | DatabaseError]]:
    """Submit these jobs, or find those that an earlier request made.

    Returns:
        The ids of the jobs, and what became of each specification; nothing if an earlier request made them.
    """
    outcomes: list[Job | DatabaseError] = []

    def make(session: Session) -> list[UUID]:
        outcomes.extend(submission.submit_each(session, specs, by))
        return [each.id for each in outcomes if isinstance(each, Job)]

    job_ids, _ = run_idempotently(session, guard, make, tenant_id=by.tenant_id, kind=_SLICE)
    return job_ids, outcomes


def _recorded(job_ids: list[UUID]) -> JsonObject:
    return {"job_ids": [each.hex for each in job_ids]}


def _found(_session: Session, recorded: UUID | JsonObject) -> list[UUID] | None:
    """Read the ids that the key recorded, including those of jobs deleted since.

    So a slice is never submitted again in part.
    """
    ids = recorded.get("job_ids") if isinstance(recorded, dict) else None
    return [UUID(hex=each) for each in ids] if isinstance(ids, list) else None


_SLICE: Final[RequestKind[list[UUID]]] = RequestKind("jobs", record=_recorded, find=_found)


def _submitter(services: Services, report: BulkReport, caller: Caller) -> Submitter:
    """Return who submits the next slice: with the request's trace, until that has its jobs."""
    by = services.submitter(caller)
    left = by.trace and replace(by.trace, max_jobs=max(0, by.trace.max_jobs - len(report.ids)))
    return replace(by, since=report.since, trace=left)


def _unforeseen(number: int, error: Exception) -> LongbatchError:
    telemetry.log_failure(telemetry.ROW_FAILED, error, loop="bulk", line=number)
    return LongbatchError("The line could not be stored.")


async def _charge(services: Services, caller: Caller, num_failed: int) -> RequestRateError | None:
    """Count one request for each job that failed at once, since no quota bounds those.

    Returns:
        The error that refuses further requests; None if the rate limit still has room.
    """
    refusal = None
    for limit in caller.rate_limits if num_failed else []:
        try:
            await services.rates.charge(limit, num_requests=num_failed)
        except RequestRateError as error:
            refusal = error
    return refusal


def _guard_of(
    idempotency: IdempotencyHeaders, lines: Sequence[Line], *, number: int
) -> IdempotencyGuard | None:
    """Return the idempotency of one slice.

    The lines alone decide where slices end, so a retry has the same slices.
    """
    if not idempotency.is_given:
        return None
    digest = sha256()
    for line in lines:
        digest.update(line.content or b"")
        digest.update(b"\n")
    guard = idempotency.for_request(digest.digest())
    return guard.for_slice(f"part {number}") if guard else None


def _parse_lines(lines: Sequence[Line], acceptance: Acceptance) -> Parsed:
    """Parse lines into specifications and errors, by line number; count short prompts together."""
    drafts: dict[int, Draft] = {}
    errors: list[tuple[int, LongbatchError]] = []
    specs: dict[int, JobSpec] = {}
    for line in lines:
        try:
            if line.content is None:
                limit = acceptance.settings.api.max_body_bytes
                raise TooLargeError(f"A line may have at most {limit} bytes.")
            drafts[line.number] = draft(parse(JobRequest, line.content), acceptance)
        except LongbatchError as error:
            errors.append((line.number, error))
    counts = counted_together([each.prompt for each in drafts.values()], acceptance)
    for (number, each), counted in zip(drafts.items(), counts, strict=True):
        try:
            specs[number] = each.specification(counted, acceptance)
        except LongbatchError as error:
            errors.append((number, error))
    return specs, errors
