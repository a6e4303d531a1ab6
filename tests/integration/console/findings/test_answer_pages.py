"""The pages of answers: the list, one, a question beside its parts, the table, downloads, verbs."""

import csv
import io
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import ask, look_up, reply, run_jobs, settle_all, spec_of
from asking.pages import (
    LIST,
    QUESTIONS,
    SHORT,
    address_of,
    completed,
    document_of,
    listed,
    running,
    waiting,
    work,
)
from console_pages.browser import PROBE, Browser, is_over, new_tenant, words
from console_pages.checks import HOSTILE, check_buttons, check_follows, check_reader, check_turning
from jobs import documents, ids, questions
from jobs.models import SummaryNode, WebhookEvent
from jobs.models.document import Document
from summary_support import SMALL, failed_document, plan_all, ready_document, text_of
from support import register_engine


def cells(browser: Browser, address: str) -> list[list[str]]:
    return [
        [words(each) for each in row.xpath("./td|./th")] for row in browser.page(address).xpath("//tbody/tr")
    ]


def test_the_list_pages_and_filters_by_its_address(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    (other,) = completed(sessions, SHORT, custom_id="mine")
    old = waiting(sessions, *(f"text {number}" for number in range(51)))
    first = visitor.page(f"{LIST}?state=preparing")
    (following,) = first.xpath("//a[@rel='next']/@href")
    assert "state=preparing" in following
    assert listed(visitor, "?state=preparing") == old[:0:-1]
    assert listed(visitor, following.removeprefix(LIST)) == [old[0]]
    assert listed(visitor, "?custom_id=mine") == [other]
    assert listed(visitor, f"?document={document_of(sessions, old[3])}") == [old[3]]
    assert "1 answered, 1 not in the document" in words(visitor.page(f"{LIST}?custom_id=mine"))
    assert visitor.page("/console/summaries").xpath("//tbody") == [], "answers are no summaries"
    for wrong in ("?state=x", "?document=x", "?after=x"):
        visitor.page(LIST + wrong, status=400)


def test_one_shows_each_answer_with_its_pages_and_whether_its_quote_is_in_the_text(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    def invent(text: str, question: str) -> str | None:
        return reply("a million", "a million it is") if "deposit" in question else look_up(text, question)

    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, f"Preamble. {SHORT}", pages=[0, 10])
        (asked,) = ask(session, document, questions_=[*QUESTIONS, "What is the sky?"])
        plan_all(session)
        run_jobs(session, invent)
        settle_all(session)
        address, name = address_of(ids.answers_id(asked.id)), ids.document_id(document.id)
    hidden = words(visitor.page(address))
    assert "2 answered, 1 not in the document" in hidden
    assert "900 euros" not in hidden
    assert QUESTIONS[0] not in hidden
    rent, deposit, sky = cells(visitor, f"{address}?show=answers")
    assert rent[:4] == [f"1 {QUESTIONS[0]}", "answered", "900 euros", "2"]
    assert rent[4] == "The rent is 900 euros. in the text read it there"
    assert deposit[2:5] == ["a million", "1\N{EN DASH}2", "a million it is not in the text"]
    assert sky[1:5] == ["not in the document", *["\N{EN DASH}"] * 3]
    links = visitor.page(f"{address}?show=answers").xpath("//tbody//a[contains(@href, 'show=text&')]/@href")
    assert f"/console/documents/{name}?show=text&start=10#text" in links
    for link in links:
        assert visitor.page(link).xpath("//div[@class='text']")


def test_a_question_is_shown_with_its_quote_in_the_text_and_what_each_part_replied(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    text = f"{text_of(700)} The rent is 900 euros. {text_of(200, name='x')}"

    def fail_the_first(material: str, question: str) -> str | None:
        return None if "deposit" in question and "w10 w11 " in material else look_up(material, question)

    (name,) = completed(sessions, text, script=fail_the_first)
    address = f"{address_of(name)}/questions"
    assert "900 euros" not in words(visitor.page(f"{address}/1"))
    page = visitor.page(f"{address}/1?show=texts")
    (marked,) = page.xpath("//mark")
    assert marked.text == "The rent is 900 euros."
    assert words(marked.getparent()).count("The rent is 900 euros.") == 1
    rows = cells(visitor, f"{address}/1?show=texts")
    with sessions() as session:
        mine = SummaryNode.summary_id == ids.parse_answers_id(name)
        nodes = session.scalars(select(SummaryNode).where(mine, SummaryNode.question == 0)).all()
    assert len(rows) == len(nodes) > 3
    assert rows[-1][0] == "join"
    assert {row[2] for row in rows} == {"not in this part", "900 euros"}
    jobs = page.xpath("//tbody//a[contains(@href, '/jobs/')]/@href")
    assert len(jobs) == len(nodes)
    # From the page of a job back to what it is for.
    (back,) = visitor.page(jobs[0]).xpath("//a[contains(@href, '/questions/')]/@href")
    assert back == f"{address}/1"
    lost = visitor.page(f"{address}/2?show=texts")
    (gap,) = lost.xpath("//section[@aria-labelledby='gaps']//li")
    assert "characters 0" in words(gap)
    assert "invalid_output it broke" in words(gap)
    for wrong in ("3", "0", "x"):
        assert visitor.client.get(f"{address}/{wrong}").status_code in (404, 422, 400)


def test_the_table_has_a_row_for_each_document_that_was_asked_together(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    others = completed(sessions, "The rent is 1 euro.")
    made = completed(
        sessions, *(f"The rent is {number} euros." for number in range(27)), questions=QUESTIONS[:1]
    )
    address = f"{address_of(made[5])}/table"
    assert visitor.page(address_of(made[5])).xpath(f"//a[@href='{address}']")
    assert not visitor.page(address_of(others[0])).xpath("//a[contains(@href, '/table')]")
    first = visitor.page(f"{address}?show=answers")
    (following,) = first.xpath("//a[@rel='next']/@href")
    rows = cells(visitor, f"{address}?show=answers") + cells(visitor, following)
    assert [row[2] for row in rows] == [f"{number} euros" for number in range(27)]
    assert [row[0] for row in rows] == [f"contract-{number}.txt" for number in range(27)]
    assert "7 euros" not in words(visitor.page(address))
    written = visitor.client.get(f"{address}/result?format=csv")
    assert written.headers["content-type"].startswith("text/csv")
    lines = list(csv.reader(io.StringIO(written.text)))
    assert lines[0] == ["document", "question", "answer", "pages", "quote", "warnings"]
    assert [line[2] for line in lines[1:]] == [f"{number} euros" for number in range(27)]
    found = visitor.client.get(f"{address}/result?format=json").json()
    assert [each["id"] for each in found] == made
    assert found[3]["answers"][0]["answer"] == "3 euros"
    assert found[3]["filename"] == "contract-3.txt"


def test_documents_that_failed_say_why(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        torn, whole = failed_document(session), ready_document(session, SHORT)
        asked = ask(session, torn, whole, questions_=QUESTIONS)
        plan_all(session)
        run_jobs(session)
        settle_all(session)
        names = [ids.answers_id(each.id) for each in asked]
    failed, answered = cells(visitor, f"{address_of(names[0])}/table?show=answers")
    assert "document_corrupt" in failed[1]
    assert answered[2] == "900 euros"
    assert "document_corrupt" in words(visitor.page(address_of(names[0])))
    written = visitor.client.get(f"{address_of(names[0])}/result?format=csv").text
    assert written.count("[failed]") == len(QUESTIONS)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_answers_are_downloaded_once_they_have_ended(
    visitor: Browser, sessions: sessionmaker[Session], form: str
) -> None:
    (name,) = completed(sessions, SHORT)
    (link,) = visitor.page(address_of(name)).xpath(f"//a[contains(@href, 'format={form}')]/@href")
    answer = visitor.client.get(link)
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.{form}"'
    assert "900 euros" in answer.text
    (unfinished,) = waiting(sessions, "another")
    assert visitor.client.get(f"{address_of(unfinished)}/result?format={form}").status_code == 409


def test_what_strangers_write_stays_text(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, f"{PROBE} text", pages=[0])
        document.title = document.filename = HOSTILE
        texts = [f"{HOSTILE[:1990]}?", "=1+1?"]
        second = ready_document(session, "other")
        asked = ask(
            session, document, second, questions_=texts, custom_id=PROBE[:60], metadata={PROBE[:60]: PROBE}
        )
        name = ids.answers_id(asked[0].id)
        plan_all(session)
        run_jobs(session, lambda _, question: reply(f"\0=2 {HOSTILE}", PROBE if "=" in question else HOSTILE))
        settle_all(session)
    markup = "<script>alert(1)</script>"
    assert words(visitor.page(LIST)).count(markup) >= 3
    address = address_of(name)
    for place, least in (("", 2), ("?show=answers", 6), ("/questions/1?show=texts", 6), ("/table", 1)):
        page = visitor.page(address + place)
        assert words(page).count(markup) >= least
        check_turning(page)
    assert words(visitor.page(f"{address}/table?show=answers")).count(markup) >= 3
    written = visitor.client.get(f"{address}/table/result?format=csv").text
    assert not any(line[2].startswith("=") for line in csv.reader(io.StringIO(written)))
    assert "\0" not in written


def test_other_tenants_see_nothing_and_operators_all(
    visitor: Browser, stranger: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    mine = completed(sessions, SHORT, "The rent is 2 euros.")
    address = address_of(mine[0])
    for place in ("", "?show=answers", "/questions/1?show=texts", "/table", "/delete"):
        stranger.page(address + place, status=404)
    for place in ("/live", "/table/live", "/result?format=csv", "/table/result?format=csv"):
        assert stranger.client.get(address + place).status_code == 404
    for verb in ("cancel", "delete"):
        assert stranger.post(f"{address}/{verb}").status_code == 404
        assert operator.post(f"{address}/{verb}").status_code == 403
    assert listed(stranger) == []
    other = new_tenant(sessions)
    with sessions.begin() as session:
        document = ready_document(session, "theirs", tenant_id=other)
        (made,) = questions.create(
            session, spec_of(document, length=256), questions=QUESTIONS, tenant_id=other
        )
        theirs = ids.answers_id(made.id)
    assert listed(visitor) == mine[::-1]
    assert listed(operator) == [theirs, *mine[::-1]]
    assert listed(operator, "?tenant=default") == mine[::-1]
    assert "of default" in words(operator.page(address))
    assert "900 euros" in words(operator.page(f"{address}/questions/1?show=texts"))
    assert "900 euros" in words(operator.page(f"{address}/table?show=answers"))
    assert "900 euros" in operator.client.get(f"{address}/table/result?format=csv").text
    for page in (address, f"{address}/table"):
        assert not operator.page(page).xpath("//form[contains(@action, 'cancel')]")


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(
    reader: Browser, sessions: sessionmaker[Session]
) -> None:
    (open_one,), (ended,) = running(sessions, "a"), completed(sessions, "b")
    check_reader(reader, address_of(open_one), address_of(ended))


def test_answers_are_cancelled_then_deleted_by_their_buttons(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (name,) = running(sessions, SHORT)
    address = address_of(name)
    check_buttons(visitor, address, "answers")


def test_answers_stay_readable_when_their_document_is_deleted(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (name,) = completed(sessions, SHORT)
    of = document_of(sessions, name)
    with sessions.begin() as session:
        document = session.get_one(Document, ids.parse_document_id(of))
        documents.remove(session, document.id, tenant_id=document.tenant_id, guards=[])
    page = visitor.page(f"{address_of(name)}?show=answers")
    assert f"{of}, which is deleted" in words(page)
    assert not page.xpath("//a[contains(@href, '/documents/')]")
    (quote,) = [row[4] for row in cells(visitor, f"{address_of(name)}?show=answers") if "900" in row[2]]
    assert quote == "The rent is 900 euros. in the text"
    assert "900 euros" in words(visitor.page(f"{address_of(name)}/questions/1?show=texts"))
    assert of in visitor.client.get(f"{address_of(name)}/result?format=csv").text


def test_an_event_and_the_overview_lead_to_answers(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    (name,) = running(sessions, SHORT, webhook_url="https://example.com/hook", webhook_secret=b"sealed")
    figures = visitor.page("/console/").xpath("//dl[@class='figures']/div")
    assert ("open answers", "1") in [(words(each[0]), words(each[1])) for each in figures]
    work(sessions)
    assert "open answers" not in words(visitor.page("/console/"))
    with sessions() as session:
        ended = select(WebhookEvent.id).where(WebhookEvent.summary_id.is_not(None))
        event = ids.event_id(session.scalars(ended).one())
    links = visitor.page(f"/console/webhooks/events/{event}").xpath("//main//a/@href")
    assert address_of(name) in links
    assert not [each for each in links if "summaries" in each]


@pytest.mark.parametrize("place", ["live", "{}/live", "{}/table/live"])
def test_pages_grow_with_the_answers(
    visitor: Browser,
    sessions: sessionmaker[Session],
    background: Callable[..., Future[object]],
    place: str,
) -> None:
    (name,) = running(sessions, SHORT)
    address = f"{LIST}/{place.format(name)}"
    page = visitor.page(address.removesuffix("/live"))
    assert page.xpath("//@*[name()='hx-sse:connect']") == [address]

    follow = partial(check_follows, background, visitor, address)

    def answer_one() -> None:
        with sessions.begin() as session, pytest.raises(AssertionError, match="does not end"):
            run_jobs(session, max_steps=1)

    follow("1 of 2 jobs", answer_one)
    part = {"live": None, "{}/live": "#answers", "{}/table/live": "#table"}[place]
    follow("completed" if part is None else f'hx-select="{part}"', lambda: work(sessions))
    assert is_over(visitor, address, part)
