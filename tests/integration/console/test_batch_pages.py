"""The pages of batches: how far they are, whose they are, their files, and what is done with them."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from threading import Event
from uuid import UUID

import httpx2
import pytest
from lxml.html import HtmlElement
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess
from batch_support import Service, lines
from console_pages.browser import (
    PROBE,
    Browser,
    browsing,
    checked,
    events,
    is_over,
    new_key,
    new_tenant,
    words,
)
from jobs import batches, files, ids
from jobs.batches import BatchSpec
from jobs.batches.progress import read_progress
from jobs.database import database_now
from jobs.files.storage import RowStore
from jobs.models import DEFAULT_TENANT, Job
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.states.batch import Endpoint
from jobs.states.file import FileState
from jobs.tenants.keys import Scope
from openai_support import chat_line
from support import MODEL, PATIENCE, claim_one, register_engine


@pytest.fixture
def service(sessions: sessionmaker[Session]) -> Service:
    return Service(sessions)


def address_of(batch_id: UUID) -> str:
    return f"/console/batches/{ids.batch_id(batch_id)}"


def ended_with_failures(service: Service, *, code: str = "engine_error") -> UUID:
    """A batch of three lines that has ended: one completed, one failed so, one was refused."""
    batch_id = service.accepted([*lines(2), chat_line("bad", model=MODEL, temperature=7)])
    service.complete(1)
    fail_next(service, code)
    service.settle()
    assert service.batch(batch_id).state == "completed"
    return batch_id


def fail_next(service: Service, code: str) -> None:
    with service.sessions.begin() as session:
        register_engine(session)
        ending.fail(session, claim_one(session).lease, {"code": code, "message": PROBE})


def listed(browser: Browser, query: str = "") -> list[str]:
    return [each.text for each in browser.page(f"/console/batches{query}").xpath("//tbody//td[1]/a/code")]


def figures(page: HtmlElement) -> dict[str, str]:
    return {words(each[0]): words(each[1]) for each in page.xpath("//dl[@class='figures']/div")}


def errors(page: HtmlElement) -> dict[str, str]:
    rows = page.xpath("//div[@aria-label='Table of errors']//tbody/tr")
    return {words(row[0]): words(row[1]) for row in rows}


def retry_form(page: HtmlElement) -> tuple[str, dict[str, str]]:
    (form,) = page.xpath("//form[contains(@action, '/retry')]")
    return form.get("action"), {"once": form.xpath(".//input[@name='once']/@value")[0]}


def test_a_batch_shows_how_far_it_is_and_why_lines_failed(visitor: Browser, service: Service) -> None:
    batch_id = service.accepted([*lines(6), chat_line("bad", model=MODEL, temperature=7)])
    service.complete(2)
    fail_next(service, "engine_error")
    service.settle()
    page = visitor.page(address_of(batch_id))
    shown = figures(page)
    assert (shown["ended"], shown["completed"], shown["failed"]) == ("4 of 7", "2", "2")
    assert errors(page) == {"engine_error": "1", "invalid_value": "1"}
    assert page.xpath("//progress[@value='4' and @max='7']")
    assert "in progress" in words(page)
    assert "At this rate it ends about" in words(page)
    row = words(visitor.page("/console/batches").xpath("//tbody/tr")[0])
    assert "4 of 7" in row
    assert "in.jsonl" in row


def test_the_api_counts_what_is_in_the_error_file_by_code(http: httpx2.Client, service: Service) -> None:
    batch_id = service.accepted([*lines(6), chat_line("bad", model=MODEL, temperature=7)])
    fail_next(service, "engine_error")
    service.settle()
    service.complete(1)
    service.cancel(batch_id)
    service.settle()
    batch = http.get(f"/v1/batches/{ids.batch_id(batch_id)}").json()
    assert batch["error_counts"] == {"batch_cancelled": 4, "engine_error": 1, "invalid_value": 1}
    assert sum(batch["error_counts"].values()) == len(service.read(service.batch(batch_id).error_file_id))


def test_a_file_that_was_refused_says_why(visitor: Browser, service: Service) -> None:
    batch_id = service.create([*lines(1), chat_line(PROBE, method="GET"), chat_line(PROBE, model=MODEL)] * 40)
    service.settle_validation()
    page = visitor.page(address_of(batch_id))
    assert "failed" in words(page)
    faults = page.xpath("//section[@aria-labelledby='refused']")[0]
    assert "duplicate_custom_id" in words(faults)
    assert "The first 50 of" in words(faults)
    assert len(faults.xpath(".//tbody/tr")) == 50
    assert not page.xpath("//form[contains(@action, 'batches')]")


def test_the_rate_is_that_of_the_last_minutes_or_else_of_the_batch(
    service: Service, sessions: sessionmaker[Session]
) -> None:
    batch_id = service.accepted(lines(40))
    service.complete(12)
    service.settle()
    with sessions.begin() as session:
        ended = select(Job.id).where(Job.finalized_at.is_not(None))
        few = session.scalars(ended.limit(9)).all()
        now = database_now(session)
        hour_ago = now - timedelta(hours=1)
        session.execute(update(Batch).values(in_progress_at=hour_ago))
        session.execute(update(Job).where(Job.id.in_(few)).values(finalized_at=now - timedelta(minutes=9)))
        found = read_progress(session, [batch_id, UUID(int=7)])
        assert list(found) == [batch_id]
        assert found[batch_id].lines_per_minute == 12 / 60, "three are too few to tell"
        session.execute(
            update(Job).where(Job.id.in_(few[:7])).values(finalized_at=now - timedelta(minutes=1))
        )
        lately = read_progress(session, [batch_id])[batch_id]
        full = read_progress(session, [batch_id], window=8)[batch_id]
    assert full.lines_per_minute == 8, "as far back as the window reaches"
    assert lately.lines_per_minute == 10 / 5
    assert lately.ends_at is not None
    assert timedelta(minutes=14) <= lately.ends_at - now <= timedelta(minutes=15)


def test_what_does_not_run_has_no_rate_and_no_end(service: Service, sessions: sessionmaker[Session]) -> None:
    known = [ended_with_failures(service), service.accepted(lines(1)), service.create(lines(1))]
    with sessions() as session:
        found = read_progress(session, known)
    assert {(each.lines_per_minute, each.ends_at) for each in found.values()} == {(None, None)}


def test_lines_without_a_code_are_told_as_such(visitor: Browser, service: Service) -> None:
    batch_id = ended_with_failures(service)
    with service.sessions.begin() as session:  # as workers of the release before leave it
        session.execute(update(Batch).values(error_counts={"engine_error": 1}))
    page = visitor.page(address_of(batch_id))
    assert errors(page) == {"engine_error": "1", "no code recorded": "1"}


def test_files_are_downloaded_as_files(visitor: Browser, service: Service) -> None:
    batch_id = ended_with_failures(service)
    batch = service.batch(batch_id)
    page = visitor.page(address_of(batch_id))
    links = page.xpath("//section[@aria-labelledby='files']//a/@href")
    assert links == [f"{address_of(batch_id)}/files/{kind}" for kind in ("input", "output", "errors")]
    for link, file_id in zip(
        links, (batch.input_file_id, batch.output_file_id, batch.error_file_id), strict=True
    ):
        answer = visitor.client.get(link)
        with service.sessions() as session:
            content = b"".join(files.read_chunks(session, file_id, service.tools.store))  # type: ignore[arg-type]  # all there
        assert answer.content == content
        assert answer.headers["content-disposition"].startswith("attachment; filename=")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "application/octet-stream"
    assert visitor.client.get(f"{address_of(batch_id)}/files/x").status_code == 404
    with service.sessions.begin() as session:
        files.remove(session, batch.error_file_id, tenant_id=DEFAULT_TENANT)  # type: ignore[arg-type]  # there
    assert visitor.client.get(links[2]).status_code == 404
    page = visitor.page(address_of(batch_id))
    assert links[2] not in page.xpath("//a/@href")
    assert not page.xpath("//form[contains(@action, '/retry')]"), "a retry needs the error file"


def test_failed_lines_are_shown_when_asked_for(visitor: Browser, service: Service) -> None:
    batch_id = ended_with_failures(service)
    assert "line-1" not in words(visitor.page(address_of(batch_id)))
    page = visitor.page(f"{address_of(batch_id)}?show=errors")
    rows = page.xpath("//div[@aria-label='Table of failed lines']//tbody/tr")
    assert sorted((words(row[0]), words(row[1])) for row in rows) == [
        ("bad", "invalid_value"),
        ("line-1", "engine_error"),
    ]


def test_failed_lines_run_again_once_for_each_form(visitor: Browser, service: Service) -> None:
    batch_id = ended_with_failures(service)
    action, fields = retry_form(visitor.page(address_of(batch_id)))
    answers = [visitor.post(action, **fields) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {303}
    (address,) = {answer.headers["location"] for answer in answers}
    service.settle_validation()
    again = visitor.page(address)
    assert "run again, as this batch" in words(again)
    assert address_of(batch_id) in again.xpath("//a/@href")
    assert figures(again)["ended"].endswith("of 2")
    action, fields = retry_form(visitor.page(address_of(batch_id)))
    assert visitor.post(action, **fields).headers["location"] != address
    assert len(listed(visitor)) == 3
    assert visitor.post(action, once="").status_code == 400


def test_a_batch_is_cancelled_by_its_button(visitor: Browser, service: Service) -> None:
    batch_id = service.accepted(lines(2))
    page = visitor.page(address_of(batch_id))
    assert not page.xpath("//form[contains(@action, '/retry')]")
    (action,) = page.xpath("//form[contains(@action, '/cancel')]/@action")
    answer = visitor.post(action)
    assert (answer.status_code, answer.headers["location"]) == (303, address_of(batch_id))
    assert "being cancelled" in words(visitor.page(address_of(batch_id)))
    service.settle()
    page = visitor.page(address_of(batch_id))
    assert figures(page)["cancelled or expired"] == "2"
    assert errors(page) == {"batch_cancelled": "2"}
    assert visitor.post(action).status_code == 303, "it is cancelled already"


def test_another_tenant_s_batches_are_neither_listed_nor_found_nor_changed(
    visitor: Browser, stranger: Browser, service: Service
) -> None:
    batch_id, running = ended_with_failures(service), service.accepted(lines(1))
    assert len(listed(visitor)) == 2
    assert listed(stranger) == []
    name = ids.batch_id(batch_id)
    for unknown in (name, ids.batch_id(UUID(int=7)), "batch_x", PROBE):
        found = stranger.client.get(f"/console/batches/{unknown}")
        assert found.status_code == 404
        assert "There is no such batch" in words(checked(found)) or unknown == PROBE
        for verb in ("cancel", "retry"):
            assert stranger.post(f"/console/batches/{unknown}/{verb}", once="a").status_code == 404
    for part in ("files/input", "files/errors", "live", "?show=errors"):
        separator = "" if part.startswith("?") else "/"
        assert stranger.client.get(f"{address_of(batch_id)}{separator}{part}").status_code == 404
    assert stranger.post(f"{address_of(running)}/cancel").status_code == 404
    assert stranger.client.get("/console/batches/live").status_code == 204
    assert stranger.client.get(f"/console/batches?after={name}").status_code == 200
    assert listed(stranger, f"?after={name}") == []
    stranger.page("/console/batches?tenant=default", status=404)
    assert service.batch(running).state == "in_progress"


def test_an_operator_sees_the_batches_of_all_and_their_files_and_changes_its_own(
    server: ApiProcess, service: Service, sessions: sessionmaker[Session]
) -> None:
    mine = ended_with_failures(service)
    theirs = of_another_tenant(sessions)
    key = new_key(sessions, Scope.READ, Scope.SUBMIT, Scope.OPERATOR)
    with browsing(server, key.secret) as operator:
        look_as_operator(operator, mine, theirs)


def look_as_operator(operator: Browser, mine: UUID, theirs: UUID) -> None:
    page = operator.page("/console/batches")
    owners = dict(
        zip(page.xpath("//tbody//td[1]/a/code/text()"), page.xpath("//tbody//td[2]/text()"), strict=True)
    )
    assert owners.keys() == {ids.batch_id(mine), ids.batch_id(theirs)}
    owner = owners[ids.batch_id(theirs)]
    assert listed(operator, f"?tenant={owner}") == [ids.batch_id(theirs)]
    assert operator.client.get(f"{address_of(theirs)}/files/input").content == b"{}\n"
    one = operator.page(address_of(theirs))
    assert owner in words(one)
    assert not one.xpath("//form[contains(@action, 'batches')]")
    assert operator.post(f"{address_of(theirs)}/cancel").status_code == 404
    assert operator.page(address_of(mine)).xpath("//form[contains(@action, '/retry')]"), "of its own tenant"


def of_another_tenant(sessions: sessionmaker[Session]) -> UUID:
    """A batch of a file with one line, which another tenant has just created."""
    tenant_id = new_tenant(sessions, "other")
    with sessions.begin() as session:
        file = files.create(
            session, tenant_id=tenant_id, purpose="batch", filename="x", state=FileState.COMPLETE
        )
        files.append(session, file, [b"{}\n"], RowStore())
        return batches.create(session, BatchSpec(file.id, Endpoint.CHAT, "24h"), tenant_id=tenant_id).id


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(reader: Browser, service: Service) -> None:
    for batch_id in (ended_with_failures(service), service.accepted(lines(1))):
        page = reader.page(address_of(batch_id))
        assert page.xpath("//form[@method='post']/@action") == ["/console/sign-out"]
        for verb in ("cancel", "retry"):
            assert reader.post(f"{address_of(batch_id)}/{verb}", once="a").status_code == 403
    assert reader.client.get(f"{address_of(batch_id)}/files/input").status_code == 200
    assert len(listed(reader)) == 2


def test_the_list_pages_and_filters_in_its_address(visitor: Browser, service: Service) -> None:
    old = [ids.batch_id(service.create(lines(1))) for _ in range(60)]
    with service.sessions.begin() as session:
        session.execute(
            update(Batch).where(Batch.id == ids.parse_batch_id(old[0])).values(state="cancelling")
        )
    first = visitor.page("/console/batches")
    (following,) = first.xpath("//a[@rel='next']/@href")
    rest = visitor.page(following).xpath("//tbody//td[1]/a/code/text()")
    assert listed(visitor) + rest == old[::-1]
    assert listed(visitor, "?state=cancelling") == [old[0]]
    (following,) = visitor.page("/console/batches?state=validating").xpath("//a[@rel='next']/@href")
    assert "state=validating" in following
    assert visitor.page("/console/batches?state=expired").xpath("//*[@class='empty']")
    for query in ("?state=x", "?after=x"):
        visitor.page(f"/console/batches{query}", status=400)


def test_markup_in_what_callers_send_stays_text(visitor: Browser, service: Service) -> None:
    batch_id = service.accepted([chat_line(PROBE[:60], model=MODEL), *lines(1)])
    fail_next(service, PROBE)
    fail_next(service, PROBE)
    with service.sessions.begin() as session:
        session.execute(update(Batch).values(labels={PROBE: PROBE}, model=PROBE))
        session.execute(update(File).values(filename=PROBE))
    service.settle()
    page = visitor.page(f"{address_of(batch_id)}?show=errors")
    # metadata, its name, the model, three files, the code in two tables, two messages, a custom id
    assert words(page).count("<script>alert(1)</script>") >= 9
    assert errors(page) == {" ".join(PROBE.split()): "2"}
    assert "<script>" in words(visitor.page("/console/batches"))
    retried = visitor.post(*retry_form(page)[:1], **retry_form(page)[1]).headers["location"]
    assert "<script>" in words(visitor.page(retried))


@pytest.mark.parametrize("place", ["", "one"])
def test_rows_follow_their_batches(
    visitor: Browser, service: Service, background: Callable[..., Future[object]], place: str
) -> None:
    batch_id = service.accepted(lines(3))
    name = ids.batch_id(batch_id)
    page_address = address_of(batch_id) if place else "/console/batches"
    page = visitor.page(page_address)
    (connected,) = page.xpath("//*[@*[name()='hx-sse:connect']]")
    address = f"{page_address}/live"
    assert connected.get("hx-sse:connect") == address
    opened = Event()
    wanted = "2 of 3"
    following = background(events, visitor, address, wanted, opened)
    assert opened.wait(PATIENCE)
    service.complete(2)
    service.settle()
    found = str(following.result(PATIENCE))
    assert f'id="{"progress" if place else "lines"}-{name}"' in found
    opened = Event()
    following = background(events, visitor, address, "#batch" if place else "completed", opened)
    assert opened.wait(PATIENCE)
    service.complete()
    service.settle()
    following.result(PATIENCE)
    assert is_over(visitor, address, "#batch" if place else None)
