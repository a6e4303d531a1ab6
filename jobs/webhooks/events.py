"""Events: what happened to a job, a batch, a summary, answers or an extraction, as receivers read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from jobs import ids
from jobs.ids import uuid7
from jobs.models import Batch, Job, JsonObject, Summary, WebhookEndpoint
from jobs.prompts.openai import usage_object
from jobs.responses.objects import RESPONSE_TASK, WAITED_TASK, ended_status
from jobs.states import FinishReason, JobState, Lane
from jobs.states.summary import Purpose
from jobs.traces import subjects
from jobs.views import job_object, optional_rfc3339, optional_seconds
from jobs.webhooks import fanout
from jobs.webhooks.fanout import Destination
from jobs.webhooks.rules import JOB_STARTED

# The column of the outbox that holds the subject's id.
_COLUMNS: Final = {Job: "job_id", Batch: "batch_id", Summary: "summary_id", WebhookEndpoint: "endpoint_id"}
SUBJECT_COLUMNS: Final = tuple(_COLUMNS.values())

# Conditions in SQL on a row of `jobs`. Lines of a batch and jobs of a tree are not announced; interactive
# clients wait anyway, unless they asked for a response in the background.
_IS_ANNOUNCED: Final = f"""(jobs.batch_id IS NULL AND jobs.summary_id IS NULL AND (
    jobs.lane = '{Lane.BATCH.value}' AND jobs.task <> '{WAITED_TASK}' OR jobs.task = '{RESPONSE_TASK}'
))"""
# An endpoint wants to know of its start.
IS_START_WANTED: Final = f"""({_IS_ANNOUNCED} AND jobs.task <> '{RESPONSE_TASK}' AND EXISTS (
    SELECT FROM webhook_endpoints AS endpoint
    WHERE endpoint.tenant_id = jobs.tenant_id AND endpoint.events @> '{{{JOB_STARTED}}}'
        AND endpoint.disabled_reason IS NULL
))"""  # built from constants
# Its tenant has endpoints, disabled ones included.
_HAS_ENDPOINTS: Final = """EXISTS (
    SELECT FROM webhook_endpoints AS endpoint WHERE endpoint.tenant_id = jobs.tenant_id
)"""
# A receiver may want to know of its end, or of its replay later.
MAY_BE_WANTED: Final = f"""(jobs.webhook_url IS NOT NULL OR {_IS_ANNOUNCED} AND {_HAS_ENDPOINTS})"""
# The type of the event of a row's end, of which `ended` has the columns.
ENDED_TYPE: Final = f"""CASE WHEN ended.task = '{RESPONSE_TASK}' THEN 'response.' ||
    CASE WHEN ended.finish_reason = '{FinishReason.LENGTH.value}' THEN 'incomplete'
        WHEN ended.state = '{JobState.EXPIRED.value}' THEN 'failed' ELSE ended.state END
    ELSE 'job.' || ended.state END"""  # built from constants


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, for `outbox.publish`.

    Attributes:
        subject: what it happened to.
        type: such as `job.completed`; see `rules.EVENT_TYPES`.
        at: when it happened, by the database's clock.
        data: the subject, as receivers read it; a job without its usage.
        has_usage: receivers read the job's usage too.
        own: the destination that the subject brought; None: there is none.
        is_announced: the tenant's endpoints that want this type receive it too.
        id: receivers see it.
    """

    subject: Job | Batch | Summary | WebhookEndpoint
    type: str
    at: datetime | None
    data: JsonObject
    own: Destination | None = None
    is_announced: bool = True
    has_usage: bool = False
    id: UUID = field(default_factory=uuid7)

    @property
    def column(self) -> str:
        """The column of the outbox that holds the subject's id."""
        return _COLUMNS[type(self.subject)]

    @property
    def is_of_job(self) -> bool:
        """True if it happened to a job."""
        return isinstance(self.subject, Job)

    @property
    def traceparent(self) -> str | None:
        """The span above those of its deliveries; None: it has no trace."""
        if isinstance(self.subject, WebhookEndpoint):
            return None
        context = subjects.context_of(self.subject)
        return None if context is None else str(context)

    def payload(self, *, reasoning_tokens: int) -> JsonObject:
        """Build the body that receivers get.

        Args:
            reasoning_tokens: how many of a job's generated tokens were thinking.
        """
        of_job: JsonObject = {}
        if self.has_usage and isinstance(self.subject, Job):
            of_job["usage"] = usage_object(
                prompt_tokens=self.subject.prompt_tokens,
                completion_tokens=self.subject.completion_tokens,
                reasoning_tokens=reasoning_tokens,
                cached_tokens=self.subject.cached_tokens,
            )
        return {
            "id": ids.event_id(self.id),
            "object": "event",
            "created_at": optional_seconds(self.at),
            "type": self.type,
            "data": {**self.data, **of_job},
        }


def job_started(job: Job) -> Event:
    """Build the event of a job that an engine now runs."""
    return _job_event(job, JOB_STARTED, at=job.started_at)


def job_ended(job: Job) -> Event:
    """Build the event of a finished job, or of the response that it generated."""
    own = _own(job, includes_output=job.webhook_includes_output)
    if job.task == RESPONSE_TASK:
        return Event(
            subject=job,
            type=f"response.{ended_status(job)}",
            at=job.finalized_at,
            data={"id": ids.response_id(job.id)},  # OpenAI's shape
            own=own,
        )
    return _job_event(job, f"job.{job.state}", at=job.finalized_at, own=own)


def batch_ended(batch: Batch) -> Event:
    """Build the event of a finished batch, in OpenAI's shape."""
    return Event(
        subject=batch,
        type=f"batch.{batch.state}",
        at=getattr(batch, f"{batch.state}_at"),
        data={"id": ids.batch_id(batch.id)},
        own=_own(batch),
    )


# What types of events begin with, and where results are.
_TREES: Final[Mapping[Purpose, tuple[str, str]]] = {
    Purpose.SUMMARY: ("summary", "/v1/summaries/{}/result"),
    Purpose.ANSWERS: ("answers", "/v1/answers/{}"),
    Purpose.EXTRACTION: ("extractions", "/v1/extractions/{}"),
}


def summary_ended(summary: Summary) -> Event:
    """Build the event of a finished summary, or other tree; clients read what it made from `result_url`."""
    kind, result_url = _TREES[Purpose(summary.purpose)]
    data: JsonObject = {
        "id": summary.public_id,
        "object": summary.purpose,
        "state": summary.state,
        "custom_id": summary.custom_id,
        "metadata": dict(summary.labels),
        "error": summary.error,
        "finalized_at": optional_rfc3339(summary.finalized_at),
        "result_url": result_url.format(summary.public_id),
    }
    return Event(
        subject=summary,
        type=f"{kind}.{summary.state}",
        at=summary.finalized_at,
        data=data,
        own=_own(summary),
    )


def _job_event(job: Job, kind: str, *, at: datetime | None, own: Destination | None = None) -> Event:
    return Event(
        subject=job,
        type=kind,
        at=at,
        data={**job_object(job), "result_url": f"/v1/jobs/{ids.job_id(job.id)}/result"},
        own=own,
        is_announced=_is_announced(job),
        has_usage=True,
    )


def _is_announced(job: Job) -> bool:
    is_alone = job.batch_id is None and job.summary_id is None
    return is_alone and job.lane == Lane.BATCH and job.task != WAITED_TASK


def _own(of: Job | Batch | Summary, *, includes_output: bool = False) -> Destination | None:
    if of.webhook_url is None:
        return None
    return fanout.for_url(
        of.tenant_id, of.webhook_url, secret=of.webhook_secret, includes_output=includes_output
    )
