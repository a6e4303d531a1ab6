"""The console in a real browser: signing in, the list and a job, live, in light and dark, on a phone."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess
from batch_support import Service, lines
from browser_support import opened, violations
from console_pages.browser import new_key
from console_pages.screenshots import looked_at, looks, probe
from jobs import ids
from jobs.states import FinishReason
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from openai_support import chat_line
from support import API_KEY, MODEL, PATIENCE, claim_one, output_of, register_engine, spec, submit_one
from webhook_support import Receiver, add_endpoint, deliver_all, make_due, status

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def sign_in(page: "Page", server: ApiProcess, address: str, *, key: str = API_KEY) -> None:
    page.goto(server.url + address)
    assert violations(page) == []
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


@looks
def test_rows_change_while_one_looks_and_pages_break_no_rule(
    browser: "Browser",
    server: ApiProcess,
    sessions: sessionmaker[Session],
    running: Lease,
    look: dict[str, Any],
) -> None:
    said = probe(look)
    with sessions.begin() as session:
        submit_one(session, spec(custom_id=said[:60]))
    job_id = ids.job_id(running.job_id)
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/jobs")
        page.get_by_role("link", name=job_id).wait_for()
        looked_at(page, "jobs", look)
        with sessions.begin() as session:
            ending.report_progress(session, running, completion_tokens=17)
        page.locator(f"#tokens-{job_id}", has_text="17").wait_for()
        page.get_by_role("link", name=job_id).click()
        page.get_by_role("button", name="Cancel this job").wait_for()
        looked_at(page, "job-running", look)
        with sessions.begin() as session:
            ending.complete(session, running, output_of(f"an answer {said}"), FinishReason.STOP)
        page.locator("#job .state", has_text="completed").wait_for()
        page.get_by_role("button", name="Cancel this job").wait_for(state="detached")
        page.get_by_role("link", name="Show the result").click()
        page.get_by_text("an answer").wait_for()
        looked_at(page, "job", look)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").wait_for()


@looks
def test_the_overview_of_an_operator_breaks_no_rule(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    said = probe(look)
    with sessions.begin() as session:
        register_engine(session)
        submit_one(session)
        ending.fail(session, claim_one(session).lease, {"code": said, "message": said})
        submit_one(session)
    operator = new_key(sessions, Scope.READ, Scope.OPERATOR)
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/", key=operator.secret)
        page.get_by_role("heading", name="Engines").wait_for()
        page.get_by_role("cell", name=said).wait_for()
        looked_at(page, "overview", look)


@looks
def test_lines_that_failed_are_retried_and_watched(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    said = probe(look)
    service = Service(sessions)
    batch_id = service.accepted([*lines(2), chat_line(said[:60], model=MODEL, temperature=7)])
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/batches")
        page.get_by_text("1 of 3").wait_for()
        looked_at(page, "batches", look)
        page.get_by_role("link", name=ids.batch_id(batch_id)).click()
        page.get_by_role("button", name="Cancel this batch").wait_for()
        looked_at(page, "batch-running", look)
        with sessions.begin() as session:
            register_engine(session)
            ending.fail(session, claim_one(session).lease, {"code": said, "message": said})
        service.settle()
        page.get_by_text("2 of 3").wait_for()
        service.complete()
        service.settle()
        page.get_by_role("link", name="Show the error file").click()
        page.get_by_role("cell", name=said[:60]).first.wait_for()
        looked_at(page, "batch-errors", look)
        page.get_by_role("button", name="Retry what did not complete").click()
        page.get_by_text("run again, as this batch").wait_for()
        service.settle_validation()
        service.settle()
        service.complete()
        service.settle()
        page.locator("#batch .state", has_text="completed").wait_for()
        page.get_by_text("2 of 2").wait_for()
        looked_at(page, "batch", look)
        assert len(service.read(service.batch(batch_id).error_file_id)) == 2


@looks
def test_a_webhook_is_tested_replayed_and_watched(
    browser: "Browser",
    server: ApiProcess,
    sessions: sessionmaker[Session],
    receiver: Receiver,
    background: Callable[..., Future[object]],
    look: dict[str, Any],
) -> None:
    said = probe(look)
    receiver.answers["/hook"] = status(503, retry_after="600")
    add_endpoint(sessions, receiver.url(), description=said)
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/webhooks")
        page.get_by_text(said).wait_for()
        looked_at(page, "webhooks", look)
        page.get_by_role("link", name="New endpoint").click()
        page.get_by_label("URL").fill("https://93.184.216.34/hook")
        page.get_by_label("job.failed").check()
        page.get_by_label("all but").uncheck()
        looked_at(page, "new-endpoint", look)
        page.get_by_role("button", name="New endpoint").click()
        page.get_by_text("only this page shows it").wait_for()
        assert violations(page) == []
        page.get_by_role("link", name="The endpoint").click()
        page.get_by_role("link", name="Delete it").click()
        page.get_by_role("button", name="Delete the endpoint").click()
        page.get_by_text("The endpoint is deleted.").wait_for()
        page.get_by_role("link", name=receiver.url()).click()
        page.get_by_role("button", name="Send a test event").wait_for()
        looked_at(page, "endpoint", look)
        page.get_by_role("button", name="Send a test event").click()
        page.get_by_text("on its way").wait_for()
        background(deliver_all, sessions).result(PATIENCE)  # the browser's thread has an event loop
        page.get_by_role("cell", name="503", exact=True).wait_for()
        looked_at(page, "delivery-failed", look)
        page.get_by_role("link", name=receiver.url()).first.click()
        page.get_by_text("paused until").wait_for()
        looked_at(page, "endpoint-paused", look)
        page.get_by_role("link", name="All of its deliveries").click()
        page.get_by_role("link", name="evt_").click()
        receiver.answers["/hook"] = status(204)
        make_due(sessions)
        page.get_by_role("button", name="Send it again").click()
        page.get_by_text("sent to one receiver again").wait_for()
        background(deliver_all, sessions).result(PATIENCE)
        page.get_by_role("cell", name="204", exact=True).wait_for()
        page.get_by_role("link", name="Show the body").click()
        page.get_by_text("webhook_endpoint.test").last.wait_for()
        looked_at(page, "event", look)
        page.goto(f"{server.url}/console/webhooks/deliveries")
        page.get_by_role("cell", name="204", exact=True).wait_for()
        looked_at(page, "deliveries", look)
    assert len(receiver.seen) == 2
