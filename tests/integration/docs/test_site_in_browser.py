"""The site in a browser: its search finds a section, its links work, and it asks no other server."""

import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from scripts.docs import build as site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class SiteHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SiteHandler, directory=os.fspath(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reader_searches_and_follows_a_link(browser: "Browser", address: str) -> None:
    page, requested = browser.new_page(), list[str]()  # the search notes what it does: no complaint
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{address}/index.html")
    page.get_by_placeholder("Search docs").fill("drain")
    page.keyboard.press("Enter")
    found = page.locator("#mkdocs-search-results").get_by_role("link", name="Pause, drain, resume").first
    found.click()
    page.get_by_role("heading", name="Pause, drain, resume").wait_for()
    assert page.url.startswith(f"{address}/operations.html")
    page.locator("nav a[href='webhooks.html']").first.click()
    page.wait_for_url(f"{address}/webhooks.html")
    page.close()
    assert f"{address}/search/worker.js" in requested
    assert [each for each in requested if not each.startswith((address, "data:"))] == []
