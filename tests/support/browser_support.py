"""A real browser: Debian's headless Chromium from the user's cache, driven by Playwright on loopback."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support import PATIENCE, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup_browser.sh"
# Names the folder in which `scripts.testing.run_tests` keeps a fetch's log, and its exit status at the end.
FETCH = "BROWSER_FETCH"
FETCH_SECONDS = 600
MISSING = "NO BROWSER HERE, and no page of the console is tested in one"
LOOPBACK = "127.0.0.1"
ANOTHER_SITE = "127.0.0.2"


@cache
def folder() -> Path:
    """Return the browser's folder in the cache, which is missing until it has been fetched."""
    command = [str(SCRIPT), "--folder"]
    return Path(
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    )


@cache
def missing() -> str | None:
    """Wait for a running fetch and return why there is no browser; None if there is one."""
    if folder().is_dir():
        return None
    if FETCH not in os.environ:
        return f"{MISSING}; `make browser` fetches it, without root"
    fetch = Path(os.environ[FETCH])

    def is_over() -> bool:
        return folder().is_dir() or (fetch / "status").exists()

    try:
        eventually(is_over, timeout=FETCH_SECONDS, interval=0.2)
    except AssertionError:
        return f"{MISSING}: it was not fetched within {FETCH_SECONDS} s"
    if folder().is_dir():
        return None
    lines = (fetch / "log").read_text(errors="replace").split("\n")
    return f"{MISSING}: {next(filter(None, reversed(lines)), 'the fetch printed nothing')}"


@contextmanager
def running_browser() -> Iterator["Browser"]:
    """A browser as long as the context lasts. Its thread has an event loop meanwhile: no `asyncio.run`."""
    if str(folder() / "python") not in sys.path:
        sys.path.append(str(folder() / "python"))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=folder() / "chromium",
            chromium_sandbox=os.geteuid() != 0,  # Chromium refuses its sandbox to root
            # No name and no address but these is ever found; a proxy would look names up by itself.
            args=[
                f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {LOOPBACK}, EXCLUDE {ANOTHER_SITE}",
                "--no-proxy-server",
            ],
            timeout=PATIENCE * 1000,
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: "Browser", *, status: int | None = None, **options: object) -> Iterator["Page"]:
    """A page of its own profile; at the end the browser has complained about nothing that it showed.

    Args:
        browser: that opens it.
        status: that pages of this test may have, an error's; the browser notes each of them.
        options: of the profile, such as `color_scheme` and `viewport`.
    """
    complaints: list[str] = []

    def hear(message: "ConsoleMessage") -> None:
        if status is None or f"the server responded with a status of {status} " not in message.text:
            complaints.append(f"{message.type}: {message.text}")

    def note_failure(request: "Request") -> None:
        # A page that is left ends its stream, a click overtakes a reload, a later estimate an earlier one.
        is_replaceable = request.url.partition("?")[0].endswith(("/live", "/estimate"))
        is_left = is_replaceable or request.is_navigation_request()
        if request.failure != "net::ERR_ABORTED" or not is_left:
            complaints.append(f"{request.failure}: {request.url}")

    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("requestfailed", note_failure)
    try:
        yield page
    finally:
        context.close()
    if complaints:
        raise AssertionError("\n".join(complaints))


# All other results are thousands of unused nodes.
_FIND_VIOLATIONS: Final = "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"


def violations(page: "Page") -> list[str]:
    """What axe-core finds wrong with the page, best practices included.

    A click returns before the page that it leads to is there: axe-core fails on one that goes away under it.
    """
    from playwright.sync_api import Error

    for is_last in (False, False, True):
        page.wait_for_load_state()
        try:
            # Past the page's policy, which forbids it to the page.
            if page.evaluate("typeof axe") == "undefined":
                page.evaluate((folder() / "axe.min.js").read_text())
            found = page.evaluate(_FIND_VIOLATIONS)
            break
        except Error:
            if is_last:
                raise
    return [f"{each['id']} ({each['help']}): {node['html']}" for each in found for node in each["nodes"]]
