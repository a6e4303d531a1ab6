"""Answers as tests of the console's pages make them: asked of documents, planned, brought to their end."""

from sqlalchemy.orm import Session, sessionmaker

from asking.answers import Script, ask, look_up, run_jobs, settle_all
from console_pages.browser import Browser
from jobs import ids
from summary_support import SMALL, plan_all, ready_document
from support import register_engine

LIST = "/console/answers"
QUESTIONS = ["What is the rent?", "What is the deposit?"]
SHORT = "The rent is 900 euros. It is due at once."


def waiting(
    sessions: sessionmaker[Session], *texts: str, questions: list[str] | None = None, **fields: object
) -> list[str]:
    """Answers of these documents, asked together, that wait for their plan."""
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        documents = [ready_document(session, each) for each in texts]
        for number, document in enumerate(documents):
            document.filename = f"contract-{number}.txt"
        asked = ask(session, *documents, questions_=questions or QUESTIONS, **fields)
        return [ids.answers_id(each.id) for each in asked]


def running(sessions: sessionmaker[Session], *texts: str, **fields: object) -> list[str]:
    """Such answers whose jobs wait."""
    made = waiting(sessions, *texts, **fields)  # type: ignore[arg-type]  # named by the caller
    with sessions.begin() as session:
        plan_all(session)
    return made


def completed(
    sessions: sessionmaker[Session], *texts: str, script: Script = look_up, **fields: object
) -> list[str]:
    """Such answers that have ended as the script says."""
    made = running(sessions, *texts, **fields)
    work(sessions, script)
    return made


def work(sessions: sessionmaker[Session], script: Script = look_up) -> None:
    """All that is planned has ended, and is settled."""
    with sessions.begin() as session:
        run_jobs(session, script)
    with sessions.begin() as session:
        settle_all(session)


def address_of(answers_id: str) -> str:
    return f"{LIST}/{answers_id}"


def listed(browser: Browser, query: str = "") -> list[str]:
    links = browser.page(LIST + query).xpath("//tbody//td[1]/a/@href")
    return [each.removeprefix(f"{LIST}/") for each in links]
