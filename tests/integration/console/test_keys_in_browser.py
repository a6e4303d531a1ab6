"""What a browser shows to those who may not: a wrong key, an ended session, a key that reads, a stranger."""

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from batch_support import Service, lines
from browser_support import opened, violations
from console_pages.browser import new_key, new_tenant
from jobs import ids
from jobs.database import database_now
from jobs.models import ConsoleSession
from jobs.tenants.keys import Scope
from webhook_support import add_endpoint

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Sessions = sessionmaker[Session]


@pytest.fixture
def addresses(sessions: Sessions) -> list[str]:
    """The pages of a batch that runs, and of an endpoint."""
    batch_id = Service(sessions).accepted(lines(2))
    endpoint, _ = add_endpoint(sessions, "https://a.example/hook")
    return [
        f"/console/batches/{ids.batch_id(batch_id)}",
        f"/console/webhooks/endpoints/{ids.endpoint_id(endpoint.id)}",
    ]


def enter(page: "Page", key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_wrong_key_shows_the_form_again_and_why(
    browser: "Browser", server: ApiProcess, addresses: list[str]
) -> None:
    with opened(browser, status=401) as page:
        page.goto(server.url + addresses[0])
        enter(page, "lb_0123456789abcdee_" + "x" * 43)
        page.get_by_role("alert").wait_for()
        assert page.get_by_label("API key").input_value() == ""
        assert violations(page) == []


def test_an_ended_session_leads_to_the_form_and_on_to_the_link(
    browser: "Browser", server: ApiProcess, sessions: Sessions
) -> None:
    key = new_key(sessions, Scope.READ, Scope.SUBMIT).secret
    # This page has no live stream that could reload it while the browser follows the link.
    with opened(browser) as page:
        page.goto(f"{server.url}/console/audit")
        enter(page, key)
        page.get_by_role("heading", name="Audit").wait_for()
        end_sessions(sessions)
        page.get_by_role("link", name="Batches", exact=True).click()
        enter(page, key)
        page.get_by_role("heading", name="Batches").wait_for()
        assert page.url.endswith("/console/batches")


def test_an_ended_session_leads_a_live_page_to_the_form_and_back(
    browser: "Browser", server: ApiProcess, sessions: Sessions, addresses: list[str]
) -> None:
    key = new_key(sessions, Scope.READ, Scope.SUBMIT).secret
    with opened(browser, status=401) as page:
        page.goto(server.url + addresses[0])
        with page.expect_response(f"**{addresses[0]}/live"):
            enter(page, key)
        end_sessions(sessions)
        # The stream does the same when it connects again.
        page.evaluate("address => htmx.ajax('GET', address, {target: '#batch'})", addresses[0] + "/live")
        enter(page, key)
        page.get_by_role("button", name="Cancel this batch").wait_for()
        assert page.url.endswith(addresses[0])


def end_sessions(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.execute(update(ConsoleSession).values(expires_at=database_now(session)))


def test_a_key_that_reads_sees_no_button_on_any_page(
    browser: "Browser", server: ApiProcess, sessions: Sessions, addresses: list[str]
) -> None:
    with opened(browser) as page:
        page.goto(server.url + addresses[0])
        enter(page, new_key(sessions, Scope.READ).secret)
        page.get_by_text("read-only").wait_for()
        for address in addresses:
            page.goto(server.url + address)
            shown = page.get_by_role("main").get_by_role("button").all_inner_texts()
            assert set(shown) <= {"Copy"}
            assert violations(page) == []


def test_another_tenant_s_id_is_a_page_that_is_not_there(
    browser: "Browser", server: ApiProcess, sessions: Sessions, addresses: list[str]
) -> None:
    stranger = new_key(sessions, Scope.READ, Scope.SUBMIT, tenant_id=new_tenant(sessions))
    with opened(browser, status=404) as page:
        page.goto(f"{server.url}/console/batches")
        enter(page, stranger.secret)
        page.get_by_text("No batch matches here.").wait_for()
        for address in addresses:
            page.goto(server.url + address)
            page.get_by_text("There is no such").wait_for()
            assert violations(page) == []
