"""Bulk submission: lines become jobs in parts of one transaction each, with flat memory."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final, TypedDict
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.body import Line, parse
from api.http.idempotency import Promise
from api.jobs import acceptance as accept
from api.jobs.line_destinations import LineDestinations
from api.jobs.requests import JobRequest
from api.runtime.api_keys import Caller
from api.runtime.services import Acceptance, Parts
from jobs import ids, submission
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.errors import (
    IdempotencyConflictError,
    LimitError,
    LongbatchError,
    RequestRateError,
    TooLargeError,
    UnavailableError,
)
from jobs.models import Job
from jobs.states import TERMINAL
from jobs.submission import JobSpec
from jobs.tenants.idempotency import Once
from jobs.tenants.quotas import Admit

# A part is one transaction: large enough that the commit does not matter, small enough to hold in memory.
_PART_LINES: Final = 300
_PART_BYTES: Final = 4 * 2**20
# Prompts this much shorter than a single request's are counted at once: a part of them takes 0.2 s of CPU.
_INLINE_FRACTION: Final = 8


class LineError(TypedDict):
    """A line that was not accepted."""

    line: int
    code: str
    message: str
    param: str | None


@dataclass(slots=True)
class Report:
    """What became of the lines.

    Attributes:
        ids: of the accepted ones, in their order.
        num_rejected: can be more than there are errors: lines over the limit share one.
    """

    ids: list[str] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    num_rejected: int = 0

    def reject(self, number: int, error: LongbatchError) -> None:
        """The line was not accepted."""
        self.num_rejected += 1
        self.errors.append(LineError(line=number, code=error.code, message=error.message, param=error.param))


async def submit_lines(
    parts: Parts, lines: AsyncIterator[Line], *, caller: Caller, promise: Promise
) -> Report:
    """Every good line is a job that stands in the table; the report names the others.

    Raises:
        UnavailableError: the database failed before any job was stored.
        LimitError: the tenant's quota is full, and no job was stored.
        IdempotencyConflictError: the key was used with other lines, from the first part on.
        TooLargeError: the body was too large before any job was stored.
    """
    report = Report()
    named = LineDestinations(parts.check_destination)
    failure: LongbatchError | None = None
    number = 0
    async for part in _in_parts(_within_limit(lines, report, max_lines=parts.settings.api.max_bulk_lines)):
        if failure is None:
            once = _once(promise, part, number=number)
            failure = await _submit_part(parts, part, report, named, caller=caller, once=once)
            number += 1
        else:  # read to the end, so that the caller gets to see the report
            for line in part:
                report.reject(line.number, failure)
    if failure is not None and not report.ids:
        raise failure
    report.errors.sort(key=lambda error: error["line"])
    return report


async def _within_limit(lines: AsyncIterator[Line], report: Report, *, max_lines: int) -> AsyncIterator[Line]:
    """The lines that count; those beyond the limit are rejected with one error for all."""
    num_lines = 0
    try:
        async for line in lines:
            if line.content is not None and not line.content.strip():
                continue
            num_lines += 1
            if num_lines <= max_lines:
                yield line
            elif num_lines == max_lines + 1:
                message = f"A bulk request may have {max_lines} lines; from this one on, none was accepted."
                report.reject(line.number, TooLargeError(message))
            else:
                report.num_rejected += 1
    except TooLargeError as error:
        if not num_lines:
            raise
        report.reject(num_lines + 1, error)


async def _in_parts(lines: AsyncIterator[Line]) -> AsyncIterator[list[Line]]:
    part: list[Line] = []
    num_bytes = 0
    async for line in lines:
        part.append(line)
        num_bytes += len(line.content or b"")
        if len(part) == _PART_LINES or num_bytes >= _PART_BYTES:
            yield part
            part, num_bytes = [], 0
    if part:
        yield part


async def _submit_part(
    parts: Parts,
    part: Sequence[Line],
    report: Report,
    named: LineDestinations,
    *,
    caller: Caller,
    once: Once | None,
) -> LongbatchError | None:
    """Store the part's good lines as jobs; what keeps the lines after it from that, or None."""
    chars = parts.settings.api.inline_count_chars // _INLINE_FRACTION
    acceptance = parts.acceptance(max_inline_chars=chars)
    num_bytes = sum(len(line.content or b"") for line in part)
    specs, errors = await parts.compute_apart(num_bytes, _understand, part, acceptance)
    urls = {number: spec.webhook_url for number, spec in specs.items() if spec.webhook_url is not None}
    errors += (await named.check(urls)).items()
    for number, error in errors:
        specs.pop(number, None)
        report.reject(number, error)
    if not specs:
        return None
    submit = partial(
        _store,
        specs=list(specs.values()),
        once=once,
        tenant_id=caller.tenant_id,
        fallback=registry.configured_capacity(parts.settings.engine),
        admit=parts.allowances.admit_for(caller.tenant_id, caller.limits),
    )
    try:
        named_urls = {spec.webhook_url for spec in specs.values() if spec.webhook_url is not None}
        await parts.name_destinations(named_urls, tenant_id=caller.tenant_id)
        job_ids, new = await parts.transactions.run(submit)
    except (UnavailableError, LimitError, IdempotencyConflictError) as error:
        for number in specs:
            report.reject(number, error)
        return error
    parts.doorbell.ring_for(new)
    report.ids += [ids.job_id(job_id) for job_id in job_ids]
    return await _charge(parts, caller, sum(job.state in TERMINAL for job in new))


async def _charge(parts: Parts, caller: Caller, num_failed: int) -> RequestRateError | None:
    """Count a request for each job that failed at once: no quota bounds those; what says no, or None."""
    try:
        for _ in range(num_failed):
            await parts.rates.hit(caller.tenant_id, caller.limits.max_requests)
    except RequestRateError as error:
        return error
    return None


def _store(
    session: Session,
    specs: Sequence[JobSpec],
    once: Once | None,
    *,
    tenant_id: UUID,
    fallback: Capacity,
    admit: Admit,
) -> tuple[list[UUID], list[Job]]:
    """The ids of the jobs in their order, and the jobs that are new."""
    if once is not None:
        return submission.submit_part_once(
            session, specs, once, tenant_id=tenant_id, fallback=fallback, admit=admit
        )
    jobs = submission.submit(session, specs, tenant_id=tenant_id, fallback=fallback, admit=admit)
    return [job.id for job in jobs], jobs


def _once(promise: Promise, part: Sequence[Line], *, number: int) -> Once | None:
    """The promise for one part: its boundaries follow from the lines, so they are the same the next time."""
    if not promise.is_given:
        return None
    digest = sha256()
    for line in part:
        digest.update(line.content or b"")
        digest.update(b"\n")
    once = promise.once(digest.digest())
    return once.part(f"part {number}") if once else None


def _understand(
    part: Sequence[Line], acceptance: Acceptance
) -> tuple[dict[int, JobSpec], list[tuple[int, LongbatchError]]]:
    """The good lines as specifications by their number, and what is wrong with the others."""
    specs: dict[int, JobSpec] = {}
    errors: list[tuple[int, LongbatchError]] = []
    for line in part:
        try:
            if line.content is None:
                limit = acceptance.settings.api.max_body_bytes
                raise TooLargeError(f"A line may have {limit} bytes at most.")
            request = parse(JobRequest, line.content)
            specs[line.number] = accept.specification(request, acceptance)
        except LongbatchError as error:
            errors.append((line.number, error))
    return specs, errors
