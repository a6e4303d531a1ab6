"""Files attached to documents, as the client reads them: results of their own, after their document's."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from api_server import ApiProcess
from document_support import Extractor, mail_with, make_pdf, pdf_with
from jobs.prompts.tokenizer import Tokenizer
from longbatch import Client
from longbatch.cli.main import application
from longbatch.documents.run import names_apart
from summary_support import SMALL, plan_all, run_to_end
from support import API_KEY, register_engine

PDF, OTHER = make_pdf(["The invoice is over 4,200 euros."]), make_pdf(["Another invoice."])
BACKGROUND = Callable[[Callable[[], None]], Future[None]]


@pytest.fixture
def served(
    server: ApiProcess, sessions: sessionmaker[Session], tokenizer: Tokenizer, background: BACKGROUND
) -> Iterator[ApiProcess]:
    """The API, with a worker that extracts, plans and answers."""
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model="llama-3.1-8b-instruct")
    extractor, stop = Extractor(sessions, tokenizer), Event()

    def work() -> None:
        while not stop.wait(0.05):
            extractor.run_once()
            with sessions.begin() as session:
                plan_all(session)
                run_to_end(session)

    working = background(work)
    yield server
    stop.set()
    working.result()


@pytest.fixture
def mailbox(tmp_path: Path) -> Path:
    """A folder with a mail that has two files of one name attached, one of them with a file of its own."""
    outer = mail_with("Outer", ("../a.pdf", PDF), ("../a.pdf", pdf_with("invoice.pdf", OTHER)))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "outer.eml").write_bytes(outer)
    return folder


def test_attached_files_have_results_after_their_document_s(served: ApiProcess, mailbox: Path) -> None:
    with Client(served.url, API_KEY) as client:
        found = list(client.summarize(mailbox))
        named = list(client.summarize(mailbox, attachments="name"))
    at = f"{mailbox}/outer.eml"
    paths = [at, f"{at}/a.pdf", f"{at}/a (2).pdf", f"{at}/a (2).pdf/invoice.pdf"]
    assert [each.path for each in found] == paths
    assert {each.summary for each in found} == {"a summary"}
    assert [each.warnings for each in found] == [()] * 4
    (mail,) = named
    (warning,) = mail.warnings
    assert "a.pdf" in warning
    assert mail.id == found[0].id, "the same summary"


def test_a_command_writes_attached_results_into_a_folder_of_their_document(
    served: ApiProcess, mailbox: Path, tmp_path: Path
) -> None:
    environment = {"LONGBATCH_API_URL": served.url, "LONGBATCH_API_KEY": API_KEY}
    out = tmp_path / "out"
    arguments = ["summarize", str(mailbox), "--output", str(out)]
    done = CliRunner().invoke(application(), arguments, env=environment)
    assert done.exit_code == 0, done.stderr
    written = {str(each.relative_to(out)) for each in out.rglob("*.md")}
    assert written == {
        "outer.eml.md",
        "outer.eml/a.pdf.md",
        "outer.eml/a (2).pdf.md",
        "outer.eml/a (2).pdf/invoice.pdf.md",
    }
    assert "[4/4]" in done.stderr
    assert "with warnings" not in done.stderr


def test_no_name_of_an_attached_file_leads_elsewhere() -> None:
    assert names_apart(["../../a", "/etc/passwd", "..", "", "C:\\x", "a\0b"]) == [
        ".._.._a",
        "_etc_passwd",
        "unnamed",
        "unnamed (2)",
        "C:_x",
        "a_b",
    ]
    assert names_apart(["a.txt", "A.txt", "a (2).txt"]) == ["a.txt", "A (2).txt", "a (2) (2).txt"]
