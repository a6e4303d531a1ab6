"""Signing in by a provider in a real browser, whose site is another than the console's."""

from typing import TYPE_CHECKING

from browser_support import opened, violations
from signing_in.people import WRITER, People

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_in_browser_one_click_leads_to_the_provider_and_back(browser: "Browser", people: People) -> None:
    people.provider.claims = WRITER
    with opened(browser) as page:
        page.goto(f"{people.server.url}/console/jobs?state=failed")
        assert violations(page) == []
        page.get_by_role("link", name="Sign in with your organization").click()
        page.get_by_text("wim · default").first.wait_for(state="attached")
        assert page.url == f"{people.server.url}/console/jobs?state=failed"
        assert [each["name"] for each in page.context.cookies()] == ["longbatch_session"]
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("You are signed out.").wait_for()
    assert people.provider.asks[-2:] == ["/token", "/keys"]
