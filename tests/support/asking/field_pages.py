"""Extractions as tests of the console's pages make them: of documents, planned, brought to their end."""

from sqlalchemy.orm import Session, sessionmaker

from asking.answers import Script, settle_all
from asking.fields import extract, look_up, run
from console_pages.browser import Browser
from jobs import ids
from summary_support import SMALL, plan_all, ready_document
from support import register_engine

LIST = "/console/extractions"
SHORT = "The rent is 900. The parties are Ada and Bo."


def waiting(sessions: sessionmaker[Session], *texts: str, **fields: object) -> list[str]:
    """Extractions from these documents, made together, that wait for their plan."""
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        documents = [ready_document(session, each) for each in texts]
        for number, document in enumerate(documents):
            document.filename = f"lease-{number}.txt"
        made = extract(session, *documents, **{"length": 96, **fields})  # type: ignore[arg-type]  # named by the caller
        return [ids.extraction_id(each.id) for each in made]


def running(sessions: sessionmaker[Session], *texts: str, **fields: object) -> list[str]:
    """Such extractions whose jobs wait."""
    made = waiting(sessions, *texts, **fields)
    with sessions.begin() as session:
        plan_all(session)
    return made


def completed(
    sessions: sessionmaker[Session], *texts: str, script: Script = look_up, **fields: object
) -> list[str]:
    """Such extractions that have ended as the script says."""
    made = running(sessions, *texts, **fields)
    work(sessions, script)
    return made


def work(sessions: sessionmaker[Session], script: Script = look_up) -> None:
    """All that is planned has ended, and is settled."""
    with sessions.begin() as session:
        run(session, script)
    with sessions.begin() as session:
        settle_all(session)


def address_of(extraction_id: str) -> str:
    return f"{LIST}/{extraction_id}"


def listed(browser: Browser, query: str = "") -> list[str]:
    links = browser.page(LIST + query).xpath("//tbody//td[1]/a/@href")
    return [each.removeprefix(f"{LIST}/") for each in links]
