"""The spans of batches and trees that have ended: the jobs of their lines and nodes are below them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from jobs import ids
from jobs.models import Batch, Job, Summary
from jobs.states.batch import BatchState
from jobs.states.summary import SummaryState
from jobs.traces.context import JobsTrace, TraceContext, span_id_of
from jobs.traces.job_spans import JOB
from jobs.traces.span import Attributes, Span, known

PLAN: Final = "plan"
VALIDATE: Final = "validate"


def context_of(subject: Job | Batch | Summary) -> TraceContext | None:
    """Return the context of the subject's own span; None: it has no trace."""
    above = TraceContext.parse(subject.traceparent)
    return None if above is None else above.below(span_id_of(_name_of(subject), subject.id))


def trace_of_jobs(subject: Batch | Summary, *, max_jobs: int) -> JobsTrace | None:
    """Return the trace of the subject's jobs; None: they have none."""
    context = context_of(subject)
    return None if context is None else JobsTrace(str(context), max_jobs)


def spans_of_summary(summary: Summary) -> Iterator[Span]:
    """List the spans of a summary, or another tree, that has ended: its own, and that of its planning."""
    if summary.finalized_at is not None:
        code = (summary.error or {}).get("code")
        is_failed = summary.state == SummaryState.FAILED
        yield from _spans(
            summary,
            ended_at=summary.finalized_at,
            first=(PLAN, summary.planned_at or summary.finalized_at),
            attributes=_of_summary(summary),
            error_type=str(code or "failed") if is_failed else None,
        )


def spans_of_batch(batch: Batch) -> Iterator[Span]:
    """List the spans of a batch that has ended: its own, and that of its validation."""
    ended_at: datetime | None = getattr(batch, f"{batch.state}_at", None)
    if batch.is_terminal and ended_at is not None:
        yield from _spans(
            batch,
            ended_at=ended_at,
            first=(VALIDATE, batch.in_progress_at or ended_at),
            attributes=_of_batch(batch),
            error_type="invalid_file" if batch.state == BatchState.FAILED else None,
        )


def _spans(
    subject: Batch | Summary,
    *,
    ended_at: datetime,
    first: tuple[str, datetime],
    attributes: Attributes,
    error_type: str | None,
) -> Iterator[Span]:
    above = TraceContext.parse(subject.traceparent)
    own = context_of(subject)
    if above is None or own is None:
        return
    yield Span(
        name=_name_of(subject),
        context=own,
        parent_id=above.span_id,
        started_at=subject.created_at,
        ended_at=max(subject.created_at, ended_at),
        attributes=attributes,
        error_type=error_type,
    )
    name, until = first
    yield Span(
        name=name,
        context=own.below(span_id_of(name, subject.id)),
        parent_id=own.span_id,
        started_at=subject.created_at,
        ended_at=max(subject.created_at, until),
    )


def _name_of(subject: Job | Batch | Summary) -> str:
    if isinstance(subject, Summary):
        return subject.purpose
    return JOB if isinstance(subject, Job) else "batch"


def _of_summary(summary: Summary) -> Attributes:
    planned = (summary.plan or {}).get("jobs")
    return known(
        longbatch__summary__id=summary.public_id,
        longbatch__tenant__id=ids.tenant_id(summary.tenant_id),
        longbatch__summary__state=summary.state,
        longbatch__summary__num_jobs=planned if isinstance(planned, int) else None,
        gen_ai__request__model=summary.model,
        gen_ai__usage__input_tokens=summary.used_prompt_tokens,
        gen_ai__usage__output_tokens=summary.used_completion_tokens,
    )


def _of_batch(batch: Batch) -> Attributes:
    return known(
        longbatch__batch__id=ids.batch_id(batch.id),
        longbatch__tenant__id=ids.tenant_id(batch.tenant_id),
        longbatch__batch__state=batch.state,
        longbatch__batch__endpoint=batch.endpoint,
        longbatch__batch__num_lines=batch.num_lines,
        longbatch__batch__num_completed=batch.num_completed,
        longbatch__batch__num_failed=batch.num_failed,
        gen_ai__request__model=batch.model,
        gen_ai__usage__input_tokens=batch.input_tokens,
        gen_ai__usage__output_tokens=batch.output_tokens,
    )
