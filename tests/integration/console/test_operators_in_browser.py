"""What operators do in a real browser: a tenant, its key, its limits and its queue; usage and the system."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from browser_support import opened, violations
from console_pages.browser import new_key, new_tenant
from console_pages.screenshots import check_width, looked_at, looks, probe
from jobs.models import DEFAULT_TENANT, Tenant
from jobs.models.tenant import UsageDay
from jobs.tenants.keys import Scope

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def sign_in(page: "Page", server: ApiProcess, address: str, *, key: str) -> None:
    page.goto(server.url + address)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()


@looks
def test_an_operator_gives_a_tenant_a_key_and_limits_and_pauses_its_queue(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    tenant_id = new_tenant(sessions)
    with sessions() as session:
        name = session.get_one(Tenant, tenant_id).name
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/tenants", key=new_key(sessions, Scope.READ, Scope.OPERATOR).secret)
        looked_at(page, "tenants", look)
        page.get_by_role("link", name=name).click()
        page.get_by_text("Change weight and limits").click()
        page.get_by_label("At most unfinished jobs", exact=True).fill("12345")
        looked_at(page, "limits", look)
        page.get_by_role("button", name="Set").click()
        page.get_by_role("cell", name="12,345").wait_for()
        page.get_by_label("Why no job is to start").fill("a new driver")
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("a new driver").wait_for()
        looked_at(page, "tenant-paused", look)
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Drain").wait_for()
        page.get_by_text("Create a key").click()
        page.get_by_label("see all tenants").check()
        page.get_by_role("button", name="Create the key").click()
        secret = page.locator(".secret").inner_text()
        assert violations(page) == []
        page.get_by_role("button", name="Copy the key").click()  # this browser refuses it the clipboard
        page.get_by_text("Copied").wait_for()
        page.get_by_role("link", name="Back to the tenant").click()
        assert secret not in page.content()
        page.get_by_role("link", name="Limit").click()
        page.get_by_label("At most requests a minute with this key").fill("4321")
        looked_at(page, "key-limits", look)
        page.get_by_role("button", name="Set").click()
        page.get_by_role("cell", name="4,321").wait_for()
        page.get_by_role("link", name="Revoke").click()
        looked_at(page, "revoke", look)
        page.get_by_role("button", name="Revoke").click()
        page.get_by_text("is revoked.").wait_for()
        looked_at(page, "tenant", look)
        page.goto(f"{server.url}/console/audit")
        page.get_by_role("cell", name="key.revoke").wait_for()
        looked_at(page, "audit", look)
        check_width(page)


@looks
def test_usage_is_drawn_as_a_curve_and_the_system_is_shown(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    said = probe(look)
    today = datetime.now(UTC).date()
    with sessions.begin() as session:
        for ago in range(7):
            tokens = {"prompt_tokens": 1000 * ago, "cached_tokens": 0, "completion_tokens": 500}
            keys = {"tenant_id": DEFAULT_TENANT, "day": today - timedelta(days=ago), "model": said}
            session.add(UsageDay(**keys, state="completed", num_jobs=1, **tokens))
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/usage", key=new_key(sessions, Scope.READ, Scope.OPERATOR).secret)
        page.locator("figure.curve canvas").wait_for()
        looked_at(page, "usage", look)
        with page.expect_download() as download:
            page.get_by_role("link", name="Download as CSV").click()
        assert download.value.path().read_text().count("\n") == 8
        page.get_by_role("link", name="default").click()
        page.locator("figure.curve canvas").wait_for()
        page.get_by_role("link", name="System").click()
        page.get_by_text("webhooks", exact=True).click()
        page.get_by_text("LONGBATCH_WEBHOOKS__SECRET").wait_for()
        looked_at(page, "system", look)
