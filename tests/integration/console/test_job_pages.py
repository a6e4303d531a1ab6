"""The pages of jobs: what they show of whose jobs, what they hide, how they page, cancel and follow."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from threading import Event
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

import ending
from api.runtime.database import Transactions
from api.runtime.row_changes import RowChanges
from api_server import ApiProcess
from console_pages.browser import (
    PROBE,
    SAME_ORIGIN,
    Browser,
    browsing,
    checked,
    events,
    is_over,
    new_key,
    new_tenant,
    words,
)
from jobs import ids, lifecycle, queries
from jobs.database.paging import SearchRange
from jobs.engines import reservations
from jobs.ids import first_uuid7, uuid7
from jobs.models import DEFAULT_TENANT
from jobs.prompts.messages import Message, canonical
from jobs.queries import JobFilter, JobStatus
from jobs.settings import DatabaseSettings
from jobs.states import FinishReason
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from support import PATIENCE, claim_one, output_of, register_engine, spec, submit_one


def submitted(sessions: sessionmaker[Session], count: int = 1) -> list[str]:
    """So many queued jobs, the newest last."""
    with sessions.begin() as session:
        return [ids.job_id(submit_one(session).id) for _ in range(count)]


def listed(visitor: Browser, query: str = "") -> list[str]:
    return [each.text for each in visitor.page(f"/console/jobs{query}").xpath("//tbody//td[1]/a/code")]


def test_the_list_pages_without_gaps_while_jobs_are_added(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    old = submitted(sessions, 120)
    seen, following = [], ["/console/jobs"]
    while following:
        page = visitor.page(following[0])
        seen += [each.text for each in page.xpath("//tbody//td[1]/a/code")]
        following = page.xpath("//a[@rel='next']/@href")
        submitted(sessions)
    assert seen == old[::-1]


@pytest.mark.parametrize("query", ["?state=queued", "?lane=batch", "?age=hour&state=queued", "?age=day"])
def test_filters_are_in_the_address_and_in_the_links(
    visitor: Browser, sessions: sessionmaker[Session], query: str
) -> None:
    wanted = submitted(sessions, 60)
    page = visitor.page(f"/console/jobs{query}")
    (following,) = page.xpath("//a[@rel='next']/@href")
    assert following.startswith(f"/console/jobs{query}".partition("?")[0])
    for part in query.removeprefix("?").split("&"):
        assert part in following
    rest = [each.text for each in visitor.page(following).xpath("//tbody//td[1]/a/code")]
    assert listed(visitor, query) + rest == wanted[::-1]


@pytest.mark.parametrize(
    "query", ["?state=failed", "?lane=interactive", "?age=over-hour", "?batch=batch_" + "0" * 32]
)
def test_what_does_not_match_is_not_listed(
    visitor: Browser, sessions: sessionmaker[Session], query: str
) -> None:
    submitted(sessions)
    page = visitor.page(f"/console/jobs{query}")
    assert page.xpath("//*[@class='empty']")


@pytest.mark.parametrize(
    "query", ["?state=x", "?lane='", "?age=x", "?batch=x", "?after=x", "?after=job_" + "0" * 32]
)
def test_a_filter_that_the_form_does_not_offer_is_refused(visitor: Browser, query: str) -> None:
    visitor.page(f"/console/jobs{query}", status=400)


def test_a_search_without_an_index_looks_at_so_many_jobs_and_goes_on(sessions: sessionmaker[Session]) -> None:
    old = submitted(sessions, 7)
    with sessions.begin() as session:
        session.execute(
            text("UPDATE jobs SET lane = 'interactive' WHERE id IN (SELECT min(id::text)::uuid FROM jobs)")
        )
        seen, after, rounds = [], None, 0
        while True:
            wanted = SearchRange(tenant_id=None, after=after, limit=2, window=3)
            found = queries.search_jobs(session, JobFilter(lane="interactive"), wanted)
            seen += [ids.job_id(job.id) for job in found.items]
            after = found.next
            rounds += 1
            if after is None:
                break
    assert (seen, rounds) == ([old[0]], 3)


def test_ids_bound_the_time_of_submission() -> None:
    made = uuid7()
    at = datetime.fromtimestamp((made.int >> 80) / 1000, UTC)
    assert first_uuid7(at) <= made < first_uuid7(at + timedelta(milliseconds=2))


def test_another_tenant_s_jobs_are_neither_listed_nor_found_nor_cancelled(
    visitor: Browser, stranger: Browser, sessions: sessionmaker[Session]
) -> None:
    (job_id,) = submitted(sessions)
    assert listed(visitor) == [job_id]
    assert listed(stranger) == []
    for unknown in (job_id, ids.job_id(UUID(int=7)), "job_x", PROBE):
        found = stranger.client.get(f"/console/jobs/{unknown}")
        assert found.status_code == 404
        assert "There is no such" in words(checked(found))
    stranger.page(f"/console/jobs/{job_id}?show=prompt", status=404)
    assert stranger.client.get(f"/console/jobs/{job_id}/live").status_code == 404
    assert stranger.client.get("/console/jobs/live").status_code == 204
    assert stranger.post(f"/console/jobs/{job_id}/cancel").status_code == 404
    stranger.post("/console/jobs/cancel", state="queued", counted_at="2999-01-01T00:00:00+00:00")
    assert "queued" in words(visitor.page(f"/console/jobs/{job_id}"))
    stranger.page("/console/jobs?tenant=default", status=404)


def test_an_operator_sees_the_jobs_of_all_and_whose_they_are_and_changes_none(
    server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    mine = submitted(sessions)
    other = new_tenant(sessions, "other")
    with sessions.begin() as session:
        theirs = ids.job_id(submit_one(session, spec(), tenant_id=other).id)
        name = session.scalar(text("SELECT name FROM tenants WHERE id = :id"), {"id": other})
    key = new_key(sessions, Scope.READ, Scope.SUBMIT, Scope.OPERATOR)
    with browsing(server, key.secret) as operator:
        page = operator.page("/console/jobs")
        owners = dict(
            zip(page.xpath("//tbody//td[1]/a/code/text()"), page.xpath("//tbody//td[2]/text()"), strict=True)
        )
        assert owners == {mine[0]: "default", theirs: name}
        assert listed(operator, f"?tenant={name}") == [theirs]
        assert listed(operator, f"?tenant={name}&state=queued") == [theirs]
        one = operator.page(f"/console/jobs/{theirs}")
        assert str(name) in words(one)
        assert not one.xpath("//form[contains(@action, 'jobs')]//button")
        assert operator.post(f"/console/jobs/{theirs}/cancel").status_code == 404
        assert operator.client.get(f"/console/jobs/cancel?tenant={name}&state=queued").status_code == 403


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(
    reader: Browser, sessions: sessionmaker[Session]
) -> None:
    (job_id,) = submitted(sessions)
    for address in (f"/console/jobs/{job_id}", "/console/jobs?state=queued"):
        page = reader.page(address)
        posts = page.xpath("//form[@method='post']/@action")
        assert posts == ["/console/sign-out"]
        assert not page.xpath("//a[contains(@href, 'jobs/cancel')]")
    assert reader.post(f"/console/jobs/{job_id}/cancel").status_code == 403
    answer = reader.post("/console/jobs/cancel", state="queued", counted_at="2999-01-01T00:00:00+00:00")
    assert answer.status_code == 403
    assert reader.client.get("/console/jobs/cancel?state=queued").status_code == 403
    assert "queued" in words(reader.page(f"/console/jobs/{job_id}"))


def test_one_job_says_why_it_waits_and_is_cancelled_by_its_button(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (job_id,) = submitted(sessions)
    page = visitor.page(f"/console/jobs/{job_id}")
    assert "no engine large enough for it is taking jobs" in words(page)
    (action,) = page.xpath("//form[contains(@action, 'cancel')]/@action")
    answer = visitor.post(action)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/console/jobs/{job_id}")
    ended = visitor.page(f"/console/jobs/{job_id}")
    assert "The job is cancelled." in words(ended)
    assert not ended.xpath("//form[contains(@action, 'cancel')]")
    assert "The job is cancelled." not in words(visitor.page(f"/console/jobs/{job_id}"))


def test_a_running_job_shows_its_reservation_and_tokens(
    visitor: Browser, sessions: sessionmaker[Session], running: Lease
) -> None:
    with sessions.begin() as session:
        ending.report_progress(session, running, completion_tokens=17)
    page = visitor.page(f"/console/jobs/{ids.job_id(running.job_id)}")
    found = words(page)
    assert "Reserved on engine-a" in found
    assert "KV blocks" in found
    assert "first token" in found
    assert page.xpath("//tr[th='Output']//td//text()") == ["17", "64"]


def test_each_run_of_a_job_is_shown_and_its_worker_to_operators_alone(
    visitor: Browser, server: ApiProcess, sessions: sessionmaker[Session], running: Lease
) -> None:
    with sessions.begin() as session:
        session.execute(text("UPDATE reservations SET worker = :worker"), {"worker": PROBE})
        error: dict[str, object] = {"code": PROBE, "message": "broken"}
        ending.retry(session, running, error, max_attempts=3, backoff=timedelta(0))
        reservations.close(session, running.lease_id)
        session.execute(text("UPDATE jobs SET run_after = NULL"))
        claim_one(session)
    address = f"/console/jobs/{ids.job_id(running.job_id)}"
    ended, present = visitor.page(address).xpath("//section[@aria-labelledby='runs']//tbody/tr")
    assert [words(each) for each in ended.xpath("td")][1:3] == [
        "engine-a",
        f"failed, to be tried again {' '.join(PROBE.split())}",
    ]
    assert "still running" in words(present)
    operator_key = new_key(sessions, Scope.READ, Scope.OPERATOR)
    with browsing(server, operator_key.secret) as operator:
        ended, _ = operator.page(address).xpath("//section[@aria-labelledby='runs']//tbody/tr")
        assert words(ended).count("<b id=probe>") == 2


def test_cancelling_by_filter_shows_the_number_first_and_spares_later_jobs(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    submitted(sessions, 3)
    (address,) = visitor.page("/console/jobs?state=queued").xpath("//a[contains(@href, 'jobs/cancel')]/@href")
    page = visitor.page(address)
    assert "3 unfinished jobs match" in words(page)
    (form,) = page.xpath("//form[contains(@action, 'cancel')]")
    fields = {each.get("name"): each.get("value") for each in form.xpath(".//input")}
    later = submitted(sessions)
    answer = visitor.client.post(form.get("action"), data=fields, headers=SAME_ORIGIN)
    assert answer.headers["location"] == "/console/jobs?state=queued"
    assert "3 jobs are cancelled." in words(visitor.page(answer.headers["location"]))
    assert listed(visitor, "?state=queued") == later
    assert visitor.client.get("/console/jobs/cancel").status_code == 400
    for wrong in ("now", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59"):
        answer = visitor.post("/console/jobs/cancel", state="queued", age="week", counted_at=wrong)
        assert answer.status_code == 400, wrong


def test_the_number_to_cancel_is_found_in_so_many_jobs(sessions: sessionmaker[Session]) -> None:
    submitted(sessions, 5)
    with sessions.begin() as session:
        for at_most, expected in ((4, (4, False)), (5, (5, True)), (9, (5, True))):
            found = lifecycle.count_cancellable(session, [], tenant_id=DEFAULT_TENANT, at_most=at_most)
            assert found == expected


def test_texts_are_shown_when_asked_for_and_markup_in_them_stays_text(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    secret = f"a question {PROBE}"
    prompt = canonical([Message("user", secret)])
    with sessions.begin() as session:
        register_engine(session)
        submit_one(session, spec(prompt=prompt, custom_id=PROBE[:60], metadata={PROBE[:60]: PROBE}))
        lease = claim_one(session).lease
        ending.complete(session, lease, output_of(f"an answer {PROBE}"), FinishReason.STOP)
    address = f"/console/jobs/{ids.job_id(lease.job_id)}"
    plain = visitor.page(address)
    assert "a question" not in words(plain)
    assert "an answer" not in words(plain)
    shown = visitor.page(f"{address}?show=prompt")
    assert secret in [each.text for each in shown.xpath("//pre")]
    assert "a question" not in shown.findtext(".//title")
    assert f"an answer {PROBE}" in [
        each.text for each in visitor.page(f"{address}?show=result").xpath("//pre")
    ]
    assert PROBE[:60] in words(visitor.page("/console/jobs"))


def test_markup_in_an_error_stays_text(
    visitor: Browser, sessions: sessionmaker[Session], running: Lease
) -> None:
    with sessions.begin() as session:
        ending.fail(session, running, {"code": PROBE, "message": PROBE})
    assert words(visitor.page(f"/console/jobs/{ids.job_id(running.job_id)}")).count("<b id=probe>") >= 2
    assert "<b id=probe>" in words(visitor.page("/console/jobs"))


@pytest.mark.parametrize("place", ["jobs/live", "jobs/{}/live"])
def test_rows_follow_their_jobs(
    visitor: Browser,
    sessions: sessionmaker[Session],
    running: Lease,
    background: Callable[..., Future[object]],
    place: str,
) -> None:
    job_id = ids.job_id(running.job_id)
    address = f"/console/{place.format(job_id)}"
    page = visitor.page(f"/console/jobs/{job_id}" if "{" in place else "/console/jobs")
    (connected,) = page.xpath("//*[@*[name()='hx-sse:connect']]")
    assert connected.get("hx-sse:connect") == address
    opened = Event()
    following = background(events, visitor, address, "completed", opened)
    assert opened.wait(PATIENCE)
    with sessions.begin() as session:
        ending.complete(session, running, output_of("x"), FinishReason.STOP)
    found = following.result(PATIENCE)
    assert f'id="state-{job_id}"' in str(found)
    assert is_over(visitor, address, "#job" if "{" in place else None)


def test_however_many_watch_there_is_one_query_in_a_pause(
    database_settings: DatabaseSettings, sessions: sessionmaker[Session]
) -> None:
    watched = submitted(sessions, 3)
    polled: list[int] = []

    def read(session: Session, job_ids: Sequence[UUID]) -> Mapping[UUID, JobStatus]:
        polled.append(len(job_ids))
        return queries.read_status(session, job_ids)

    async def watch() -> None:
        transactions = Transactions(database_settings)
        changes = RowChanges(transactions, read, interval=0.001, pause=3600)
        polling = asyncio.create_task(changes.run())
        first = [changes.changes(ids.parse_job_id(each)) for each in watched]
        await asyncio.gather(*(anext(each) for each in first))
        later = [changes.changes(ids.parse_job_id(each)) for each in watched * 20]
        await asyncio.gather(*(anext(each) for each in later))  # what the first look found
        changes.poll_now([ids.parse_job_id(each) for each in watched])
        await asyncio.wait({polling}, timeout=0.1)
        polling.cancel()
        await transactions.close()

    asyncio.run(watch())
    assert polled == [3]


def test_an_api_stream_of_a_page_needs_the_session(server: ApiProcess) -> None:
    with server.client(api_key=None) as client:
        answer = client.get("/console/jobs/live", headers={"HX-Request": "true"})
        assert answer.status_code == 401
        assert answer.headers["hx-refresh"] == "true"
