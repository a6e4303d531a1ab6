"""Answers as tests of the console's pages make them."""

from sqlalchemy.orm import Session

from asking.answers import ask, look_up, run_jobs
from asking.cases import Cases
from jobs import ids
from jobs.models import Summary
from jobs.models.document import Document

LIST = "/console/answers"
QUESTIONS = ["What is the rent?", "What is the deposit?"]
SHORT = "The rent is 900 euros. It is due at once."


def _ask(
    session: Session, *documents: Document, questions: list[str] | None = None, **fields: object
) -> list[Summary]:
    return ask(session, *documents, questions_=questions or QUESTIONS, **fields)


_CASES = Cases(LIST, ids.ANSWERS, "contract-{number}.txt", make=_ask, run=run_jobs, script=look_up)
waiting, running, completed, work = _CASES.waiting, _CASES.running, _CASES.completed, _CASES.work
address_of, listed, document_of = _CASES.address_of, _CASES.listed, _CASES.document_of
