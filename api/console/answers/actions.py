"""What is done with the answers of one document: download them, cancel them, delete them."""

from typing import Annotated

from fastapi import Query
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.answers import verbs
from api.console.answers.table import FileForm, FileRows, file_response
from api.console.reading import owner_of, read_for
from api.console.session import ViewerDep
from api.console.subjects.actions import SubjectActions, action_routes
from api.console.subjects.kinds import SUBJECTS
from api.http.dependencies import ServicesDep
from api.http.identifiers import AnswersIdDep
from jobs import ids, questions
from jobs.errors import JobNotFinishedError
from jobs.models import Summary
from jobs.states.summary import TERMINAL, Purpose

router = action_routes(
    SubjectActions(
        SUBJECTS[Purpose.ANSWERS],
        verbs.cancel,
        name="the answers",
        cancelled="The answers are being cancelled.",
        deletion="The answers of this document and their jobs are deleted. The document stays.",
        deleted="The answers are deleted.",
    )
)


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
