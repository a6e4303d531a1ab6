"""The pages of documents: what they show of whose documents, what they hide, how they page and follow."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event

import pytest
from sqlalchemy.orm import Session, sessionmaker

from console_pages.browser import PROBE, Browser, events, is_over, new_tenant, words
from document_support import Extractor, upload
from jobs import ids
from jobs.database.paging import SearchRange
from jobs.documents.queries import DocumentFilter, search_documents
from jobs.models import DEFAULT_TENANT
from jobs.prompts.tokenizer import Tokenizer
from summary_support import create, failed_document, ready_document, text_of
from support import PATIENCE

LIST = "/console/documents"


def stored(sessions: sessionmaker[Session], text: str = "Some text.", **fields: object) -> str:
    """A ready document with these fields."""
    with sessions.begin() as session:
        document = ready_document(session, text)
        for name, value in fields.items():
            setattr(document, name, value)
        return ids.document_id(document.id)


def address_of(document_id: str) -> str:
    return f"{LIST}/{document_id}"


def listed(browser: Browser, query: str = "") -> list[str]:
    links = browser.page(LIST + query).xpath("//tbody//td[1]/a/@href")
    return [each.removeprefix(f"{LIST}/") for each in links]


def test_the_list_pages_without_gaps(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    old = [stored(sessions, f"text {number}") for number in range(70)]
    seen, following = [], [LIST]
    while following:
        page = visitor.page(following[0])
        seen += [each.removeprefix(f"{LIST}/") for each in page.xpath("//tbody//td[1]/a/@href")]
        following = page.xpath("//a[@rel='next']/@href")
        stored(sessions, f"added after {len(seen)}")
    assert seen == old[::-1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?state=ready", ["named", "plain"]),
        ("?state=failed", ["failed"]),
        ("?state=extracting", []),
        ("?name=100%25+Of", ["named"]),
        ("?name=%25", ["named"]),
        ("?name=_", []),
        ("?name=of&state=failed", []),
    ],
)
def test_filters_are_in_the_address(
    visitor: Browser, sessions: sessionmaker[Session], query: str, expected: list[str]
) -> None:
    known = {"plain": stored(sessions, "a"), "named": stored(sessions, "b", title="100% of it")}
    with sessions.begin() as session:
        known["failed"] = ids.document_id(failed_document(session).id)
    assert listed(visitor, query) == [known[each] for each in expected]


@pytest.mark.parametrize("query", ["?state=deleted", "?after=doc_x", "?state=x"])
def test_a_filter_of_no_known_value_is_refused(visitor: Browser, query: str) -> None:
    visitor.page(LIST + query, status=400)


def test_a_search_goes_on_where_its_window_ended(sessions: sessionmaker[Session]) -> None:
    wanted = stored(sessions, "wanted", title="wanted")
    for number in range(4):
        stored(sessions, f"other {number}")
    seen, after = [], None
    with sessions.begin() as session:
        for _ in range(9):
            wanted_part = SearchRange(DEFAULT_TENANT, after, limit=5, window=2)
            found = search_documents(session, DocumentFilter(name="WANTED"), wanted_part)
            seen += [ids.document_id(each.id) for each in found.items]
            after = found.next
            if after is None:
                break
    assert (seen, after) == ([wanted], None)


def test_one_shows_facts_failures_and_warnings(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    warning = {"code": "pages_without_text", "message": "1 pages have no text.", "pages": [2]}
    ready = stored(sessions, "x" * 30, num_pages=3, warnings=[warning], language="en")
    page = words(visitor.page(address_of(ready)))
    for expected in ("30 characters", "pages_without_text", "Pages 2.", "test.txt", "txt, 30 B"):
        assert expected in page
    with sessions.begin() as session:
        failed = ids.document_id(failed_document(session).id)
    page = visitor.page(address_of(failed))
    assert "document_corrupt it is broken" in words(page)
    assert not page.xpath("//a[contains(@href, 'show=text')]")
    assert not page.xpath("//a[contains(@href, 'summaries/new')]")


def test_the_text_is_shown_when_asked_for_with_its_pages(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    document = stored(sessions, "first words second words", pages=[0, 12, 12], num_pages=3)
    address = address_of(document)
    assert "words" not in words(visitor.page(address))
    page = visitor.page(f"{address}?show=text")
    marks = [words(each) for each in page.xpath("//*[@class='page-mark']")]
    assert marks == ["page 1", "page 2: no text", "page 3"]
    assert [each.text for each in page.xpath("//div[@class='text']")] == ["first words ", "second words"]
    page = visitor.page(f"{address}?show=text&page=3")
    assert [each.text for each in page.xpath("//div[@class='text']")] == ["second words"]
    for wrong in ("0", "4", "x", "-1"):
        visitor.page(f"{address}?show=text&page={wrong}", status=400)


def test_a_long_text_is_read_stretch_by_stretch(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    text = text_of(20_000)
    following, read = [f"{address_of(stored(sessions, text))}?show=text"], ""
    while following:
        page = visitor.page(following[0])
        read += "".join(each.text for each in page.xpath("//div[@class='text']"))
        following = page.xpath("//a[@rel='next']/@href")
    assert read == text


def test_markup_in_names_texts_and_errors_stays_text(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        failed = failed_document(session)
        failed.error = {"code": PROBE, "message": PROBE}
        failed.filename = PROBE
        failed_id = ids.document_id(failed.id)
    warnings = [{"code": PROBE, "message": PROBE}]
    ready = stored(sessions, f"text {PROBE}", filename=PROBE, title=PROBE, warnings=warnings, language=PROBE)
    assert words(visitor.page(LIST)).count("<b id=probe>") >= 4
    assert "<b id=probe>" in words(visitor.page(address_of(failed_id)))
    assert f"text {PROBE}" in [
        each.text for each in visitor.page(f"{address_of(ready)}?show=text").xpath("//div[@class='text']")
    ]
    page = visitor.page(f"{LIST}?name=%3Cb+id%3Dprobe%3E")
    assert page.xpath("//input[@id='name']/@value") == ["<b id=probe>"]


def test_other_tenants_see_nothing_and_operators_all(
    visitor: Browser, stranger: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    mine = stored(sessions)
    assert listed(visitor) == [mine]
    assert listed(stranger) == []
    stranger.page(address_of(mine), status=404)
    stranger.page(f"{address_of(mine)}?show=text", status=404)
    stranger.page(f"{address_of(mine)}/delete", status=404)
    assert stranger.client.get(f"{address_of(mine)}/live").status_code == 404
    assert stranger.post(f"{address_of(mine)}/delete").status_code == 404
    stranger.page(f"{LIST}?tenant=default", status=404)
    other = new_tenant(sessions)
    with sessions.begin() as session:
        theirs = ids.document_id(ready_document(session, "theirs", tenant_id=other).id)
    assert listed(operator) == [theirs, mine]
    assert listed(operator, "?tenant=default") == [mine]
    assert listed(operator, "?state=ready&name=test") == [theirs, mine]
    assert "of default" in words(operator.page(address_of(mine)))
    assert "theirs" in words(operator.page(f"{address_of(theirs)}?show=text"))


def test_a_reader_has_no_buttons_and_deletes_nothing(
    reader: Browser, visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    document = stored(sessions)
    page = reader.page(address_of(document))
    assert not page.xpath("//a[contains(@href, 'delete') or contains(@href, 'new')]")
    assert not reader.page(LIST).xpath("//a[contains(@href, 'new')]")
    assert reader.post(f"{address_of(document)}/delete").status_code == 403
    page = visitor.page(f"{address_of(document)}/delete")
    (action,) = page.xpath("//form[contains(@action, 'delete')]/@action")
    assert visitor.post(action).headers["location"] == LIST
    assert listed(visitor) == []


def test_a_document_that_a_summary_needs_is_not_deleted(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        document = ready_document(session, "needed")
        create(session, document)
        address = address_of(ids.document_id(document.id))
    answer = visitor.post(f"{address}/delete")
    assert answer.status_code == 409
    assert "cancel it first" in answer.text


@pytest.mark.parametrize("place", ["live", "{}/live"])
def test_pages_follow_an_extraction_to_its_end(
    visitor: Browser,
    sessions: sessionmaker[Session],
    tokenizer: Tokenizer,
    background: Callable[..., Future[object]],
    place: str,
) -> None:
    with sessions.begin() as session:
        document, _ = upload(session, b" ")
        name = ids.document_id(document.id)
    address = f"{LIST}/{place.format(name)}"
    page = visitor.page(LIST if place == "live" else address_of(name))
    assert page.xpath("//@*[name()='hx-sse:connect']") == [address]
    opened = Event()
    wanted = "document_empty" if place == "live" else 'hx-select="#document"'
    following = background(events, visitor, address, wanted, opened)
    assert opened.wait(PATIENCE)
    Extractor(sessions, tokenizer).run_once()
    following.result(PATIENCE)
    assert is_over(visitor, address, None if place == "live" else "#document")
