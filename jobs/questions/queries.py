"""Queries on answers, in the public shape."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
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
    unreadable_reply,
)
from jobs.sealing.content import ContentUnreadableError, Unreadable
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
    """Return the public shape with each answer.

    Raises:
        ContentUnreadableError: an answer cannot be decrypted.
    """
    (found,) = describe(session, [asked])
    each = [answer_reply(question, row) for question, row in _read_findings(session, [asked])[asked.id]]
    return AnswersWithAnswers(**found, answers=each)


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


def list_findings(session: Session, answers: Sequence[Summary]) -> dict[UUID, list[AnswerReply]]:
    """List what each document says to its questions, in their order; nothing before it is settled.

    An answer that cannot be decrypted has the error in its place.
    """
    found = _read_findings(session, answers)
    return {each: [_reply_or_error(*pair) for pair in pairs] for each, pairs in found.items()}


def _read_findings(
    session: Session, answers: Sequence[Summary]
) -> dict[UUID, list[tuple[str, DocumentFinding]]]:
    """Read the questions of each of these answers, with what was found; a question may be an `Unreadable`."""
    by_id = {each.id: each for each in answers}
    query = select(DocumentFinding).where(DocumentFinding.summary_id.in_(by_id))
    found: dict[UUID, list[tuple[str, DocumentFinding]]] = {each: [] for each in by_id}
    for each in session.scalars(query.order_by(DocumentFinding.summary_id, DocumentFinding.place)):
        questions: Any = by_id[each.summary_id].questions
        question: Any = questions if isinstance(questions, Unreadable) else questions[each.place]
        found[each.summary_id].append((question, each))
    return found


def _reply_or_error(question: str, found: DocumentFinding) -> AnswerReply:
    try:
        return answer_reply(question, found)
    except ContentUnreadableError as error:
        return unreadable_reply(question, error)
