"""Extractions in a real browser: fields are asked for, watched to their end, and read with their quotes."""

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from asking.answers import settle_all
from asking.fields import run
from browser_support import opened, violations
from console_pages.browser import PROBE
from console_pages.screenshots import check_width, keep, looks, name_of
from jobs import ids
from jobs.engines.capacity import Capacity
from jobs.settings import EngineSettings
from summary_support import plan_all, ready_document
from support import API_KEY, register_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODEL = EngineSettings().model
CAPACITY = Capacity(
    max_batch_size=4, max_blocks=192, tokens_per_block=64, max_input_len=6000, max_seq_len=8192
)
LEASE = (
    "Lease of the flat at the harbour between Ada Lovelace and Bo Ek. The rent is 900 euros a month. It is"
    " due on the third working day. The notice period is three months to the end of a quarter. "
)
SCHEMA = {
    "type": "object",
    "properties": {
        "parties": {"type": "array", "items": {"type": "string"}},
        "rent": {"type": "number", "description": "Monthly rent in euros"},
        "notice": {"type": ["string", "null"]},
        "deposit": {"type": ["number", "null"]},
    },
    "required": ["rent"],
}
REPLY = {
    "parties": {
        "value": ["Ada Lovelace", "Bo Ek"],
        "quote": "Lease of the flat at the harbour between Ada Lovelace and Bo Ek.",
    },
    "rent": {"value": 900, "quote": "The rent is 900 euros a month"},
    "notice": {"value": "Three months", "quote": "a period of notice of three months"},
    "deposit": {"value": None, "quote": ""},
}


def looked_at(page: "Page", name: str, look: dict[str, Any]) -> None:
    """The page breaks no rule, fits the screen, and is kept as a picture."""
    assert violations(page) == []
    check_width(page)
    keep(page, name, look)


@looks
def test_fields_are_asked_for_watched_and_read_with_their_quotes(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=CAPACITY, model=MODEL)
        document = ready_document(session, LEASE, pages=[0, 64])
        document.title = f"Lease 4711{PROBE if name_of(look) == 'phone' else ''}"
        name = ids.document_id(document.id)
    with opened(browser, **look) as page:
        page.goto(f"{server.url}/console/extractions/new?document={name}")
        page.get_by_label("API key").fill(API_KEY)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("JSON Schema").fill(json.dumps(SCHEMA, indent=2))
        page.get_by_role("button", name="Estimate again").click()
        page.locator("#estimate").get_by_text("done in about").wait_for()
        looked_at(page, "new-extraction", look)
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_text("The extraction is submitted.").wait_for()
        with sessions.begin() as session:
            plan_all(session)
        page.get_by_text("0 of 1 jobs").wait_for()
        assert violations(page) == []
        page.get_by_role("link", name="Show the values").click()
        page.get_by_role("link", name="Hide the values").wait_for()
        with sessions.begin() as session:
            run(session, lambda *_: json.dumps(REPLY))
        with sessions.begin() as session:
            settle_all(session)
        page.get_by_text("3 of 4 found").wait_for()
        page.get_by_text("not in the text").wait_for()
        looked_at(page, "extraction", look)
        page.goto(f"{server.url}/console/extractions")
        page.get_by_role("link", name="Lease 4711").wait_for()
        looked_at(page, "extractions-list", look)
        page.get_by_role("link", name="Lease 4711").click()
        page.get_by_role("link", name="Delete it").click()
        page.get_by_role("button", name="Delete the extraction").wait_for()
        assert violations(page) == []
