"""The pages of extractions: the list, one with its fields, what leads there, and how they grow."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import settle_all, spec_of
from asking.field_pages import (
    LIST,
    SHORT,
    address_of,
    completed,
    document_of,
    listed,
    running,
    waiting,
    work,
)
from asking.fields import SCHEMA, extract, look_up, reply, run
from console_pages.browser import PROBE, Browser, is_over, new_tenant, words
from console_pages.checks import HOSTILE, check_follows, check_turning
from jobs import documents, extractions, ids
from jobs.extractions.fields import read_fields
from jobs.models import SummaryNode, WebhookEvent
from jobs.models.document import Document
from summary_support import SMALL, failed_document, plan_all, ready_document, text_of
from support import register_engine

NOTHING = "\N{EN DASH}"


def fields_of(browser: Browser, address: str) -> dict[str, list[str]]:
    """The cells of each field's row after its name."""
    rows = browser.page(address).xpath("//table[contains(caption, 'order of the schema')]/tbody/tr")
    cells = [[words(each) for each in row.xpath("./td|./th")] for row in rows]
    return {row[0]: row[1:] for row in cells}


def test_the_list_pages_and_filters_by_its_address(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    (other,) = completed(sessions, SHORT, custom_id="mine")
    (invalid,) = completed(sessions, "The fee is 5.")
    old = waiting(sessions, *(f"text {number}" for number in range(51)))
    (following,) = visitor.page(f"{LIST}?state=preparing").xpath("//a[@rel='next']/@href")
    assert "state=preparing" in following
    assert listed(visitor, "?state=preparing") == old[:0:-1]
    assert listed(visitor, following.removeprefix(LIST)) == [old[0]]
    assert listed(visitor, "?custom_id=mine") == [other]
    assert listed(visitor, f"?document={document_of(sessions, old[3])}") == [old[3]]
    assert "2 of 4 found valid" in words(visitor.page(f"{LIST}?custom_id=mine"))
    of_it = f"?document={document_of(sessions, invalid)}"
    assert "1 of 4 found not valid" in words(visitor.page(LIST + of_it))
    for others in ("summaries", "answers"):
        assert visitor.page(f"/console/{others}").xpath("//tbody") == []
    for wrong in ("?state=x", "?document=x", "?after=x"):
        visitor.page(LIST + wrong, status=400)


def test_one_shows_each_value_with_its_pages_and_whether_its_quote_is_in_the_text(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    said = reply(
        rent=(900, "The rent is 900."), notice=("a year", "a year it is"), parties=(["Ada", "Bo"], "")
    )
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, f"Preamble. {SHORT}", pages=[0, 10])
        (made,) = extract(session, document, length=96)
        plan_all(session)
        run(session, lambda *_: said)
        settle_all(session)
        address, name = address_of(ids.extraction_id(made.id)), ids.document_id(document.id)
    hidden = fields_of(visitor, address)
    assert [*hidden] == [*SCHEMA["properties"]]
    assert hidden == {
        "rent": ["found", "2", "most_frequent"],
        "notice": ["found quote not in the text", "1\N{EN DASH}2", "most_frequent"],
        "parties": ["found", "1\N{EN DASH}2", "all"],
        "fee": ["not in the document", NOTHING, "sum"],
    }
    assert "3 of 4 found valid" in words(visitor.page(address))
    assert "900" not in words(visitor.page(address))
    shown = fields_of(visitor, f"{address}?show=values")
    assert shown["rent"][1:4] == ["900", "2", "The rent is 900. in the text read it there"]
    assert shown["notice"][0] == "found"
    assert shown["notice"][1:4] == ["a year", "1\N{EN DASH}2", "a year it is not in the text"]
    assert shown["parties"][1:4] == ['["Ada", "Bo"]', "1\N{EN DASH}2", NOTHING]
    assert shown["fee"][1:4] == [NOTHING] * 3
    links = visitor.page(f"{address}?show=values").xpath("//tbody//a[contains(@href, '/documents/')]/@href")
    assert f"/console/documents/{name}?show=text&start=10#text" in links
    assert f"/console/documents/{name}?show=text&page=2#text" in links
    for link in links:
        assert visitor.page(link).xpath("//div[@class='text']")
    assert '"minimum": 1' not in words(visitor.page(address))
    assert '"minimum": 1' in words(visitor.page(f"{address}?show=schema"))


def test_a_row_that_is_not_valid_says_why_when_values_are_shown(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (name,) = completed(sessions, "The rent is 0.25.")
    assert "not valid" in words(visitor.page(address_of(name)))
    assert "0.25" not in words(visitor.page(address_of(name)))
    (why,) = visitor.page(f"{address_of(name)}?show=values").xpath("//p[contains(@class, 'bad')]")
    assert "at /rent" in words(why)


def test_parts_lead_to_their_jobs_and_these_back_and_gaps_are_named(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    body = f"{SHORT}\n\n{text_of(1200)}\n\nThe fee is 7."

    def fail_one(material: str, asked: str) -> str | None:
        return None if "w600 " in material else look_up(material, asked)

    (name,) = completed(sessions, body, script=fail_one)
    page = visitor.page(address_of(name))
    with sessions() as session:
        mine = SummaryNode.summary_id == ids.parse_extraction_id(name)
        nodes = session.scalars(select(SummaryNode).where(mine).order_by(SummaryNode.number)).all()
    jobs = page.xpath("//section[@aria-labelledby='parts']//a[contains(@href, '/jobs/')]/@href")
    assert jobs == [f"/console/jobs/{ids.job_id(each.job_id)}" for each in nodes]
    assert len(jobs) > 2
    back = visitor.page(jobs[1]).xpath("//main//a[contains(@href, '/extractions/')]/@href")
    assert back == [address_of(name), f"{address_of(name)}#part-1"]
    assert page.xpath("//*[@id='part-1']")
    (gap,) = page.xpath("//section[@aria-labelledby='gaps']//li")
    assert "characters" in words(gap)
    assert "invalid_output it broke" in words(gap)
    assert "1 part not read" in words(page)
    assert fields_of(visitor, f"{address_of(name)}?show=values")["fee"][1] == "7"


def test_an_extraction_that_failed_says_why(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        (made,) = extract(session, failed_document(session), length=96)
        plan_all(session)
        name = ids.extraction_id(made.id)
    page = visitor.page(f"{address_of(name)}?show=values")
    assert "document_corrupt" in words(page)
    assert {row[0] for row in fields_of(visitor, address_of(name)).values()} == {NOTHING}
    assert "document_corrupt" in words(visitor.page(LIST))


def test_what_strangers_write_stays_text(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    field = PROBE[:64]
    schema = {
        "type": "object",
        "properties": {field: {"type": "string", "description": HOSTILE, "maxLength": 9}, "b": {}},
    }
    said = {field: {"quote": HOSTILE, "value": HOSTILE}, "b": {"quote": PROBE, "value": {PROBE: HOSTILE}}}
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, f"{PROBE} text", pages=[0])
        document.title = document.filename = HOSTILE
        (made,) = extract(
            session, document, schema=schema, length=96, custom_id=PROBE[:60], metadata={PROBE[:60]: PROBE}
        )
        plan_all(session)
        run(session, lambda *_: json.dumps(said))
        settle_all(session)
        address = address_of(ids.extraction_id(made.id))
    markup = "<script>alert(1)</script>"
    assert words(visitor.page(LIST)).count(markup) >= 2
    for place, least in (("", 4), ("?show=values", 9), ("?show=schema", 6)):
        page = visitor.page(address + place)
        assert words(page).count(markup) >= least
        check_turning(page)


def test_other_tenants_see_nothing_and_operators_all(
    visitor: Browser, stranger: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    mine = completed(sessions, SHORT, "The rent is 2.")
    address = address_of(mine[0])
    for place in ("", "?show=values", "?show=schema"):
        stranger.page(address + place, status=404)
    assert stranger.client.get(f"{address}/live").status_code == 404
    assert listed(stranger) == []
    other = new_tenant(sessions)
    with sessions.begin() as session:
        spec = spec_of(ready_document(session, "theirs", tenant_id=other), length=256)
        fields = read_fields(SCHEMA, {})
        (made,) = extractions.create(session, spec, schema=SCHEMA, fields=fields, tenant_id=other)
        theirs = ids.extraction_id(made.id)
    assert listed(visitor) == mine[::-1]
    assert listed(operator) == [theirs, *mine[::-1]]
    assert listed(operator, "?tenant=default") == mine[::-1]
    assert "of default" in words(operator.page(address))
    assert "900" in words(operator.page(f"{address}?show=values"))


def test_an_extraction_stays_readable_when_its_document_is_deleted(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (name,) = completed(sessions, SHORT)
    of = document_of(sessions, name)
    assert visitor.page(f"/console/documents/{of}").xpath(f"//a[@href='{LIST}?document={of}']")
    with sessions.begin() as session:
        document = session.get_one(Document, ids.parse_document_id(of))
        documents.remove(session, document.id, tenant_id=document.tenant_id, guards=[])
    page = visitor.page(f"{address_of(name)}?show=values")
    assert f"{of}, which is deleted" in words(page)
    assert not page.xpath("//a[contains(@href, '/documents/')]")
    assert fields_of(visitor, f"{address_of(name)}?show=values")["rent"][3] == "The rent is 900. in the text"


def test_an_event_and_the_overview_lead_to_extractions(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (name,) = running(sessions, SHORT, webhook_url="https://example.com/hook", webhook_secret=b"sealed")
    figures = visitor.page("/console/").xpath("//dl[@class='figures']/div")
    assert ("open extractions", "1") in [(words(each[0]), words(each[1])) for each in figures]
    assert visitor.page("/console/").xpath(f"//nav//a[@href='{LIST}']")
    work(sessions)
    assert "open extractions" not in words(visitor.page("/console/"))
    with sessions() as session:
        ended = select(WebhookEvent.id).where(WebhookEvent.summary_id.is_not(None))
        event = ids.event_id(session.scalars(ended).one())
    links = visitor.page(f"/console/webhooks/events/{event}").xpath("//main//a/@href")
    assert address_of(name) in links


@pytest.mark.parametrize("place", ["live", "{}/live"])
def test_pages_grow_with_the_extraction(
    visitor: Browser,
    sessions: sessionmaker[Session],
    background: Callable[..., Future[object]],
    place: str,
) -> None:
    (name,) = running(sessions, f"{SHORT}\n\n{text_of(1200)}")
    address = f"{LIST}/{place.format(name)}"
    page = visitor.page(address.removesuffix("/live"))
    assert page.xpath("//@*[name()='hx-sse:connect']") == [address]

    follow = partial(check_follows, background, visitor, address)

    def read_one() -> None:
        with sessions.begin() as session, pytest.raises(AssertionError, match="does not end"):
            run(session, max_steps=1)

    follow("1 of ", read_one)
    part = {"live": None, "{}/live": "#extraction"}[place]
    follow("completed" if part is None else f'hx-select="{part}"', lambda: work(sessions))
    assert is_over(visitor, address, part)
