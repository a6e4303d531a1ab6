"""Summaries in a real browser: files are dropped, estimated, started, watched, and read beside sources."""

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from browser_support import opened, violations
from console_pages.browser import PROBE
from console_pages.screenshots import LOOKS, check_width, keep, name_of
from document_support import Extractor, make_pdf, prose_page
from jobs import ids
from jobs.engines.capacity import Capacity
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings
from summary_support import (
    claim_next,
    complete,
    create,
    failed_document,
    plan_all,
    prepare_all,
    ready_document,
    text_of,
)
from support import API_KEY, register_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CAPACITY = Capacity(
    max_batch_size=4, max_blocks=192, tokens_per_block=64, max_input_len=6000, max_seq_len=8192
)
MODEL = EngineSettings().model
ANSWER = "The tide rises twice a day.\n\n- It is highest at new moon.\n- Boats leave with it."
# Files as a desktop drops them.
DROP = """([zone, files]) => {
  const transfer = new DataTransfer();
  for (const [name, bytes] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(bytes), (each) => each.charCodeAt(0))], name));
  }
  const event = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
  document.querySelector(zone).dispatchEvent(event);
}"""

looks = pytest.mark.parametrize("look", LOOKS, ids=name_of)


def sign_in(page: "Page", server: ApiProcess, address: str) -> None:
    page.goto(server.url + address)
    page.get_by_label("API key").fill(API_KEY)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()


def looked_at(page: "Page", name: str, look: dict[str, Any]) -> None:
    """The page breaks no rule, fits the screen, and is kept as a picture."""
    assert violations(page) == []
    check_width(page)
    keep(page, name, look)


def probe(look: dict[str, Any]) -> str:
    """Markup that must stay text; where pictures are kept, nothing."""
    return PROBE if name_of(look) == "phone" else ""


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def answer_next(sessions: sessionmaker[Session], text: str = ANSWER) -> bool:
    """The next job, if one waits, has this output."""
    with sessions.begin() as session:
        prepare_all(session)
        claimed = claim_next(session)
        if claimed is not None:
            complete(session, claimed, text)
        return claimed is not None


@looks
def test_dropped_documents_are_estimated_started_and_watched_to_their_end(
    browser: "Browser",
    server: ApiProcess,
    sessions: sessionmaker[Session],
    tokenizer: Tokenizer,
    look: dict[str, Any],
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=CAPACITY, model=MODEL)
    pages = [prose_page(number, 20) for number in range(1, 30)]
    files = [
        ("tides-2026.pdf", make_pdf(pages)),
        ("Letter to the harbour.md", b"# A letter\n\n" + b"The harbour is quiet. " * 80),
        (f"Notes{probe(look)[:25]}.txt", f"Notes {PROBE}. ".encode() * 20),
    ]
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/summaries/new")
        page.get_by_role("button", name="Upload and estimate").wait_for()
        looked_at(page, "new-summary", look)
        sent = [[name, encoded(content)] for name, content in files]
        page.evaluate(DROP, [".zone", sent])
        page.get_by_text("3 of 3 left").wait_for()
        assert violations(page) == []
        page.get_by_label("What matters most").fill("boats")
        Extractor(sessions, tokenizer).run_once()
        page.locator("#estimate .figures").wait_for()
        assert page.get_by_label("What matters most").input_value() == "boats"
        page.get_by_label("Style").select_option("bullets")
        page.get_by_label("One summary over all").check()
        page.get_by_role("button", name="Estimate again").click()
        page.locator("#estimate").get_by_text("done in about").wait_for()
        assert "/new?of=" in page.url, "the page was not left"
        looked_at(page, "estimate", look)
        page.get_by_label("One summary over all").uncheck()
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_text("3 summaries are submitted.").wait_for()
        with sessions.begin() as session:
            plan_all(session)
        page.get_by_text("0 of 10 jobs").wait_for()
        answer_next(sessions)
        page.get_by_text("1 of 10 jobs").or_(page.locator("tbody .state.completed")).first.wait_for()
        looked_at(page, "summaries", look)
        while answer_next(sessions):
            pass
        for number in range(3):
            page.locator("tbody .state.completed").nth(number).wait_for()
        page.get_by_role("link", name="tides-2026.pdf").click()
        page.get_by_role("heading", name="Summary of tides-2026.pdf").wait_for()
        page.locator("ul.tree ul.tree a").first.click()
        page.get_by_role("heading", name="Source").wait_for()
        page.get_by_text("Page number 1 ").or_(page.get_by_text("Page number 1\n")).first.wait_for()
        looked_at(page, "part", look)


@looks
def test_a_summary_grows_while_one_looks_and_its_texts_are_read(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=CAPACITY, model=MODEL)
        text = text_of(9000, name="word")
        document = ready_document(session, text, pages=list(range(0, len(text), 2500)))
        document.title = f"Almanac{probe(look)}"
        bad = failed_document(session)
        bad.filename = "torn.pdf"
        (summary,) = create(session, document, bad, combine=True, instructions=PROBE)
        summary.model = MODEL
        name = ids.summary_id(summary.id)
    with opened(browser, **look) as page:
        sign_in(page, server, f"/console/summaries/{name}")
        page.get_by_text("Not planned yet").wait_for()
        assert violations(page) == []
        with sessions.begin() as session:
            plan_all(session)
        page.locator("ul.tree").first.wait_for()
        for _ in range(3):
            answer_next(sessions, f"{ANSWER} {probe(look)}")
        page.locator("ul.tree .state.completed").nth(2).wait_for()
        page.locator("#progress-jobs progress").wait_for()
        looked_at(page, "summary-running", look)
        while answer_next(sessions, f"{ANSWER} {probe(look)}"):
            pass
        page.get_by_role("link", name="Show the summary").click()
        page.get_by_text("Boats leave with it").wait_for()
        looked_at(page, "summary", look)
        page.locator("ul.tree > li > a").first.click()
        page.get_by_role("heading", name="Parts", exact=True).wait_for()
        assert violations(page) == []


@looks
def test_documents_and_their_texts_break_no_rule(
    browser: "Browser",
    server: ApiProcess,
    sessions: sessionmaker[Session],
    look: dict[str, Any],
) -> None:
    with sessions.begin() as session:
        failed = failed_document(session)
        failed.filename = "torn.pdf"
        text = text_of(900, name="word")
        document = ready_document(session, text, pages=[0, 900, 900, 3000])
        document.filename, document.title, document.num_pages = "almanac.pdf", f"Almanac{probe(look)}", 4
        warning: dict[str, object] = {
            "code": "pages_without_text",
            "message": "1 pages have no text.",
            "pages": [2],
        }
        document.warnings = [warning]
    with opened(browser, **look) as page:
        sign_in(page, server, "/console/documents")
        page.get_by_role("link", name="torn.pdf").wait_for()
        looked_at(page, "documents", look)
        page.get_by_role("link", name="torn.pdf").click()
        page.get_by_text("it is broken").wait_for()
        assert violations(page) == []
        page.go_back()
        page.get_by_role("link", name="Almanac").click()
        page.get_by_role("link", name="Show the text").click()
        page.get_by_text("page 4").wait_for()
        looked_at(page, "document", look)
        page.get_by_role("link", name="Delete it").click()
        page.get_by_role("button", name="Delete the document").wait_for()
        assert violations(page) == []
