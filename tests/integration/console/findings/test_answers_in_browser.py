"""Answers in a real browser: questions are asked, watched to their end, and read beside their quotes."""

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from asking.answers import look_up, reply, run_jobs, settle_all
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
LEASES = [
    (
        "Lease 4711",
        (
            "Lease of the flat at the harbour. The rent is 900 euros a month. It is due on the third working"
            " day. The notice period is three months to the end of a quarter. The deposit is two rents. "
        ),
    ),
    (
        "Lease 4712",
        "Lease of the shop at the square. The rent is 2,400 euros a month. Pets are not mentioned. ",
    ),
]
QUESTIONS = "What is the rent?\nWhat is the notice period?\nWhat is the name of the cat?"


def looked_at(page: "Page", name: str, look: dict[str, Any]) -> None:
    """The page breaks no rule, fits the screen, and is kept as a picture."""
    assert violations(page) == []
    check_width(page)
    keep(page, name, look)


def script(text: str, question: str) -> str | None:
    """A model that copies all but one quote."""
    if "notice" in question and "notice period" in text:
        return reply("Three months to the end of a quarter.", "a period of notice of three months")
    return look_up(text, question)


@looks
def test_questions_are_asked_watched_and_read_beside_their_quotes(
    browser: "Browser", server: ApiProcess, sessions: sessionmaker[Session], look: dict[str, Any]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=CAPACITY, model=MODEL)
        names = []
        for title, text in LEASES:
            document = ready_document(session, text, pages=[0, 34])
            document.title = f"{title}{PROBE if name_of(look) == 'phone' else ''}"
            names.append(ids.document_id(document.id))
    with opened(browser, **look) as page:
        page.goto(f"{server.url}/console/answers/new?document={names[0]}")
        page.get_by_label("API key").fill(API_KEY)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("One question a line").fill(QUESTIONS)
        page.get_by_role("button", name="Estimate again").click()
        page.locator("#estimate").get_by_text("done in about").wait_for()
        looked_at(page, "new-questions", look)
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_text("The questions are submitted.").wait_for()
        with sessions.begin() as session:
            plan_all(session)
        page.get_by_text("0 of 3 jobs").wait_for()
        assert violations(page) == []
        page.get_by_role("link", name="Show the questions and answers").click()
        with sessions.begin() as session:
            run_jobs(session, script)
        with sessions.begin() as session:
            settle_all(session)
        page.get_by_text("900 euros a month", exact=True).wait_for()
        page.get_by_text("not in the text").wait_for()
        looked_at(page, "answers", look)
        page.get_by_role("link", name="1", exact=True).click()
        page.locator("mark").get_by_text("The rent is 900 euros a month").wait_for()
        looked_at(page, "question", look)
        page.goto(f"{server.url}/console/answers")
        page.get_by_role("link", name="Lease 4711").wait_for()
        looked_at(page, "answers-list", look)
        page.get_by_role("link", name="Lease 4711").click()
        page.get_by_role("link", name="Delete them").click()
        page.get_by_role("button", name="Delete the answers").wait_for()
        assert violations(page) == []
