"""The answers of one document: how far they are; their texts when asked for; live until they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.answers.listing import PAGES
from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects.documents import find_document, name_of
from api.console.subjects.live import follow_one
from api.http.dependencies import ServicesDep
from api.http.identifiers import AnswersIdDep
from jobs import ids, questions
from jobs.models import Summary
from jobs.models.document import Document
from jobs.questions import queries, trees
from jobs.questions.queries import QuestionOutcomes
from jobs.questions.trees import QuestionTree
from jobs.questions.views import AnswersWithAnswers
from jobs.states import TERMINAL as ENDED_JOB
from jobs.states.summary import TERMINAL

router = page_router()

SHOW_ANSWERS: Final = "answers"


@dataclass(frozen=True, slots=True)
class AnswersPage:
    """Answers with what the page shows of them.

    Attributes:
        tenant: their owner's name, for operators.
        document: None: it is deleted.
        shown: as callers of the API see them.
        outcomes: None: nothing is settled.
        trees: of the questions, in order; none until planned.
        num_together: answers that the same request made, these included.
    """

    asked: Summary
    tenant: str | None
    document: Document | None
    shown: AnswersWithAnswers
    outcomes: QuestionOutcomes | None
    trees: Sequence[QuestionTree]
    num_together: int

    @property
    def name(self) -> str:
        """What the page calls the document."""
        return name_of(self.document, self.shown["document"])


@router.get("/answers/{answers_id}")
async def show_answers(
    request: Request, answers_id: AnswersIdDep, services: ServicesDep, viewer: ViewerDep, show: str = ""
) -> Response:
    """Show how far the answers are; with `show=answers` the questions and answers too."""
    found = await read_for(viewer, services, partial(read_answers, answers_id=answers_id, viewer=viewer))
    is_open = found.asked.state not in TERMINAL
    with_texts = show == SHOW_ANSWERS
    shown = f"?show={SHOW_ANSWERS}" if with_texts else ""
    name, address = ids.answers_id(answers_id), PAGES.address_of(answers_id)
    return render(
        request,
        "answers/one.html",
        title=f"Answers {name[:16]}…",
        id=name,
        found=found,
        asked=found.asked,
        shown=found.shown,
        trees={each.place: each for each in found.trees},
        with_texts=with_texts,
        address=address,
        is_own=found.asked.tenant_id == viewer.caller.tenant_id,
        live_address=f"{address}/live{shown}" if is_open else None,
    )


@router.get("/answers/{answers_id}/live")
async def follow_answers(
    request: Request,
    answers_id: AnswersIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    show: str = "",
) -> Response:
    """Stream the counts of the answers and the states of questions; reload the page at each state."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        found = await read_for(viewer, services, partial(read_answers, answers_id=answers_id, viewer=viewer))
        places = {each.last_job_id: each.place for each in found.trees if each.state not in ENDED_JOB}
        shown = f"?show={SHOW_ANSWERS}" if show == SHOW_ANSWERS else ""
        address = f"{PAGES.address_of(answers_id)}{shown}"
        return follow_one(request, stream, watched, found.asked, places, address=address, element="#answers")


def read_answers(session: Session, *, answers_id: UUID, viewer: Viewer) -> AnswersPage:
    """Read the answers, the trees of their questions, and their document.

    Raises:
        NotFoundError: the viewer sees no such answers.
    """
    owner = owner_of(session, viewer, answers_id, of=(Summary.id, Summary.tenant_id))
    asked = questions.get(session, answers_id, tenant_id=owner)
    return AnswersPage(
        asked=asked,
        tenant=tenant_names(session, viewer, [owner]).get(owner),
        document=find_document(session, asked),
        shown=queries.describe_whole(session, asked),
        outcomes=queries.count_outcomes(session, [answers_id]).get(answers_id),
        trees=trees.read_trees(session, answers_id),
        num_together=len(trees.asked_together(session, asked)),
    )
