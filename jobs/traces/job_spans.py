"""The spans of a job that has ended: its waits, its runs on engines, and their recording.

All times are the database's, so spans of different hosts are in order. A run whose worker was killed has its
row among the attempts as any other: whoever rescued the job wrote it, and its end is when that was noticed.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from jobs import ids
from jobs.embeddings import EMBED_TASK
from jobs.models import Job, JsonObject
from jobs.models.adapter import Address
from jobs.states import AttemptOutcome, JobState
from jobs.traces.context import TraceContext, span_id_of
from jobs.traces.span import Attributes, AttributeValue, Span, SpanEvent, SpanKind, known

JOB: Final = "job"
WAIT: Final = "wait"
RECORD: Final = "record"
FIRST_TOKEN: Final = "first_token"  # noqa: S105  # of a model
# Of the sampling, what is a number; stop strings are the caller's words.
_NUMBERS: Final = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
_MAX_NUMBER: Final = 2**63 - 1  # of OTLP
_FAULTS: Final = frozenset({AttemptOutcome.FAILED, AttemptOutcome.RETRIED, AttemptOutcome.LOST})


class TracedRun(NamedTuple):
    """A run of a job, as its row says; `Attempt` describes the fields."""

    job_id: UUID
    lease_id: UUID
    engine_name: str
    worker: str | None
    started_at: datetime
    first_token_at: datetime | None
    answered_at: datetime | None
    ended_at: datetime
    outcome: str
    error_code: str | None
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None


def spans_of(job: Job, runs: Sequence[TracedRun]) -> Iterator[Span]:
    """List the spans of a job that has ended.

    Args:
        job: the row.
        runs: its runs, oldest first.
    """
    above = TraceContext.parse(job.traceparent)
    if above is None or job.finalized_at is None:
        return
    own = above.below(span_id_of(JOB, job.id))
    yield Span(
        name=JOB,
        context=own,
        parent_id=above.span_id,
        started_at=job.created_at,
        ended_at=max(job.created_at, job.finalized_at),
        attributes=_of_job(job, is_shared=job.state == JobState.COMPLETED and not runs),
        error_type=_error_of(job),
    )
    since, is_over = job.created_at, False
    for number, run in enumerate(runs):
        yield _wait(job, own, number, since=since, until=run.started_at)
        yield from _run(job, own, run)
        since, is_over = run.ended_at, run.outcome in set(JobState)
    if not is_over:  # it ended without an engine
        yield _wait(job, own, len(runs), since=since, until=job.finalized_at)


def _wait(job: Job, own: TraceContext, number: int, *, since: datetime, until: datetime) -> Span:
    """Return the span of a wait for an engine, that for counting and for other jobs included."""
    return Span(
        name=WAIT,
        context=own.below(span_id_of(WAIT, job.id, number)),
        parent_id=own.span_id,
        started_at=since,
        ended_at=max(since, until),
    )


def _run(job: Job, own: TraceContext, run: TracedRun) -> Iterator[Span]:
    is_fault = run.outcome in _FAULTS
    answered_at = run.answered_at or run.ended_at
    first = run.first_token_at
    operation = "embeddings" if job.task == EMBED_TASK else "chat"
    yield Span(
        name=f"{operation} {Address(job.model, job.adapter)}",
        context=own.below(span_id_of("run", run.lease_id)),
        parent_id=own.span_id,
        started_at=run.started_at,
        ended_at=max(run.started_at, answered_at),
        kind=SpanKind.CLIENT,
        attributes={**_of_request(job, operation), **_of_run(job, run)},
        events=(SpanEvent(FIRST_TOKEN, first),) if first else (),
        error_type=run.error_code or (run.outcome if is_fault else None),
    )
    if run.answered_at is not None:
        yield Span(
            name=RECORD,
            context=own.below(span_id_of(RECORD, run.lease_id)),
            parent_id=own.span_id,
            started_at=answered_at,
            ended_at=max(answered_at, run.ended_at),
        )


def _of_job(job: Job, *, is_shared: bool) -> Attributes:
    return known(
        longbatch__job__id=ids.job_id(job.id),
        longbatch__tenant__id=ids.tenant_id(job.tenant_id),
        longbatch__job__lane=job.lane,
        longbatch__job__state=job.state,
        longbatch__job__num_rescues=job.num_rescues,
        longbatch__job__num_failed_attempts=job.attempt,
        longbatch__batch__id=ids.batch_id(job.batch_id) if job.batch_id else None,
        longbatch__batch__line=job.batch_line,
        longbatch__job__is_shared=is_shared or None,  # by an equal job's answer, without an engine
    )


def _of_request(job: Job, operation: str) -> Attributes:
    """Return the attributes of OpenTelemetry's conventions for requests to models."""
    asked: JsonObject = job.sampling
    numbers: dict[str, AttributeValue] = {
        f"gen_ai.request.{name}": value
        for name in _NUMBERS
        if isinstance(value := asked.get(name), int | float) and abs(value) <= _MAX_NUMBER
    }
    of_model = known(
        gen_ai__operation__name=operation,
        gen_ai__provider__name="longbatch",
        gen_ai__request__model=str(Address(job.model, job.adapter)),
        gen_ai__response__model=job.model,
        gen_ai__request__max_tokens=job.max_tokens if operation == "chat" else None,
    )
    return {**of_model, **numbers}


def _of_run(job: Job, run: TracedRun) -> Attributes:
    is_end = run.outcome == AttemptOutcome.COMPLETED and job.finish_reason is not None
    first = run.first_token_at
    return known(
        gen_ai__usage__input_tokens=run.prompt_tokens,
        gen_ai__usage__cache_read__input_tokens=run.cached_tokens,
        gen_ai__usage__output_tokens=run.completion_tokens,
        gen_ai__response__finish_reasons=(str(job.finish_reason),) if is_end else None,
        gen_ai__response__time_to_first_chunk=(first - run.started_at).total_seconds() if first else None,
        longbatch__engine__name=run.engine_name,
        longbatch__worker=run.worker,
        longbatch__attempt__id=ids.ATTEMPT.format(run.lease_id),
        longbatch__attempt__outcome=run.outcome,
    )


def _error_of(job: Job) -> str | None:
    if job.state != JobState.FAILED:
        return None
    code = (job.error or {}).get("code")
    return code if isinstance(code, str) else "failed"
