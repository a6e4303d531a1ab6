"""The pages of summaries: the list, one with its tree, parts beside their sources, downloads, verbs."""

import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Event

import pytest
from sqlalchemy.orm import Session, sessionmaker

from console_pages.browser import PROBE, Browser, events, is_over, new_tenant, words
from console_pages.checks import check_buttons, check_follows, check_reader
from jobs import ids, summaries
from jobs.models import Summary, SummaryNode
from jobs.summaries import SummarySpec
from summary_support import (
    SMALL,
    claim_next,
    complete,
    create,
    fail,
    plan_all,
    planned,
    prepare_all,
    ready_document,
    run_to_end,
    text_of,
)
from support import MODEL, register_engine

LIST = "/console/summaries"


def waiting(sessions: sessionmaker[Session], **fields: object) -> str:
    """A summary that waits for its plan."""
    with sessions.begin() as session:
        (summary,) = create(session, ready_document(session, text_of(5, name=f"{fields}")), **fields)
        return ids.summary_id(summary.id)


def running(sessions: sessionmaker[Session], num_words: int = 2000, **fields: object) -> str:
    """A summary of seven parts, in three joins and a root, whose jobs wait."""
    with sessions.begin() as session:
        return ids.summary_id(planned(session, num_words, **fields).id)


def completed(sessions: sessionmaker[Session], num_words: int = 2000, **fields: object) -> str:
    with sessions.begin() as session:
        summary = planned(session, num_words, **fields)
        run_to_end(session)
        return ids.summary_id(summary.id)


def address_of(summary_id: str) -> str:
    return f"{LIST}/{summary_id}"


def listed(browser: Browser, query: str = "") -> list[str]:
    links = browser.page(LIST + query).xpath("//tbody//td[1]/a/@href")
    return [each.removeprefix(f"{LIST}/") for each in links]


def test_the_list_pages_and_filters_by_its_address(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    old = [waiting(sessions, custom_id=f"number {number}") for number in range(52)]
    first = visitor.page(f"{LIST}?state=preparing")
    (following,) = first.xpath("//a[@rel='next']/@href")
    assert "state=preparing" in following
    assert listed(visitor, "?state=preparing") == old[:1:-1]
    assert listed(visitor, following.removeprefix(LIST)) == old[1::-1]
    assert listed(visitor, "?state=failed") == []
    assert listed(visitor, "?custom_id=number+7") == [old[7]]
    (document,) = visitor.page(address_of(old[3])).xpath("//a[contains(@href, '/documents/')]/@href")
    assert listed(visitor, f"?document={document.rpartition('/')[2]}") == [old[3]]
    for wrong in ("?state=x", "?document=x", "?after=x"):
        visitor.page(LIST + wrong, status=400)


def test_one_shows_its_tree_and_what_it_cost(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    name = completed(sessions)
    page = visitor.page(address_of(name))
    parts = page.xpath("//ul[@class='tree']//li")
    with sessions() as session:
        summary = session.get_one(Summary, ids.parse_summary_id(name))
        plan = summary.plan or {}
    assert len(parts) == plan["jobs"]
    assert len(page.xpath("//ul[@class='tree']/li/a[contains(text(), 'Characters')]")) == plan["chunks"]
    figures = {words(each[0]): words(each[1]) for each in page.xpath("//dl[@class='figures']/div")}
    assert figures["jobs"] == str(plan["jobs"])
    assert int(figures["prompt tokens"].replace(",", "")) > 2000
    assert figures["of these cached"] == str(plan["jobs"])
    assert not page.xpath("//@*[name()='hx-sse:connect']")


def test_texts_are_shown_when_asked_for(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    name = completed(sessions, instructions="mind the tides", focus="boats")
    page = words(visitor.page(address_of(name)))
    assert "a summary" not in page
    assert "mind the tides" not in page
    shown = visitor.page(f"{address_of(name)}?show=summary")
    assert [each.text for each in shown.xpath("//div[@class='text']")] == ["a summary"]
    assert "mind the tides Focus: boats" in words(visitor.page(f"{address_of(name)}?show=instructions"))
    part = f"{address_of(name)}/parts/0"
    hidden = words(visitor.page(part))
    assert "a summary" not in hidden
    assert "w2000x1 " not in hidden


def test_a_part_is_shown_beside_its_source_with_pages(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    text = text_of(700)
    half = len(text) // 2
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        (summary,) = create(session, ready_document(session, text, pages=[0, 100, half]))
        plan_all(session)
        run_to_end(session)
        address = address_of(ids.summary_id(summary.id))
        leaves = session.query(SummaryNode).filter_by(summary_id=summary.id, level=0)
        ranges = {each.number: (each.start_char or 0, each.end_char or 0) for each in leaves}
    links = visitor.page(address).xpath("//ul[@class='tree']//a/@href")
    covered = ""
    for number, (start, end) in sorted(ranges.items()):
        (link,) = [each for each in links if each.endswith(f"/parts/{number}?show=texts")]
        page = visitor.page(link)
        (says,) = page.xpath("//section[@aria-labelledby='says']//div[@class='text']")
        assert says.text == "a summary"
        source = "".join(
            each.text for each in page.xpath("//section[@aria-labelledby='source']//div[@class='text']")
        )
        assert source == text[start:end]
        assert page.xpath("//*[@class='page-mark']")
        covered += source
    assert covered == text


def test_a_join_is_shown_beside_the_parts_that_it_joins(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    name = completed(sessions)
    with sessions() as session:
        nodes = session.query(SummaryNode).filter_by(summary_id=ids.parse_summary_id(name)).all()
    root = next(each for each in nodes if each.parent is None)
    below = [each.number for each in nodes if each.parent == root.number]
    page = visitor.page(f"{address_of(name)}/parts/{root.number}?show=texts")
    links = page.xpath("//section[@aria-labelledby='source']//h3//a/@href")
    assert links == [f"{address_of(name)}/parts/{each}?show=texts" for each in below]
    visitor.page(f"{address_of(name)}/parts/{len(nodes)}", status=404)


def test_gaps_say_what_is_missing_and_why(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        summary = planned(session)
        for _ in range(2):
            prepare_all(session)
            for claimed in iter(lambda: claim_next(session), None):
                text_starts = claimed.job.id == min(
                    each.job_id
                    for each in session.query(SummaryNode).filter_by(summary_id=summary.id, number=0)
                )
                (fail if text_starts else complete)(session, claimed)
        run_to_end(session)
        address = address_of(ids.summary_id(summary.id))
    page = visitor.page(address)
    (gap,) = page.xpath("//section[@aria-labelledby='gaps']//li")
    assert "characters 0" in words(gap)
    assert "engine_error it broke" in words(gap)


@pytest.mark.parametrize("form", ["md", "json", "csv"])
def test_results_are_downloaded_as_the_api_gives_them(
    visitor: Browser, sessions: sessionmaker[Session], form: str
) -> None:
    name = completed(sessions)
    (link,) = visitor.page(address_of(name)).xpath(f"//a[contains(@href, 'format={form}')]/@href")
    answer = visitor.client.get(link)
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.{form}"'
    assert "a summary" in answer.text
    unfinished = waiting(sessions)
    assert visitor.client.get(f"{address_of(unfinished)}/result?format={form}").status_code == 409


def test_a_downloaded_markdown_leads_back_to_the_texts_by_the_session_alone(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    answer = visitor.client.get(f"{address_of(completed(sessions))}/result?format=md")
    links = re.findall(r"\]\((http[^)]*)\)", answer.text)
    assert links
    for link in links:
        assert link.startswith(f"{str(visitor.client.base_url).rstrip('/')}/console/documents/doc_")
        page = visitor.page(link)
        assert page.xpath("//div[@class='text']")
    assert "/v1/" not in answer.text


def test_markup_in_everything_a_caller_or_a_model_writes_stays_text(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, f"{PROBE} text")
        document.title = document.filename = PROBE
        (summary,) = create(
            session,
            document,
            instructions=PROBE,
            focus=PROBE,
            language=PROBE[:60],
            custom_id=PROBE[:60],
            metadata={PROBE[:60]: PROBE},
        )
        plan_all(session)
        prepare_all(session)
        claimed = claim_next(session)
        assert claimed is not None
        complete(session, claimed, f"an answer {PROBE}")
        address = address_of(ids.summary_id(summary.id))
    assert words(visitor.page(LIST)).count("<script>alert(1)</script>") >= 3
    for show in ("summary", "instructions"):
        assert words(visitor.page(f"{address}?show={show}")).count("<script>alert(1)</script>") >= 6
    part = visitor.page(f"{address}/parts/0?show=texts")
    assert [each.text for each in part.xpath("//div[@class='text']")] == [
        f"an answer {PROBE}",
        f"{PROBE} text",
    ]


def test_other_tenants_see_nothing_and_operators_all(
    visitor: Browser, stranger: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    mine = completed(sessions)
    address = address_of(mine)
    for place in ("", "?show=summary", "/parts/0?show=texts", "/delete"):
        stranger.page(address + place, status=404)
    for place in ("/live", "/result?format=md"):
        assert stranger.client.get(address + place).status_code == 404
    for verb in ("cancel", "delete"):
        assert stranger.post(f"{address}/{verb}").status_code == 404
        assert operator.post(f"{address}/{verb}").status_code == 403
    assert listed(stranger) == []
    other = new_tenant(sessions)
    with sessions.begin() as session:
        document = ready_document(session, "theirs", tenant_id=other)
        spec = SummarySpec(document_ids=[document.id], model=MODEL)
        (made,) = summaries.create(session, spec, tenant_id=other)
        theirs = ids.summary_id(made.id)
    assert listed(visitor) == [mine]
    assert listed(operator) == [theirs, mine]
    assert listed(operator, "?tenant=default") == [mine]
    assert listed(operator, "?state=completed") == [mine]
    assert "of default" in words(operator.page(address))
    part = words(operator.page(f"{address}/parts/0?show=texts"))
    assert "a summary" in part
    assert "of default" in part
    assert "of default" not in words(visitor.page(f"{address}/parts/0?show=texts"))
    assert operator.client.get(f"{address}/result?format=md").status_code == 200


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(
    reader: Browser, sessions: sessionmaker[Session]
) -> None:
    open_one, ended = running(sessions), completed(sessions, num_words=10)
    check_reader(reader, address_of(open_one), address_of(ended))


def test_a_summary_is_cancelled_then_deleted_by_its_buttons(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    name = running(sessions)
    address = address_of(name)
    check_buttons(visitor, address, "summary")


def test_of_a_large_tree_each_join_has_a_page_of_its_own(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        (summary,) = create(session, ready_document(session, text_of(12_000)), chunk_tokens=64)
        plan_all(session)
        address = address_of(ids.summary_id(summary.id))
        num_nodes = session.query(SummaryNode).filter_by(summary_id=summary.id).count()
    assert num_nodes > 150
    seen: set[str] = set()
    left = visitor.page(address).xpath("//ul[@class='tree']//a/@href")
    while left:
        link = left.pop().partition("?")[0]
        if link not in seen:
            seen.add(link)
            if len(seen) < 8:  # the way down to the leaves is the same everywhere
                left += visitor.page(link).xpath("//ul[@class='tree']//a/@href")
    assert len(seen) > 40


def test_a_list_is_told_what_changed_before_its_stream_opened(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    name = waiting(sessions)
    assert "waits for its documents" in words(visitor.page(LIST))
    with sessions.begin() as session:
        plan_all(session)
    assert f"progress-{name}" in events(visitor, f"{LIST}/live", "0 of 1 jobs", Event())


@pytest.mark.parametrize("place", ["live", "{}/live"])
def test_pages_grow_with_the_summary(
    visitor: Browser,
    sessions: sessionmaker[Session],
    background: Callable[..., Future[object]],
    place: str,
) -> None:
    name = running(sessions)
    address = f"{LIST}/{place.format(name)}"
    page = visitor.page(LIST if place == "live" else address_of(name))
    assert page.xpath("//@*[name()='hx-sse:connect']") == [address]

    follow = partial(check_follows, background, visitor, address)

    def complete_one() -> None:
        with sessions.begin() as session:
            prepare_all(session)
            claimed = claim_next(session)
            assert claimed is not None
            complete(session, claimed)

    def complete_all() -> None:
        with sessions.begin() as session:
            run_to_end(session)

    follow("1 of 12 jobs", complete_one)
    follow("12 of 12 jobs" if place == "live" else 'hx-select="#summary"', complete_all)
    assert is_over(visitor, address, None if place == "live" else "#summary")
