"""One question to a document: its answer, where its quote is, and what each part of the document replied."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import Path, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.answers.listing import PAGES
from api.console.error_pages import page_router
from api.console.page import render
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects.documents import find_document, name_of
from api.http.dependencies import ServicesDep
from api.http.identifiers import AnswersIdDep
from jobs import documents, ids, questions
from jobs.errors import NotFoundError
from jobs.models import Summary
from jobs.models.document import Document
from jobs.questions import queries, trees
from jobs.questions.trees import RepliedPart
from jobs.questions.views import AnswerReply
from jobs.states.document import DocumentState

router = page_router()

MAX_PARTS: Final = 150
_MAX_QUESTIONS: Final = 1000
# Characters before a quote and after it, and of a long one: a paragraph each.
_AROUND: Final = 600
_MAX_QUOTED: Final = 5000


@dataclass(frozen=True, slots=True)
class QuotedText:
    """The place of a quote in the document's text."""

    before: str
    quote: str
    after: str


@dataclass(frozen=True, slots=True)
class QuestionPage:
    """A question with what the page shows of it.

    Attributes:
        tenant: its owner's name, for operators.
        document: None: it is deleted.
        question: None: not asked for.
        answer: None: it is not settled.
        parts: that were asked, and the joins after them.
        body: the document's stored text, if a quote is in it and it was asked for.
    """

    asked: Summary
    tenant: str | None
    document: Document | None
    question: str
    answer: AnswerReply | None
    parts: Sequence[RepliedPart]
    body: bytes | None


@router.get("/answers/{answers_id}/questions/{number}")
async def show_question(
    request: Request,
    answers_id: AnswersIdDep,
    number: Annotated[int, Path(ge=1, le=_MAX_QUESTIONS)],
    services: ServicesDep,
    viewer: ViewerDep,
    show: str = "",
) -> Response:
    """Show the states of the question's jobs; with `show=texts` the question, its answer and all replies."""
    with_texts = show == "texts"
    read = partial(
        read_question, answers_id=answers_id, place=number - 1, viewer=viewer, with_texts=with_texts
    )
    found = await read_for(viewer, services, read)
    quoted = None
    if found.body is not None and found.answer is not None:
        quoted = await services.compute(len(found.body), _cut, found.body, found.answer)
    address = PAGES.address_of(answers_id)
    return render(
        request,
        "answers/question.html",
        title=f"Question {number}",
        number=number,
        num_questions=len(found.asked.questions or ()),
        found=found,
        name=name_of(found.document, "a deleted document"),
        document=None if found.document is None else ids.document_id(found.document.id),
        answer=found.answer,
        quoted=quoted,
        with_texts=with_texts,
        max_parts=MAX_PARTS,
        answers_address=address,
        address=f"{address}/questions/{number}",
    )


def read_question(
    session: Session, *, answers_id: UUID, place: int, viewer: Viewer, with_texts: bool
) -> QuestionPage:
    """Read the question, its answer and its parts.

    Raises:
        NotFoundError: the viewer sees no such answers, or they have no such question.
    """
    owner = owner_of(session, viewer, answers_id, of=(Summary.id, Summary.tenant_id))
    asked = questions.get(session, answers_id, tenant_id=owner)
    if place >= len(asked.questions or ()):
        raise NotFoundError("There is no such question.")
    document = find_document(session, asked)
    settled = queries.list_findings(session, [asked])[answers_id]
    answer = settled[place] if settled else None
    body = None
    if with_texts and answer is not None and answer["start"] is not None and document is not None:
        body = documents.load_body(session, document.id) if document.state == DocumentState.READY else None
    return QuestionPage(
        asked=asked,
        tenant=tenant_names(session, viewer, [owner]).get(owner),
        document=document,
        question=(asked.questions or [])[place],
        answer=answer,
        parts=trees.read_parts(session, answers_id, place, limit=MAX_PARTS + 1, with_replies=with_texts),
        body=body,
    )


def _cut(body: bytes, answer: AnswerReply) -> QuotedText | None:
    """Cut the quote out of the text, with what is around it."""
    start, end = answer["start"], answer["end"]
    if start is None or end is None:
        return None
    begin, end = max(0, start - _AROUND), min(end, start + _MAX_QUOTED)
    text = "".join(documents.iterate_text(body, start=begin, end=end + _AROUND))
    return QuotedText(text[: start - begin], text[start - begin : end - begin], text[end - begin :])
