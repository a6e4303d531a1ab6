"""The prompts of a tree's jobs, written at preparation from documents and the children's outputs."""

from collections.abc import Mapping
from typing import Final, Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from jobs import documents
from jobs.errors import LongbatchError, NotFoundError
from jobs.models import Job, Result, Summary, SummaryDocument, SummaryNode
from jobs.prompts.counter import count_short
from jobs.prompts.delimiters import Delimiters, delimiters
from jobs.prompts.messages import Message, canonical
from jobs.prompts.store import Counter
from jobs.states import JobState
from jobs.states.summary import NodeKind, Style
from jobs.summaries import stored_templates, templates
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.stored_templates import variables_of
from jobs.summaries.templates import PromptOptions


class TextCounter(Counter, Protocol):
    """A counter of prompts and of bare texts."""

    def count_text(self, text: str) -> int:
        """Count the tokens of the text alone."""

    def token_starts(self, text: str) -> npt.NDArray[np.int32]:
        """Return the index of each token's first character, approximately."""


class AllPartsFailedError(LongbatchError):
    """None of the parts to be joined could be summarized."""

    code = "all_parts_failed"


class DocumentGoneError(LongbatchError):
    """The document's text no longer exists."""

    code = "document_gone"


def prompt_options(summary: Summary, own: OwnTemplate | None) -> PromptOptions:
    """Return the caller's options, and own template, as the templates take them."""
    return PromptOptions(
        style=Style(summary.style),
        length=summary.length,
        language=summary.language,
        focus=summary.focus,
        instructions=summary.instructions,
        variables=variables_of(summary),
        own=own,
    )


def check_variables(options: PromptOptions, counter: Counter) -> None:
    """Try the caller's `chat_template_kwargs` on the model's chat template.

    Raises:
        InvalidRequestError: the template fails with them.
    """
    prompt = canonical(templates.whole("", options, Delimiters()), variables=options.variables)
    count_short(prompt, counter, max_chars=0)


def overheads(options: PromptOptions, counter: Counter) -> Mapping[NodeKind, int]:
    """Count the tokens of a prompt of each kind, without the texts in it.

    Raises:
        ChatTemplateError: the model's template refuses these prompts.
    """
    marks = Delimiters()
    empty: dict[NodeKind, list[Message]] = {
        NodeKind.WHOLE: templates.whole("", options, marks),
        NodeKind.CHUNK: templates.chunk(
            "", options, marks, number=_MANY, num_chunks=_MANY, length=options.length
        ),
        NodeKind.JOIN: templates.join([], options, marks, length=None, num_documents=_MANY),
    }
    return {
        kind: counter.count_prompt(canonical(messages, variables=options.variables)).num_tokens
        for kind, messages in empty.items()
    }


_MANY: Final = 9999  # as wide as these numbers become in a prompt


def compose(session: Session, job: Job) -> str:
    """Compose the prompt of a job of a tree, as canonical JSON.

    Raises:
        AllPartsFailedError: none of its children has an output to join.
        DocumentGoneError: the document to read no longer exists.
        NoResultFound: the tree itself no longer exists.
    """
    if job.summary_id is None:
        raise NoResultFound
    summary = session.get_one(Summary, job.summary_id)
    node = session.scalars(select(SummaryNode).where(SummaryNode.job_id == job.id)).one()
    options = prompt_options(summary, stored_templates.load(session, summary))
    if node.document_id is None:
        messages = _join_messages(session, summary, node, options)
    else:
        messages = _chunk_messages(session, summary, node, node.document_id, options)
    return canonical(messages, variables=options.variables)


def _chunk_messages(
    session: Session, summary: Summary, node: SummaryNode, document_id: UUID, options: PromptOptions
) -> list[Message]:
    """Build the messages that ask for the summary of a leaf."""
    try:
        text = documents.load_text(session, document_id)
    except NotFoundError:
        raise DocumentGoneError from None
    marks = delimiters([text])
    piece = text[node.context_char or 0 : node.end_char]
    if node.kind == NodeKind.WHOLE:
        return templates.whole(piece, options, marks)
    of_document = (SummaryNode.summary_id == summary.id, SummaryNode.document_id == document_id)
    num_chunks = session.scalar(select(func.count()).select_from(SummaryNode).where(*of_document))
    return templates.chunk(
        piece,
        options,
        marks,
        number=(node.chunk or 0) + 1,
        num_chunks=num_chunks or 1,
        length=_chunk_summary_tokens(summary),
    )


def _join_messages(
    session: Session, summary: Summary, node: SummaryNode, options: PromptOptions
) -> list[Message]:
    """Build the messages that ask to join the outputs of this node's children."""
    outputs = session.scalars(
        select(Result.output)
        .join(Job, Job.id == Result.job_id)
        .join(SummaryNode, SummaryNode.job_id == Job.id)
        .where(
            SummaryNode.summary_id == summary.id,
            SummaryNode.parent == node.number,
            Job.state == JobState.COMPLETED.value,
        )
        .order_by(SummaryNode.number)
    ).all()
    texts = [output.strip() for output in outputs if output.strip()]
    if not texts:
        raise AllPartsFailedError
    of_summary = SummaryDocument.summary_id == summary.id
    num_documents = session.scalar(select(func.count()).select_from(SummaryDocument).where(of_summary))
    return templates.join(
        texts,
        options,
        delimiters(texts),
        length=None if node.parent is None else _chunk_summary_tokens(summary),
        num_documents=num_documents or 1,
    )


def _chunk_summary_tokens(summary: Summary) -> int:
    found = (summary.plan or {}).get("part_tokens")
    return found if isinstance(found, int) else summary.length
