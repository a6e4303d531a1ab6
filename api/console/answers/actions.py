"""What is done with the answers of one document: download them, cancel them, delete them."""

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.answers import verbs
from api.console.answers.listing import LIST
from api.console.answers.table import FileForm, FileRows, file_response
from api.console.error_pages import page_router
from api.console.forms import ChangeDep
from api.console.page import redirect, render
from api.console.reading import owner_of, read_for
from api.console.session import ViewerDep
from api.http.dependencies import ServicesDep
from api.http.identifiers import AnswersIdDep
from jobs import ids, questions
from jobs.errors import JobNotFinishedError
from jobs.models import Summary
from jobs.states.summary import TERMINAL

router = page_router()


@router.get("/answers/{answers_id}/result")
async def download_answers(
    answers_id: AnswersIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    form: Annotated[FileForm, Query(alias="format")] = "csv",
) -> Response:
    """Send the answers of a document that have ended as a file."""

    def find(session: Session) -> FileRows:
        owner = owner_of(session, viewer, answers_id, of=(Summary.id, Summary.tenant_id))
        if questions.get(session, answers_id, tenant_id=owner).state not in TERMINAL:
            raise JobNotFinishedError("The answers have not ended yet.")
        return FileRows([answers_id], owner)

    rows = await read_for(viewer, services, find)
    return file_response(services, viewer, rows, form, name=ids.answers_id(answers_id))


@router.post("/answers/{answers_id}/cancel")
async def cancel_answers(
    answers_id: AnswersIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Cancel the answers and their jobs; running ones stop within a second."""
    await verbs.cancel(services, answers_id, tenant_id=viewer.caller.tenant_id)
    return redirect(_address(answers_id), done="The answers are being cancelled.")


@router.get("/answers/{answers_id}/delete")
async def confirm_delete(
    request: Request, answers_id: AnswersIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Ask before the answers are deleted."""
    await services.transactions.run(
        partial(questions.get, answers_id=answers_id, tenant_id=viewer.caller.tenant_id)
    )
    return render(
        request,
        "confirm.html",
        title="Delete the answers",
        question="The answers of this document and their jobs are deleted. The document stays.",
        address=_address(answers_id),
        verb="delete",
    )


@router.post("/answers/{answers_id}/delete")
async def delete_answers(
    answers_id: AnswersIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Delete answers that have ended, with their jobs."""
    tenant_id = viewer.caller.tenant_id
    await services.transact(questions.remove, answers_id=answers_id, tenant_id=tenant_id)
    return redirect(LIST, done="The answers are deleted.")


def _address(answers_id: UUID) -> str:
    return f"{LIST}/{ids.answers_id(answers_id)}"
