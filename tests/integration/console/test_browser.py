"""The browser that the console is tested in: it opens pages, hears their complaints, reaches nothing else."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from browser_support import opened, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

POLICY = "default-src 'none'; script-src 'self'"
GOOD = "<!doctype html><html lang=en><title>Good</title><main><h1>Hello</h1><p>A page.</p></main></html>"
PAGES = {
    "/good": GOOD,
    "/inline": GOOD.replace("<p>", "<script>document.title = 'Bad'</script><p>"),
    "/unlabelled": GOOD.replace("<p>", "<input name=a><p>"),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGES.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> "Iterator[str]":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_page_opens_under_a_policy_and_axe_finds_what_is_wrong_with_another(
    page: "Page", site: str
) -> None:
    page.goto(f"{site}/good")
    assert page.get_by_role("heading", name="Hello").is_visible()
    assert violations(page) == []
    page.goto(f"{site}/unlabelled")
    assert [each.split(" ")[0] for each in violations(page)] == ["label"]


@pytest.mark.parametrize("path", ["/inline", "/missing"])
def test_what_the_browser_complains_about_fails_the_test_that_showed_it(
    browser: "Browser", site: str, path: str
) -> None:
    def visit() -> None:
        with opened(browser) as page:
            page.goto(f"{site}{path}")
            assert page.title() != "Bad", "the script ran"

    with pytest.raises(AssertionError, match=r"Content Security Policy|status of 404"):
        visit()


@pytest.mark.parametrize("address", ["http://192.0.2.1/", "https://example.org/"])
def test_nothing_beyond_this_machine_is_reached(browser: "Browser", address: str) -> None:
    def visit() -> None:
        with opened(browser) as page:
            page.evaluate("url => fetch(url).catch(() => null)", address)

    with pytest.raises(AssertionError, match="ERR_NAME_NOT_RESOLVED"):
        visit()


def test_only_root_goes_without_the_sandbox(page: "Page", site: str) -> None:
    page.goto(f"{site}/good")
    commands = [
        arguments.read_bytes().decode(errors="replace")
        for arguments in Path("/proc").glob("[0-9]*/cmdline")
        if arguments.parent.stat().st_uid == os.geteuid()
    ]
    mine = [each for each in commands if "chromium-headless-shell" in each and "--user-data-dir" in each]
    assert mine
    assert all(("--no-sandbox" in each) == (os.geteuid() == 0) for each in mine)
