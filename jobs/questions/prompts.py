"""The prompts of jobs that answer questions, written at preparation from document and question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from jobs import documents
from jobs.errors import NotFoundError
from jobs.models import Job, Result, Summary, SummaryNode
from jobs.prompts.counter import count_short
from jobs.prompts.delimiters import Delimiters, delimiters
from jobs.prompts.messages import Message, canonical
from jobs.prompts.store import Counter
from jobs.questions import templates
from jobs.questions.joining import JobEnd, reply_of
from jobs.questions.replies import Reply
from jobs.questions.templates import AnswerWording, PartAnswer
from jobs.states import JobState
from jobs.states.summary import NodeKind
from jobs.summaries import stored_templates
from jobs.summaries.prompts import DocumentGoneError, TextCounter
from jobs.summaries.stored_templates import variables_of

_MANY: Final = 9999  # as wide as these numbers become in a prompt


def answer_overheads(
    questions: Sequence[str], counter: TextCounter, options: AnswerWording, *, variables: Mapping[str, object]
) -> Mapping[NodeKind, int]:
    """Count the tokens of a prompt of each kind, without texts in it, for the longest question.

    Raises:
        ChatTemplateError: the model's template refuses these prompts.
    """
    longest = max(questions, key=counter.count_text)
    return {
        kind: counter.count_prompt(canonical(messages, variables=variables)).num_tokens
        for kind, messages in _empty_prompts(longest, options).items()
    }


def check_answer_variables(variables: Mapping[str, object], counter: Counter) -> None:
    """Try the caller's `chat_template_kwargs` on the model's chat template.

    Raises:
        InvalidRequestError: the template fails with them.
    """
    messages = _empty_prompts("", AnswerWording(_MANY))[NodeKind.WHOLE]
    count_short(canonical(messages, variables=variables), counter, max_chars=0)


def _empty_prompts(question: str, options: AnswerWording) -> dict[NodeKind, list[Message]]:
    marks = Delimiters()
    chunk = templates.ask_chunk("", question, marks, options, number=_MANY, num_chunks=_MANY)
    return {
        NodeKind.WHOLE: templates.ask_whole("", question, marks, options),
        NodeKind.CHUNK: chunk,
        NodeKind.JOIN: templates.join_answers([], question, marks, options),
    }


def compose_question(session: Session, job: Job) -> str:
    """Compose the prompt of a job that answers a question, as canonical JSON.

    Raises:
        DocumentGoneError: the document to read no longer exists.
        NoResultFound: the row that asks no longer exists.
    """
    if job.summary_id is None:
        raise NoResultFound
    asked = session.get_one(Summary, job.summary_id)
    node = _node_of(session, job.id)
    questions = asked.questions or []
    if node.question is None or node.question >= len(questions):
        raise NoResultFound
    question = questions[node.question]
    options = AnswerWording(asked.length, stored_templates.load(session, asked))
    if node.document_id is None:
        messages = _join_messages(session, asked, node, question, options)
    else:
        messages = _leaf_messages(read_leaf(session, asked, job.id), question, options)
    return canonical(messages, variables=variables_of(asked))


@dataclass(frozen=True, slots=True)
class LeafText:
    """What a job reads of a document.

    Attributes:
        kind: the whole document, or a chunk of it.
        marks: lines that the whole document does not contain.
        number: of the chunk, from 1.
        num_chunks: of the document.
    """

    text: str
    kind: NodeKind
    marks: Delimiters
    number: int
    num_chunks: int


def read_leaf(session: Session, asked: Summary, job_id: UUID) -> LeafText:
    """Read the text of a leaf's job.

    Raises:
        DocumentGoneError: the document to read no longer exists.
        NoResultFound: the job is no leaf's.
    """
    node = _node_of(session, job_id)
    if node.document_id is None:
        raise NoResultFound
    try:
        text = documents.load_text(session, node.document_id)
    except NotFoundError:
        raise DocumentGoneError from None
    chunks = (asked.plan or {}).get("chunks")
    return LeafText(
        text[node.context_char or 0 : node.end_char],
        NodeKind(node.kind),
        delimiters([text]),
        number=(node.chunk or 0) + 1,
        num_chunks=chunks if isinstance(chunks, int) else 1,
    )


def _node_of(session: Session, job_id: UUID) -> SummaryNode:
    return session.scalars(select(SummaryNode).where(SummaryNode.job_id == job_id)).one()


def _leaf_messages(leaf: LeafText, question: str, options: AnswerWording) -> list[Message]:
    """Build the messages that ask a question of a document or of one of its chunks."""
    if leaf.kind is NodeKind.WHOLE:
        return templates.ask_whole(leaf.text, question, leaf.marks, options)
    return templates.ask_chunk(
        leaf.text, question, leaf.marks, options, number=leaf.number, num_chunks=leaf.num_chunks
    )


def _join_messages(
    session: Session, asked: Summary, node: SummaryNode, question: str, options: AnswerWording
) -> list[Message]:
    """Build the messages that ask to join the answers of this node's children."""
    rows = session.execute(
        select(SummaryNode, Result.output)
        .join(Job, Job.id == SummaryNode.job_id)
        .join(Result, Result.job_id == Job.id)
        .where(
            SummaryNode.summary_id == asked.id,
            SummaryNode.parent == node.number,
            Job.state == JobState.COMPLETED.value,
        )
        .order_by(SummaryNode.number)
    )
    parts: list[PartAnswer] = []
    for child, output in rows:
        reply = reply_of(JobEnd(output))
        if isinstance(reply, Reply) and reply.answer:
            parts.append(PartAnswer(reply.answer, reply.quote, _where(child)))
    marks = delimiters(text for each in parts for text in (each.answer, each.quote or ""))
    return templates.join_answers(parts, question, marks, options)


def _where(node: SummaryNode) -> str | None:
    """Name the part of the document that a leaf read; joins read several."""
    if node.chunk is None:
        return None
    if node.first_page is None:
        return f"Part {node.chunk + 1}"
    is_one = node.first_page == node.last_page
    return f"Page {node.first_page}" if is_one else f"Pages {node.first_page} to {node.last_page}"
