"""One job: why it waits, what happened to it, what it reserves and has used; its texts when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.error_pages import page_router
from api.console.job_filters import LIST
from api.console.jobs import row_of
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import read_for, tenant_of
from api.console.session import ViewerDep
from api.console.subjects.kinds import SUBJECTS
from api.http.dependencies import ServicesDep
from api.http.identifiers import JobIdDep
from api.runtime.services import Services
from jobs import ids, queries
from jobs.embeddings import vectors
from jobs.engines import attempts
from jobs.engines.attempts import Run
from jobs.errors import NotFoundError
from jobs.models import (
    Job,
    Reservation,
    Result,
    Summary,
    SummaryNode,
    Tenant,
    WebhookEvent,
)
from jobs.prompts import messages, store
from jobs.prompts.store import StoredText
from jobs.prompts.tools.calls import read_calls
from jobs.queries import JobStatus
from jobs.states import ACTIVE, AttemptOutcome
from jobs.views import QueuePosition
from longbatch.waiting import WAIT_WORDS

router = page_router()

# How runs end, for people.
_OUTCOME_WORDS: Final[dict[str, str]] = {
    AttemptOutcome.RETRIED: "failed, to be tried again",
    AttemptOutcome.RELEASED: "given back to the queue",
    AttemptOutcome.RECOUNTED: "given back, as its prompt was counted anew",
    AttemptOutcome.PREEMPTED: "made room for the interactive lane",
    AttemptOutcome.YIELDED: "made room for jobs beside it",
    AttemptOutcome.LOST: "its worker or engine was lost",
}
# Longer texts are cut: a browser lays out this much in a moment, and the API has the rest.
_MAX_SHOWN: Final = 200_000
_NUMBERS_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text on the page, with the heading that says whose it is."""

    heading: str
    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job with what belongs to it."""

    job: Job
    tenant: str
    events: Sequence[WebhookEvent]
    runs: Sequence[Run]
    of: "TreePlace | None"


@dataclass(frozen=True, slots=True)
class TreePlace:
    """The summary, the answers or the extraction that a job is of.

    Attributes:
        words: what pages call it.
        part: the address of what it does there; None: another job took its place.
    """

    words: str
    address: str
    part: str | None


@router.get("/jobs/{job_id}")
async def show_job(
    request: Request, job_id: JobIdDep, services: ServicesDep, viewer: ViewerDep, show: str | None = None
) -> Response:
    """Show the job; with `show=prompt` or `show=result` its texts too."""
    found = await read_for(viewer, services, partial(read_job, job_id=job_id, tenant_id=tenant_of(viewer)))
    job = found.job
    texts: list[ShownText] = []
    if show == "prompt" and job.text_id is not None:
        text = await read_for(viewer, services, partial(store.load, text_id=job.text_id))
        texts = await services.compute(len(text.body), _prompt, text)
    elif show == "result":
        texts = _output(await read_for(viewer, services, partial(queries.get_result, job_id=job_id)))
    address = f"{LIST}/{ids.job_id(job_id)}"
    return render(
        request,
        "job.html",
        title=f"Job {ids.job_id(job_id)[:16]}…",
        details=found,
        address=address,
        texts=texts,
        show=show,
        live_address=f"{address}/live" if job.state in ACTIVE else None,
        is_own=job.tenant_id == viewer.caller.tenant_id,
        row=row_of(job, tenant=None),
        moments=moments_of(job),
        outcome_words=_OUTCOME_WORDS,
        **(await _changing(services, job)),
    )


@router.get("/jobs/{job_id}/live")
async def follow_job(
    request: Request, job_id: JobIdDep, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the part of the page that changes."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        read = partial(read_job, job_id=job_id, tenant_id=tenant_of(viewer))
        job = (await read_for(viewer, services, read)).job

        def render_status(_: UUID, status: JobStatus) -> str:
            row = row_of(job, tenant=None)
            return render_part(request, "job_live.html", row=row, status=status, since=job.state)

        followed = [job_id] if job.state in ACTIVE else []
        address = f"{LIST}/{ids.job_id(job_id)}"
        reload = render_part(request, "reload_live.html", address=address, part="#job")
        return live.respond(stream, watched.jobs, followed, render_status, ended=reload)


def read_job(session: Session, *, job_id: UUID, tenant_id: UUID | None) -> JobDetails:
    """Read the job, its events, and those of its runs that are over.

    Args:
        session: one that sees the tenant's rows.
        job_id: of the job.
        tenant_id: its owner; None: of any tenant.

    Raises:
        NotFoundError: the tenant has no such job.
    """
    mine = [] if tenant_id is None else [Job.tenant_id == tenant_id]
    job = session.scalar(select(Job).where(Job.id == job_id, *mine))
    if job is None:
        raise NotFoundError("There is no such job.")
    name = session.scalars(select(Tenant.name).where(Tenant.id == job.tenant_id)).one()
    events = select(WebhookEvent).where(
        WebhookEvent.job_id == job_id, WebhookEvent.tenant_id == job.tenant_id
    )
    published = session.scalars(events.order_by(WebhookEvent.id)).all()
    return JobDetails(job, name, published, attempts.of_job(session, job_id), _place_of(session, job))


def _place_of(session: Session, job: Job) -> TreePlace | None:
    """Find the place of a job in the tree of a summary, of answers or of an extraction.

    Returns:
        None: it is in none.
    """
    if job.summary_id is None:
        return None
    purpose = session.scalar(
        select(Summary.purpose).where(
            Summary.id == job.summary_id, Summary.tenant_id == job.tenant_id, Summary.deleted_at.is_(None)
        )
    )
    of = None if purpose is None else SUBJECTS.get(purpose)
    if of is None:
        return None
    address = of.address_of(job.summary_id)
    node = session.scalar(select(SummaryNode).where(SummaryNode.job_id == job.id))
    return TreePlace(of.words, address, None if node is None else of.part_of(node))


async def _changing(services: Services, job: Job) -> dict[str, Any]:
    """Find what the page says of a job on its way: its queue position and why, or what it reserves."""
    place: QueuePosition | None = await services.queue_positions.of(job)
    reservation = present = None
    if job.lease_id is not None:
        find = partial(_held, job_id=job.id, lease_id=job.lease_id)
        reservation, present = await services.transactions.run_across(find)
    why = None
    if place is not None:
        why = place.detail or (WAIT_WORDS[place.reason] if place.reason else "nothing holds it back")
    return {"place": place, "why": why, "reservation": reservation, "present": present}


def moments_of(job: Job) -> list[tuple[str, datetime]]:
    """List what happened to the job and when, in order."""
    known = (
        ("submitted", job.created_at),
        ("first claimed by an engine", job.started_at),
        ("first token", job.first_token_at),
        (job.state, job.finalized_at),
    )
    return sorted(((words, at) for words, at in known if at is not None), key=lambda each: each[1])


def _held(session: Session, *, job_id: UUID, lease_id: UUID) -> tuple[Reservation | None, Run | None]:
    return session.get(Reservation, lease_id), attempts.present(session, job_id, tenant_id=None)


def _prompt(text: StoredText) -> list[ShownText]:
    canonical = text.canonical
    if (given := messages.embedded_input(canonical)) is not None:
        return [_shown("input", given if isinstance(given, str) else f"{len(given)} token ids")]
    plain = messages.plain_text(canonical)
    if plain is not None:
        return [_shown("prompt", plain)]
    return [_shown(turn.role, messages.said(turn)) for turn in messages.parse(canonical).messages]


def _output(result: Result | None) -> list[ShownText]:
    if result is None:
        return []
    if result.embedding is not None:
        return [_shown("embedding", _first_numbers(result.embedding))]
    thought = [_shown("thinking", result.reasoning)] if result.reasoning else []
    calls = [f"{call.name}({call.arguments})" for call in read_calls(result.tool_calls)]
    called = [_shown("calls", "\n".join(calls))] if calls else []
    return [*thought, _shown("output", result.output), *called]


def _first_numbers(packed: bytes) -> str:
    first = vectors.unpack(packed[: _NUMBERS_SHOWN * vectors.FLOAT_BYTES])
    return f"{vectors.num_dimensions(packed)} numbers: {', '.join(f'{each:.6f}' for each in first)}, …"


def _shown(heading: str, text: str) -> ShownText:
    return ShownText(heading, text[:_MAX_SHOWN], len(text) > _MAX_SHOWN)
