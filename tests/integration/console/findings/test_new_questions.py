"""New questions without script: documents first, then questions and their estimate, then the start, once."""

import httpx2
import pytest
from lxml.html import HtmlElement
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from asking.pages import LIST, QUESTIONS, completed
from console_pages.browser import PROBE, SAME_ORIGIN, Browser, checked, words
from document_support import Extractor
from jobs import ids
from jobs.models import Summary
from jobs.prompts.tokenizer import Tokenizer
from summary_support import ready_document

NEW = f"{LIST}/new"


def uploaded(browser: Browser, **files: bytes) -> httpx2.Response:
    (token,) = set(browser.page(NEW).xpath("//input[@name='csrf']/@value"))
    sent = [("files", (f"{name}.txt", content)) for name, content in files.items()]
    return browser.client.post(NEW, data={"csrf": token}, files=sent, headers=SAME_ORIGIN)


def fields_of(page: HtmlElement) -> dict[str, str]:
    """The form of the draft as a browser sends it."""
    (form,) = page.xpath("//form[@id='draft']")
    return dict(form.form_values())


def asked(sessions: sessionmaker[Session]) -> list[Summary]:
    with sessions() as session:
        return list(session.scalars(select(Summary).order_by(Summary.id)))


def test_files_are_uploaded_asked_estimated_and_started_once(
    visitor: Browser, sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    draft = uploaded(visitor, a=b"The rent is 900 euros.", b=b"The deposit is 2 euros.").headers["location"]
    assert draft.startswith(f"{NEW}?of=")
    assert "2 of 2 left" in words(visitor.page(draft))
    Extractor(sessions, tokenizer).run_once()
    page = visitor.page(draft)
    assert not page.xpath("//dl[@class='figures']"), "nothing is asked yet"
    assert not page.xpath("//*[@role='alert']")
    lines = f"  {QUESTIONS[0]}\r\n\r\n{QUESTIONS[1]}\r\n"
    fields = fields_of(page) | {"questions": lines, "priority": "high", "custom_id": "mine", "length": "100"}
    estimate = visitor.post(f"{NEW}/estimate", **fields)
    figures = checked(estimate).xpath("//dl[@class='figures']/div")
    assert ("jobs", "4") in [(words(each[0]), words(each[1])) for each in figures]
    for _ in range(2):
        started = visitor.post(f"{NEW}/start", **fields)
        assert started.status_code == 303
    made = asked(sessions)
    assert [(each.questions, each.rank, each.custom_id, each.length) for each in made] == [
        (QUESTIONS, 1, "mine", 100)
    ] * 2
    assert started.headers["location"] == f"{LIST}/{ids.answers_id(made[0].id)}/table"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"questions": "\n \n"}, "questions: "),
        ({"questions": "a?\na?"}, "the one at 1 repeats"),
        ({"questions": "\n".join(f"{number}?" for number in range(101))}, "at most 100"),
        ({"questions": "w" * 2001}, "2000"),
        ({"questions": "\n".join(f"{number}{'я' * 1900}" for number in range(10))}, ""),
        ({"length": "9"}, "length: "),
        ({"length": "many"}, "length: Must be a number."),
        ({"chunk_tokens": "1"}, "chunk_tokens: "),
    ],
)
def test_a_wrong_question_is_named_and_nothing_typed_is_lost(
    visitor: Browser, sessions: sessionmaker[Session], fields: dict[str, str], expected: str
) -> None:
    with sessions.begin() as session:
        name = ids.document_id(ready_document(session, "a text").id)
    given = fields_of(visitor.page(f"{NEW}?document={name}"))
    given |= {"questions": f"why {PROBE}?", "custom_id": "kept"} | fields
    answer = visitor.post(f"{NEW}/start", **given)
    if not expected:
        assert answer.status_code == 303, "as long as a request may be, in any script"
        return
    assert answer.status_code == 400
    page = checked(answer)
    assert expected in words(page.xpath("//*[@role='alert']")[0])
    kept = fields_of(page)
    assert (kept["questions"].split(), kept["custom_id"]) == (given["questions"].split(), "kept")
    assert asked(sessions) == []


def test_earlier_questions_are_asked_again_of_the_same_documents(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    first, _ = completed(sessions, "one", "two", questions=[f"why {PROBE}?", "how?"], length=77)
    fields = fields_of(visitor.page(f"{NEW}?like={first}"))
    assert (fields["questions"], fields["length"]) == (f"why {PROBE}?\nhow?", "77")
    assert visitor.post(f"{NEW}/start", **fields).status_code == 303
    made = asked(sessions)
    assert len(made) == 4
    assert {tuple(each.questions or ()) for each in made} == {(f"why {PROBE}?", "how?")}


def test_others_and_readers_ask_nothing(
    visitor: Browser, reader: Browser, stranger: Browser, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        name = ids.document_id(ready_document(session, "a secret").id)
    (mine,) = completed(sessions, "b")
    reader.page(NEW, status=403)
    for verb in ("estimate", "start"):
        assert reader.post(f"{NEW}/{verb}").status_code == 403
    fields = fields_of(visitor.page(f"{NEW}?document={name}")) | {"questions": "why?"}
    theirs = fields_of(stranger.page(f"{NEW}?document={name}")) | {"of": fields["of"], "questions": "why?"}
    assert stranger.post(f"{NEW}/start", **theirs).status_code == 400
    stranger.page(f"{NEW}?like={mine}", status=404)
    for wrong in ("of=x", "of=%FF", "document=doc_x", "like=x"):
        visitor.page(f"{NEW}?{wrong}", status=400)
    assert len(asked(sessions)) == 1
