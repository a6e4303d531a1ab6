"""Queries on answers, in the public shape."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.models import DocumentFinding, Summary, SummaryDocument
from jobs.questions.views import (
    AnswerReply,
    AnswersObject,
    AnswersWithAnswers,
    answer_reply,
    answers_object,
)
from jobs.trees import counts as tree_counts
from jobs.trees.counts import TreeCounts


def describe(session: Session, answers: Sequence[Summary]) -> list[AnswersObject]:
    """Return the public shape of these, in order, with few queries in all."""
    return [answers_object(each, *read) for each, read in read_each(session, answers)]


def read_each(
    session: Session, asked: Sequence[Summary]
) -> Iterator[tuple[Summary, tuple[UUID, TreeCounts]]]:
    """Read the document of each row, and how far its jobs are, with few queries in all."""
    of_documents = select(SummaryDocument.summary_id, SummaryDocument.document_id)
    mine = SummaryDocument.summary_id.in_([each.id for each in asked])
    documents: dict[UUID, UUID] = dict(session.execute(of_documents.where(mine)).all())
    counts = tree_counts.read(session, asked)
    for each in asked:
        yield each, (documents[each.id], counts.get(each.id, TreeCounts()))


def describe_whole(session: Session, asked: Summary) -> AnswersWithAnswers:
    """Return the public shape with each answer."""
    (found,) = describe(session, [asked])
    return AnswersWithAnswers(**found, answers=list_findings(session, asked))


def list_findings(session: Session, asked: Summary) -> list[AnswerReply]:
    """List what the document says to each question, in their order; nothing before it is settled."""
    query = (
        select(DocumentFinding).where(DocumentFinding.summary_id == asked.id).order_by(DocumentFinding.place)
    )
    questions = asked.questions or []
    return [answer_reply(questions[each.place], each) for each in session.scalars(query)]
