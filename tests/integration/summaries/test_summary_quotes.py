"""What a summary quotes is looked up in its documents: over HTTP, in files, and beside it in the console."""

from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.summaries import quotes
from api_server import ApiProcess
from console_pages.browser import PROBE, Browser, browsing, new_key, words
from jobs import documents, ids
from jobs.models import DEFAULT_TENANT
from jobs.tenants.keys import Scope
from summary_support import (
    SMALL,
    claim_next,
    complete,
    create,
    failed_document,
    plan_all,
    prepare_all,
    ready_document,
)
from support import register_engine

TIDES = "The tide rises twice a day. It is highest at new moon."
LEASE = f"The rent is 900 {PROBE} euros. It is due at once."
SAID = (
    'The almanac says that "it is highest at new moon," the lease that \u201cthe rent was 900\u201d '
    f'and \u201cThe rent is 900 {PROBE} euros\u201d, and a "ship of the line" is in none.'
)


@pytest.fixture
def browser(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    with browsing(server, new_key(sessions, Scope.READ).secret) as signed_in:
        yield signed_in


def summarized(sessions: sessionmaker[Session], said: str, *texts: str) -> tuple[str, list[str]]:
    """A summary of documents with these texts and of one without, and the ids of those with a text."""
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        made = [ready_document(session, each, pages=[0, 28]) for each in texts]
        made[-1].title = PROBE
        (summary,) = create(session, *made, failed_document(session), combine=True)
        plan_all(session)
        prepare_all(session)
        while (claimed := claim_next(session)) is not None:
            complete(session, claimed, said)
            prepare_all(session)
        return ids.summary_id(summary.id), [ids.document_id(each.id) for each in made]


def test_each_quote_has_its_page_or_says_that_it_is_in_no_text(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    name, (tides, lease) = summarized(sessions, SAID, TIDES, LEASE)
    path = f"/v1/summaries/{name}"
    result = http.get(f"{path}/result").json()
    found = [(each["quote_in_text"], each["document_id"], each["pages"]) for each in result["quotes"]]
    assert found == [
        (True, tides, [2, 2]),
        (False, None, None),
        (True, lease, [1, 2]),
        (False, None, None),
    ], "a sentence's first letter may be another"
    for each in result["quotes"]:
        assert result["summary"][each["at"] :].startswith(each["quote"])
    third = result["quotes"][2]
    place = {"start": third["start"], "end": third["end"]}
    assert http.get(f"/v1/documents/{lease}/text", params=place).text == third["quote"]
    assert "quotes" not in http.get(path).json(), "nobody who polls has texts read"
    assert http.get(path, params={"quotes": True}).json()["quotes"] == result["quotes"]
    markdown = http.get(f"{path}/result", params={"format": "md"}).text
    _, _, listed = markdown.partition("## Quoted\n\n")
    first, second = listed.splitlines()[:2]
    assert f"](/v1/documents/{tides}/text?start=" in first
    assert second.endswith("not in the text")
    assert "<script" not in listed.replace("\\<", ""), "a title's markup is escaped"


def test_what_could_not_be_looked_up_is_left_open(
    http: httpx2.Client, sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, (tides, lease) = summarized(sessions, SAID, TIDES, LEASE)
    with sessions.begin() as session:
        documents.remove(session, ids.parse_document_id(lease), tenant_id=DEFAULT_TENANT, guards=[])
    found = http.get(f"/v1/summaries/{name}/result").json()["quotes"]
    assert [each["quote_in_text"] for each in found] == [True, None, None, None]
    # More text than may be read for one request.
    monkeypatch.setattr(quotes, "MAX_CHARS", len(TIDES) - 1)
    with sessions() as session:
        sources = quotes._read_sources(session, summary_id=ids.parse_summary_id(name))
    assert (sources.documents, sources.num_chars, sources.is_complete) == ([], 0, False)
    monkeypatch.setattr(quotes, "MAX_CHARS", len(TIDES))
    with sessions() as session:
        assert quotes._read_sources(session, summary_id=ids.parse_summary_id(name)).documents == [tides]


def test_a_summary_that_quotes_nothing_has_no_text_read(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    name, _ = summarized(sessions, 'It says nothing in "marks", it\'s plain.', TIDES)
    assert http.get(f"/v1/summaries/{name}/result").json()["quotes"] == []
    assert "## Quoted" not in http.get(f"/v1/summaries/{name}/result", params={"format": "md"}).text


def test_the_console_links_quotes_to_their_place_in_the_text(
    browser: Browser, sessions: sessionmaker[Session]
) -> None:
    name, (tides, lease) = summarized(sessions, SAID, TIDES, LEASE)
    page = browser.page(f"/console/summaries/{name}?show=summary")
    (shown,) = page.xpath("//section[@aria-labelledby='text']/div[@class='text']")
    assert shown.text_content() == SAID
    links = shown.xpath("./a/@href")
    assert [each.partition("?")[0] for each in links] == [
        f"/console/documents/{each}" for each in (tides, lease)
    ]
    for link, expected in zip(links, ("It is highest", "The rent is"), strict=True):
        text = browser.page(link).xpath("//div[@class='source']//div[@class='text']")[0].text
        assert text.startswith(expected)
    listed = [words(each) for each in page.xpath("//section[@aria-labelledby='text']//li")]
    assert [("not in the text" in each, "page" in each) for each in listed] == [
        (False, True),
        (True, False),
        (False, True),
        (True, False),
    ]
    assert not browser.page(f"/console/summaries/{name}").xpath("//section[@aria-labelledby='text']//li")
    downloaded = browser.client.get(f"/console/summaries/{name}/result?format=md").text
    assert f"/console/documents/{tides}?show=text&start=" in downloaded.partition("## Quoted")[2]
