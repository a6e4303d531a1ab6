"""Queries on answers, in the public shape."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.models import DocumentFinding, Summary, SummaryDocument
from jobs.questions.views import (
    AnswerReply,
    AnswersObject,
    AnswersWithAnswers,
    ReadingDetails,
    answer_reply,
    answers_object,
)
from jobs.summaries import stored_templates
from jobs.trees import counts as tree_counts
from jobs.trees.counts import TreeCounts


def describe(session: Session, answers: Sequence[Summary]) -> list[AnswersObject]:
    """Return the public shape of these, in order, with few queries in all."""
    return [answers_object(each, read) for each, read in read_each(session, answers)]


def read_each(session: Session, asked: Sequence[Summary]) -> Iterator[tuple[Summary, ReadingDetails]]:
    """Read what other tables hold about each row, with few queries in all."""
    of_documents = select(SummaryDocument.summary_id, SummaryDocument.document_id)
    mine = SummaryDocument.summary_id.in_([each.id for each in asked])
    documents: dict[UUID, UUID] = dict(session.execute(of_documents.where(mine)).all())
    counts, templates = tree_counts.read(session, asked), stored_templates.read_each(session, asked)
    for each in asked:
        template = None if each.template_id is None else templates.get(each.template_id)
        yield each, ReadingDetails(documents[each.id], counts.get(each.id, TreeCounts()), template)


def read_documents(session: Session, answers_ids: Sequence[UUID]) -> list[UUID]:
    """Read the documents of these answers, in the same order."""
    query = select(SummaryDocument.summary_id, SummaryDocument.document_id)
    rows = session.execute(query.where(SummaryDocument.summary_id.in_(answers_ids))).tuples()
    found = dict(rows.all())
    return [found[each] for each in answers_ids if each in found]


def describe_whole(session: Session, asked: Summary) -> AnswersWithAnswers:
    """Return the public shape with each answer."""
    (found,) = describe(session, [asked])
    return AnswersWithAnswers(**found, answers=list_findings(session, asked))


@dataclass(frozen=True, slots=True)
class QuestionOutcomes:
    """How many questions a document answers, does not answer, and could not be asked."""

    num_found: int = 0
    num_absent: int = 0
    num_failed: int = 0


def count_outcomes(session: Session, answers_ids: Collection[UUID]) -> dict[UUID, QuestionOutcomes]:
    """Count the outcomes of these answers; those that are not settled are left out."""
    failed, found = DocumentFinding.error.is_not(None), DocumentFinding.value.is_not(None)
    counts = (func.count().filter(each) for each in (found, ~failed & ~found, failed))
    mine = DocumentFinding.summary_id.in_(answers_ids)
    query = select(DocumentFinding.summary_id, *counts).where(mine).group_by(DocumentFinding.summary_id)
    return {answers_id: QuestionOutcomes(*numbers) for answers_id, *numbers in session.execute(query)}


def list_findings(session: Session, asked: Summary) -> list[AnswerReply]:
    """List what the document says to each question, in their order; nothing before it is settled."""
    return list_findings_of(session, [asked])[asked.id]


def list_findings_of(session: Session, answers: Sequence[Summary]) -> dict[UUID, list[AnswerReply]]:
    """List the same of each of these answers."""
    by_id = {each.id: each for each in answers}
    query = select(DocumentFinding).where(DocumentFinding.summary_id.in_(by_id))
    found: dict[UUID, list[AnswerReply]] = {each: [] for each in by_id}
    for each in session.scalars(query.order_by(DocumentFinding.summary_id, DocumentFinding.place)):
        questions = by_id[each.summary_id].questions or []
        found[each.summary_id].append(answer_reply(questions[each.place], each))
    return found
