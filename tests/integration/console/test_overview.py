"""The first page: what it counts, of whom, and in how many rows."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session, sessionmaker

import ending
from api.console.overview import count_failures, find_oldest
from console_pages.browser import PROBE, Browser, new_tenant, words
from jobs import ids
from jobs.database import database_now
from jobs.engines import registry
from jobs.models import DEFAULT_TENANT, Engine
from support import CAPACITY, claim_one, register_engine, submit_one


def fail_next(session: Session, code: str) -> None:
    """The next queued job failed with this code."""
    ending.fail(session, claim_one(session).lease, {"code": code, "message": PROBE})


def figures(browser: Browser) -> dict[str, str]:
    page = browser.page("/console/")
    return {words(each[0]): words(each[1]) for each in page.xpath("//dl[@class='figures']/div")}


def failures(browser: Browser) -> list[list[str]]:
    rows = browser.page("/console/").xpath("//section[@aria-labelledby='failed']//tbody/tr")
    return [[words(cell) for cell in row] for row in rows]


def test_a_tenant_sees_its_own_queue_and_an_operator_that_of_all(
    reader: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        submit_one(session, tenant_id=new_tenant(sessions))
        submit_one(session)
    assert figures(reader)["queued"] == "1"
    assert figures(operator)["queued"] == "2"


def test_the_oldest_queued_job_is_of_the_viewers_tenant(sessions: sessionmaker[Session]) -> None:
    other = new_tenant(sessions)
    with sessions.begin() as session:
        assert find_oldest(session, tenant_id=None) is None
        oldest, mine, _ = [
            ids.job_id(submit_one(session, tenant_id=each).id)
            for each in (other, DEFAULT_TENANT, DEFAULT_TENANT)
        ]
        found = [find_oldest(session, tenant_id=each) for each in (None, other, DEFAULT_TENANT)]
    assert [each and each.id for each in found] == [oldest, oldest, mine]


def test_failures_of_the_last_hour_are_counted_by_code_and_escaped(
    reader: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        register_engine(session)
        for code in ("engine_error", PROBE, "engine_error"):
            submit_one(session)
            fail_next(session, code)
        submit_one(session, tenant_id=new_tenant(sessions))
        fail_next(session, "engine_error")
    assert failures(reader) == [["engine_error", "2"], [words_of(PROBE), "1"]]
    assert failures(operator)[0] == ["engine_error", "3"]


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("tenant_id", [None, DEFAULT_TENANT])
def test_failures_are_counted_since_then_in_a_window_that_says_when_it_is_full(
    sessions: sessionmaker[Session], tenant_id: None
) -> None:
    with sessions.begin() as session:
        register_engine(session)
        for _ in range(3):
            submit_one(session)
            fail_next(session, "a")
        now = database_now(session)
        hour = now - timedelta(hours=1)
        whole = count_failures(session, tenant_id=tenant_id, since=hour)
        cut = count_failures(session, tenant_id=tenant_id, since=hour, window=2)
        later = count_failures(session, tenant_id=tenant_id, since=now + timedelta(hours=1))
    assert (whole.by_code, whole.is_cut) == ([("a", 3)], False)
    assert (cut.by_code, cut.is_cut) == ([("a", 2)], True)
    assert (later.by_code, later.is_cut) == ([], False)


def test_operators_alone_see_the_engines_and_why_one_is_not_ready(
    reader: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        registry.register(session, "e-1", PROBE, CAPACITY, now=database_now(session))
        session.get_one(Engine, "e-1").paused_reason = PROBE
    page = operator.page("/console/")
    assert "not ready" in words(page.xpath("//section[@aria-labelledby='engines']//tbody/tr")[0])
    assert not reader.page("/console/").xpath("//section[@aria-labelledby='engines']")
