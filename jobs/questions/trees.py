"""How far the trees of answers are, question by question, and what the parts of the document replied."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import Select, func, select, type_coerce
from sqlalchemy.orm import Session

from jobs.models import Job, Result, Summary, SummaryNode
from jobs.models.output import OUTPUT_NOTE
from jobs.questions.joining import JobEnd, reply_of
from jobs.questions.replies import Reply
from jobs.sealing.content import fault_of
from jobs.states import TERMINAL, JobState

_ENDED: Final = sorted(TERMINAL)
# Rows before and after to look at: twice as many as a request can make, as others make some meanwhile.
_NEAR: Final = 2000


@dataclass(frozen=True, slots=True)
class QuestionTree:
    """The jobs that ask one question.

    Attributes:
        place: of the question, from 0.
        num_jobs: of its tree.
        num_ended: of these, how many have ended.
        last_job_id: the job that the others lead to.
        state: of that job.
    """

    place: int
    num_jobs: int
    num_ended: int
    last_job_id: UUID
    state: str


@dataclass(frozen=True, slots=True)
class RepliedPart:
    """A part of the document, or a join of its parts, and what its job replied.

    Attributes:
        start, end: characters of the text; None: a join.
        pages: first and last, from 1; None: no pages, or a join.
        reply: None: it has not completed, was not asked for, or has another form than was asked for.
        error: why there is none.
    """

    number: int
    start: int | None
    end: int | None
    pages: tuple[int, int] | None
    job_id: UUID
    state: str
    reply: Reply | None
    error: dict[str, object] | None


def read_trees(session: Session, answers_id: UUID) -> list[QuestionTree]:
    """Read the trees of these answers in the order of the questions; none before they are planned."""
    mine = (SummaryNode.summary_id == answers_id, SummaryNode.question.is_not(None))
    of_jobs = select(SummaryNode.question, func.count(), func.count().filter(Job.state.in_(_ENDED)))
    counted = of_jobs.join(Job, Job.id == SummaryNode.job_id).where(*mine).group_by(SummaryNode.question)
    counts = {place: (num_jobs, num_ended) for place, num_jobs, num_ended in session.execute(counted)}
    last = (
        select(SummaryNode.question, Job.id, Job.state)
        .join(Job, Job.id == SummaryNode.job_id)
        .where(*mine, SummaryNode.parent.is_(None))
        .order_by(SummaryNode.question)
    )
    return [
        QuestionTree(place, *counts[place], last_job_id=job_id, state=state)
        for place, job_id, state in session.execute(last)
        if place is not None
    ]


def read_parts(
    session: Session, answers_id: UUID, place: int, *, limit: int, with_replies: bool
) -> list[RepliedPart]:
    """Read the parts that were asked the question, in the order of the text, and the joins after them.

    Args:
        session: one that sees the answers.
        answers_id: theirs.
        place: of the question, from 0.
        limit: parts to read.
        with_replies: read what they replied too.
    """
    query = (
        select(SummaryNode, Job.state, Job.error, type_coerce(Result.output, OUTPUT_NOTE))
        .join(Job, Job.id == SummaryNode.job_id)
        .outerjoin(Result, (Result.job_id == Job.id) if with_replies else Result.job_id.is_(None))
        .where(SummaryNode.summary_id == answers_id, SummaryNode.question == place)
        .order_by(SummaryNode.number)
        .limit(limit)
    )
    return [_part(*row) for row in session.execute(query)]


def _part(node: SummaryNode, state: str, error: dict[str, object] | None, output: str | None) -> RepliedPart:
    found: Reply | Mapping[str, object] | None = error or fault_of(output)
    if found is None and state == JobState.COMPLETED and output is not None:
        found = reply_of(JobEnd(output))
    pages = None if node.first_page is None else (node.first_page, node.last_page or node.first_page)
    return RepliedPart(
        number=node.number,
        start=node.start_char,
        end=node.end_char,
        pages=pages,
        job_id=node.job_id,
        state=state,
        reply=found if isinstance(found, Reply) else None,
        error=None if found is None or isinstance(found, Reply) else dict(found),
    )


def asked_together(session: Session, asked: Summary) -> list[UUID]:
    """List the answers, these included, that one request made, in the order of its documents.

    One transaction makes them, of one moment, with ids that follow each other but for those of others.
    """
    earlier = _near(asked).where(Summary.id <= asked.id).order_by(Summary.id.desc()).limit(_NEAR)
    later = _near(asked).where(Summary.id > asked.id).order_by(Summary.id).limit(_NEAR)
    found: list[UUID] = []
    for each in (earlier.subquery(), later.subquery()):
        found += session.scalars(select(each.c.id).where(each.c.created_at == asked.created_at)).all()
    return sorted(found)


def _near(asked: Summary) -> Select[UUID, datetime]:
    return select(Summary.id, Summary.created_at).where(
        Summary.tenant_id == asked.tenant_id,
        Summary.purpose == asked.purpose,
        Summary.deleted_at.is_(None),
    )
