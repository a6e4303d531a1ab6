"""Engines in a real browser: an operator pauses one, sees why jobs wait, and watches the picture move."""

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess
from browser_support import opened
from console_pages.browser import new_key
from console_pages.screenshots import looked_at, looks, probe
from jobs import ids
from jobs.engines import reservations
from jobs.states import FinishReason
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from support import claim_one, output_of, spec, submit_one

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@looks
def test_an_engine_is_paused_says_why_jobs_wait_and_moves_while_one_looks(
    browser: "Browser",
    server: ApiProcess,
    sessions: sessionmaker[Session],
    running: Lease,
    look: dict[str, Any],
) -> None:
    said = probe(look)
    with sessions.begin() as session:
        waiting = ids.job_id(submit_one(session, spec(90_000)).id)
    operator = new_key(sessions, Scope.READ, Scope.OPERATOR, name="ops")
    with opened(browser, **look) as page:
        page.goto(f"{server.url}/console/engines")
        page.get_by_label("API key").fill(operator.secret)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="engine-a").wait_for()
        looked_at(page, "engines", look)
        page.get_by_role("link", name="engine-a").click()
        page.get_by_role("heading", name="On it now").wait_for()
        looked_at(page, "engine", look)

        page.get_by_text("Pause or drain").click()
        page.get_by_label("Why no job is to start").fill(f"new driver {said}")
        page.get_by_role("button", name="Pause").click()
        page.locator("#packing .state", has_text="paused").wait_for()
        page.get_by_text("No job starts on it until it is resumed.").wait_for()
        looked_at(page, "engine-paused", look)
        page.goto(f"{server.url}/console/jobs/{waiting}")
        while not page.get_by_text(
            "engine-a paused by ops: new driver"
        ).count():  # the forecast is a second old
            page.reload()

        page.go_back()
        bars = page.locator("svg.blocks rect.completed")
        assert bars.count() == 0
        page.evaluate("window.isSamePage = true")
        with sessions.begin() as session:
            ending.complete(session, running, output_of("x"), FinishReason.STOP)
            reservations.close(session, running.lease_id)
        bars.first.wait_for(state="attached")
        page.get_by_role("region", name="Table of what ended lately").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.locator("#packing .state", has_text="running").wait_for()
        assert page.evaluate("window.isSamePage") is None, "the form is a plain one"

        page.evaluate("window.isSamePage = true")
        with sessions.begin() as session:
            claim_one(session)
        page.get_by_role("region", name="Table of what is on it now").wait_for()
        assert page.evaluate("window.isSamePage") is True
        looked_at(page, "engine-running", look)
