"""A new summary without script: files are uploaded, the estimate comes first, then it starts, once."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event

import httpx2
import pytest
from lxml.html import HtmlElement
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from console_pages.browser import PROBE, SAME_ORIGIN, Browser, checked, events, words
from document_support import Extractor
from jobs import ids
from jobs.models import Summary, SummaryDocument
from jobs.models.document import Document
from jobs.prompts.tokenizer import Tokenizer
from summary_support import create, failed_document, ready_document
from support import PATIENCE

NEW = "/console/summaries/new"
TEXTS = {"a.txt": b"The sea is calm.", "b.md": b"# Waves\n\nThey are high.", "c.txt": b"It rains."}


def token_of(page: HtmlElement) -> str:
    (token,) = set(page.xpath("//input[@name='csrf']/@value"))
    return str(token)


def uploaded(browser: Browser, files: dict[str, bytes], *, token: str | None = None) -> httpx2.Response:
    """The answer to the form with these files, and with a field of which nothing was chosen."""
    csrf = token_of(browser.page(NEW)) if token is None else token
    sent = [("files", (name, content)) for name, content in files.items()]
    return browser.client.post(
        NEW, data={"csrf": csrf}, files=[*sent, ("files", ("", b""))], headers=SAME_ORIGIN
    )


def fields_of(page: HtmlElement) -> dict[str, str]:
    """The form of the draft as a browser sends it."""
    (form,) = page.xpath("//form[@id='draft']")
    return dict(form.form_values())


def figures(page: HtmlElement) -> dict[str, str]:
    found = page.xpath("//section[@id='estimate']//dl[@class='figures']/div")
    return {words(each[0]): words(each[1]) for each in found}


def summaries_of(sessions: sessionmaker[Session]) -> list[Summary]:
    with sessions() as session:
        return list(session.scalars(select(Summary).order_by(Summary.id)))


def test_files_are_uploaded_estimated_and_started_once(
    visitor: Browser, sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    answer = uploaded(visitor, TEXTS)
    assert answer.status_code == 303
    draft = answer.headers["location"]
    page = visitor.page(draft)
    assert "3 of 3 left" in words(page)
    assert figures(page) == {}
    Extractor(sessions, tokenizer).run_once()
    page = visitor.page(draft)
    assert figures(page)["jobs"] == "3"
    assert figures(page)["done in about"] == "no engine runs"
    fields = fields_of(page) | {"combine": "true", "length": "200", "instructions": "mind\r\nthe tides"}
    combined = visitor.post(f"{NEW}/estimate", **fields)
    assert combined.status_code == 200
    again = fields_of(checked(combined))
    assert (again["length"], again["instructions"], again["combine"]) == ("200", "mind\nthe tides", "true")
    fields |= {"style": "bullets", "language": "de", "focus": "boats", "priority": "high", "combine": ""}
    for _ in range(2):
        started = visitor.post(f"{NEW}/start", **fields)
        assert (started.status_code, started.headers["location"]) == (303, "/console/summaries")
    made = summaries_of(sessions)
    assert len(made) == 3
    for each in made:
        assert (each.style, each.length, each.language, each.focus, each.rank) == (
            "bullets",
            200,
            "de",
            "boats",
            1,
        )
        assert each.instructions == "mind\nthe tides"


def test_one_summary_over_all_leads_to_its_page(
    visitor: Browser, sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    draft = uploaded(visitor, TEXTS).headers["location"]
    Extractor(sessions, tokenizer).run_once()
    started = visitor.post(f"{NEW}/start", **fields_of(visitor.page(draft)) | {"combine": "true"})
    (made,) = summaries_of(sessions)
    assert started.headers["location"] == f"/console/summaries/{ids.summary_id(made.id)}"
    with sessions() as session:
        query = select(Document.filename).join(SummaryDocument, SummaryDocument.document_id == Document.id)
        assert session.scalars(query.order_by(SummaryDocument.position)).all() == list(TEXTS)


def test_a_file_that_is_no_document_stops_no_others(
    visitor: Browser, sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    name = PROBE.replace('"', "")
    answer = uploaded(visitor, {"a.txt": TEXTS["a.txt"], f"{name}.exe": b"\0\1\2", "blank.txt": b" "})
    page = visitor.page(answer.headers["location"])
    assert "<b id=probe>" in words(page.xpath("//p[@role='status']")[0])
    Extractor(sessions, tokenizer).run_once()
    page = visitor.page(answer.headers["location"])
    assert "document_empty" in words(page)
    assert "1 of the documents have no text" in words(page)
    assert figures(page)["jobs"] == "1"
    assert visitor.post(f"{NEW}/start", **fields_of(page)).status_code == 303
    assert len(summaries_of(sessions)) == 1


@pytest.mark.parametrize("files", [{}, {"a.exe": b"\0\1"}, {"a.txt": b""}])
def test_without_a_document_there_is_no_draft(visitor: Browser, files: dict[str, bytes]) -> None:
    assert uploaded(visitor, files).status_code == 400


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"length": "9"}, "length: Input should be greater than or equal to 16"),
        ({"length": "many"}, "length: Must be a number."),
        ({"style": "sonnet"}, "style: "),
        ({"language": "x" * 65}, "language: "),
        ({"instructions": "x" * 4001}, "instructions: "),
    ],
)
def test_a_wrong_option_is_named_and_nothing_typed_is_lost(
    visitor: Browser, sessions: sessionmaker[Session], fields: dict[str, str], expected: str
) -> None:
    with sessions.begin() as session:
        name = ids.document_id(ready_document(session, "a text").id)
    given = fields_of(visitor.page(f"{NEW}?document={name}")) | {"focus": f"boats {PROBE}"} | fields
    for verb, status in (("estimate", 200), ("start", 400)):
        answer = visitor.post(f"{NEW}/{verb}", **given)
        assert answer.status_code == status
        page = checked(answer)
        assert expected in words(page.xpath("//*[@role='alert']")[0])
        assert fields_of(page)["focus"] == f"boats {PROBE}"
    assert summaries_of(sessions) == []


def test_an_earlier_summary_is_summarized_again_with_its_options(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        document = ready_document(session, "a text")
        (earlier,) = create(session, document, instructions=PROBE, length=77, custom_id="mine")
        name = ids.summary_id(earlier.id)
    fields = fields_of(visitor.page(f"{NEW}?like={name}"))
    assert (fields["instructions"], fields["length"], fields["custom_id"]) == (PROBE, "77", "mine")
    assert visitor.post(f"{NEW}/start", **fields).status_code == 303
    first, second = summaries_of(sessions)
    assert (first.instructions, first.length) == (second.instructions, second.length)


def test_others_and_readers_upload_and_start_nothing(
    visitor: Browser, reader: Browser, stranger: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        name = ids.document_id(ready_document(session, "a secret").id)
        failed = ids.document_id(failed_document(session).id)
        (summary,) = create(session, ready_document(session, "b"))
        summary_name = ids.summary_id(summary.id)
    reader.page(NEW, status=403)
    assert uploaded(reader, TEXTS, token="x").status_code == 403
    for verb in ("estimate", "start"):
        assert reader.post(f"{NEW}/{verb}").status_code == 403
    assert uploaded(visitor, TEXTS, token="forged").status_code == 403
    with sessions() as session:
        assert len(session.scalars(select(Document)).all()) == 3
    fields = fields_of(visitor.page(f"{NEW}?document={name}"))
    theirs = stranger.page(f"{NEW}?document={name}")
    assert "deleted" in words(theirs)
    assert stranger.post(f"{NEW}/start", **fields | {"csrf": token_of(theirs)}).status_code == 400
    stranger.page(f"{NEW}?like={summary_name}", status=404)
    assert (
        visitor.post(f"{NEW}/start", **fields_of(visitor.page(f"{NEW}?document={failed}"))).status_code == 400
    )
    assert len(summaries_of(sessions)) == 1
    for wrong in ("of=x", "of=%FF", "document=doc_x", "like=x"):
        visitor.page(f"{NEW}?{wrong}", status=400)


def test_a_form_of_another_site_stores_nothing(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    token = token_of(visitor.page(NEW))
    answer = visitor.client.post(
        NEW,
        data={"csrf": token},
        files=[("files", ("a.txt", b"a"))],
        headers={"Sec-Fetch-Site": "cross-site"},
    )
    assert answer.status_code == 403
    with sessions() as session:
        assert session.scalars(select(Document)).all() == []


def test_a_draft_follows_its_documents_and_then_asks_for_the_estimate(
    visitor: Browser,
    sessions: sessionmaker[Session],
    tokenizer: Tokenizer,
    background: Callable[..., Future[object]],
) -> None:
    page = visitor.page(uploaded(visitor, TEXTS).headers["location"])
    (address,) = page.xpath("//@*[name()='hx-sse:connect']")
    opened = Event()
    following = background(events, visitor, address, "new/estimate", opened)
    assert opened.wait(PATIENCE)
    Extractor(sessions, tokenizer).run_once()
    assert str(following.result(PATIENCE)).count('id="state-') >= 3
    assert visitor.client.get(address).status_code == 204
