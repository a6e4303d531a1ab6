"""Answers and extractions as tests of their pages make them: of documents, planned, brought to their end."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import Script, settle_all
from console_pages.browser import Browser
from jobs import ids
from jobs.ids import IdKind
from jobs.models import Summary, SummaryDocument
from summary_support import SMALL, plan_all, ready_document
from support import register_engine


@dataclass(frozen=True)
class Cases:
    """How those of one kind are made.

    Attributes:
        address: of the list.
        kind: of their ids.
        filename: of their documents, by `{number}` from 0.
        make: of documents, with the fields of a request.
        run: their jobs have ended as the script says.
        script: the usual one.
    """

    address: str
    kind: IdKind
    filename: str
    make: Callable[..., list[Summary]]
    run: Callable[[Session, Script], object]
    script: Script

    def waiting(self, sessions: sessionmaker[Session], *texts: str, **fields: object) -> list[str]:
        """Those of these documents, made together, that wait for their plan."""
        with sessions.begin() as session:
            register_engine(session, capacity=SMALL)
            documents = [ready_document(session, each) for each in texts]
            for number, document in enumerate(documents):
                document.filename = self.filename.format(number=number)
            return [self.kind.format(each.id) for each in self.make(session, *documents, **fields)]

    def running(self, sessions: sessionmaker[Session], *texts: str, **fields: object) -> list[str]:
        """Such whose jobs wait."""
        made = self.waiting(sessions, *texts, **fields)
        with sessions.begin() as session:
            plan_all(session)
        return made

    def completed(
        self, sessions: sessionmaker[Session], *texts: str, script: Script | None = None, **fields: object
    ) -> list[str]:
        """Such that have ended as the script says."""
        made = self.running(sessions, *texts, **fields)
        self.work(sessions, script)
        return made

    def work(self, sessions: sessionmaker[Session], script: Script | None = None) -> None:
        """All that is planned has ended, and is settled."""
        with sessions.begin() as session:
            self.run(session, script or self.script)
        with sessions.begin() as session:
            settle_all(session)

    def address_of(self, name: str) -> str:
        return f"{self.address}/{name}"

    def listed(self, browser: Browser, query: str = "") -> list[str]:
        links = browser.page(self.address + query).xpath("//tbody//td[1]/a/@href")
        return [each.removeprefix(f"{self.address}/") for each in links]

    def document_of(self, sessions: sessionmaker[Session], name: str) -> str:
        with sessions() as session:
            of = SummaryDocument.summary_id == self.kind.parse(name)
            return ids.document_id(session.scalars(select(SummaryDocument.document_id).where(of)).one())
