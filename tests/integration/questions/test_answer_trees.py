"""Answers from question to end: planned, asked of every part, joined, settled with pages and quotes."""

from itertools import pairwise
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import ask, asked_of, look_up, reply, run_jobs, seen, settle_all
from jobs import questions, summaries
from jobs.database import database_now
from jobs.database.paging import Range
from jobs.engines import registry
from jobs.models import DEFAULT_TENANT, DocumentFinding, Job, PromptText, Summary, WebhookEvent
from jobs.prompts import store
from jobs.prompts.guides import Guide
from jobs.questions.settling import ready_to_settle, settle
from jobs.states.summary import Purpose
from summary_support import (
    SMALL,
    claim_next,
    complete,
    failed_document,
    nodes_of,
    plan_all,
    prepare_all,
    ready_document,
    text_of,
)
from support import ENGINE, MODEL, register_engine

QUESTIONS = ["What is the rent?", "What is the notice period?", "What is the colour of the sky?"]
SHORT = "The rent is 900 euros. The notice period is three months."


def long_text() -> tuple[str, list[int]]:
    """A text of several parts on pages of about a hundred words; facts are at both ends."""
    body = f"{SHORT.split('. ', maxsplit=1)[0]}.\n\n{text_of(1200)}\n\nThe notice period is three months."
    return body, [0, *(body.index(f"w{number} ") for number in range(100, 1200, 100))]


def planned(session: Session, body: str, *, pages: list[int] | None = None, **fields: object) -> Summary:
    register_engine(session, capacity=SMALL)
    document = ready_document(session, body, pages=pages)
    (asked,) = ask(session, document, questions_=QUESTIONS, length=64, **fields)
    plan_all(session)
    session.refresh(asked)
    return asked


def test_a_document_that_fits_is_asked_everything_as_a_whole(session: Session) -> None:
    asked = planned(session, SHORT)
    nodes = nodes_of(session, asked)
    assert [(node.kind, node.question, job.task) for node, job in nodes] == [
        ("whole", place, "answer_whole") for place in range(3)
    ]
    prompts = run_jobs(session)
    assert [asked_of(each)[1] for each in prompts] == QUESTIONS
    session.refresh(asked)
    assert asked.state == "running", "its jobs have ended, and what they said is not stored yet"
    assert settle_all(session) == 1
    found = seen(session, asked)
    assert found["state"] == "completed"
    assert [(each["found"], each["answer"], each["quote_in_text"]) for each in found["answers"]] == [
        (True, "900 euros", True),
        (True, "three months", True),
        (False, None, None),
    ]
    first = found["answers"][0]
    assert SHORT[first["start"] : first["end"]] == first["quote"] == "The rent is 900 euros."
    assert found["progress"]["completed"] == found["plan"]["jobs"] == 3
    assert found["plan"]["chunks"] == 1
    assert settle_all(session) == 0
    (event,) = session.scalars(select(WebhookEvent).where(WebhookEvent.summary_id == asked.id)).all()
    data: Any = (event.payload or {})["data"]
    assert (event.type, data["object"]) == ("answers.completed", "answers")
    assert data["result_url"] == f"/v1/answers/{found['id']}"


def test_a_long_document_is_asked_part_by_part_and_the_answers_are_joined(session: Session) -> None:
    body, pages = long_text()
    asked = planned(session, body, pages=pages)
    nodes = nodes_of(session, asked)
    plan: Any = asked.plan
    num_parts = plan["chunks"]
    assert num_parts > 2
    assert len(nodes) == plan["jobs"] >= 3 * (num_parts + 1)
    prompts = run_jobs(session)
    parts = [asked_of(each) for each in prompts if "You join answers" not in each]
    texts = [material for material, _ in parts]
    assert len({*texts}) == num_parts
    num_changes = sum(before != after for before, after in pairwise(texts))
    assert num_changes == num_parts - 1, "each part was asked everything before the next one"
    settle_all(session)
    rent, notice, sky = seen(session, asked)["answers"]
    assert (rent["answer"], rent["pages"], rent["quote_in_text"]) == ("900 euros", [1, 1], True)
    assert (notice["answer"], notice["pages"]) == ("three months", [len(pages), len(pages)])
    assert body[notice["start"] : notice["end"]] == "The notice period is three months."
    assert (sky["found"], sky["answer"], sky["pages"], sky["error"]) == (False, None, None, None)


def test_a_part_that_fails_is_named_and_holds_up_no_other_question(session: Session) -> None:
    body, pages = long_text()
    asked = planned(session, body, pages=pages)

    def script(material: str, question: str) -> str | None:
        return None if question == QUESTIONS[1] and "w600 " in material else look_up(material, question)

    run_jobs(session, script)
    settle_all(session)
    found = seen(session, asked)
    assert found["state"] == "completed"
    rent, notice, _ = found["answers"]
    assert rent["gaps"] == []
    (gap,) = notice["gaps"]
    assert "w600 " in body[gap["start"] : gap["end"]]
    assert gap["pages"][0] <= 7 <= gap["pages"][1]
    assert gap["error"]["code"] == "invalid_output"
    assert notice["answer"] == "three months"
    assert found["progress"]["failed"] == 1


def test_one_question_that_fails_leaves_the_others_answered(session: Session) -> None:
    asked = planned(session, SHORT)

    def script(material: str, question: str) -> str | None:
        return None if question == QUESTIONS[0] else look_up(material, question)

    run_jobs(session, script)
    settle_all(session)
    found = seen(session, asked)
    assert found["state"] == "completed"
    rent, notice, _ = found["answers"]
    assert (rent["found"], rent["answer"], rent["error"]["code"]) == (None, None, "invalid_output")
    assert notice["answer"] == "three months"


def test_answers_fail_if_no_question_could_be_asked_or_the_document_has_no_text(session: Session) -> None:
    asked = planned(session, SHORT)
    run_jobs(session, lambda *_: None)
    settle_all(session)
    session.refresh(asked)
    assert (asked.state, (asked.error or {})["code"]) == ("failed", "invalid_output")
    (unreadable,) = ask(session, failed_document(session), questions_=QUESTIONS)
    plan_all(session)
    session.refresh(unreadable)
    assert (unreadable.state, (unreadable.error or {})["code"]) == ("failed", "document_corrupt")


def test_a_quote_that_is_not_in_the_text_is_told(session: Session) -> None:
    asked = planned(session, SHORT)
    run_jobs(session, lambda *_: reply("900 euros", "the rent was 900 euros"))
    settle_all(session)
    first = seen(session, asked)["answers"][0]
    assert (first["answer"], first["quote_in_text"], first["start"]) == ("900 euros", False, None)


def test_every_job_must_reply_in_the_form_and_is_asked_in_words_where_no_engine_guides(
    session: Session,
) -> None:
    def form_of(asked: Summary) -> tuple[Guide, bool]:
        (_, job), *_ = nodes_of(session, asked)
        assert job.guide_id is not None
        return Guide.read(store.load(session, job.guide_id).canonical), job.is_whole

    now = database_now(session)
    registry.register(session, ENGINE, MODEL, SMALL, now=now, takes={"guided_json", "temperature"})
    (guided,) = ask(session, ready_document(session, SHORT), questions_=QUESTIONS)
    plan_all(session)
    guide, is_whole = form_of(guided)
    assert (guide.kind, guide.in_words, is_whole) == ("guided_json", False, True)
    assert [*guide.schema["properties"]] == ["found", "answer", "quote"]
    registry.register(session, ENGINE, MODEL, SMALL, now=now, takes={"temperature"})
    (worded,) = ask(session, ready_document(session, SHORT + " "), questions_=QUESTIONS)
    plan_all(session)
    guide, is_whole = form_of(worded)
    assert (guide.in_words, is_whole) == (True, False)


def test_a_second_attempt_takes_the_place_of_a_job_that_an_engine_lost(session: Session) -> None:
    asked = planned(session, SHORT)
    failures = iter([True])

    def script(material: str, question: str) -> str | None:
        return None if question == QUESTIONS[0] and next(failures, False) else look_up(material, question)

    run_jobs(session, script)
    settle_all(session)
    found = seen(session, asked)
    assert [each["answer"] for each in found["answers"]] == ["900 euros", "three months", None]
    assert found["progress"]["failed"] == 0


def test_answers_are_no_summaries_and_summaries_no_answers(session: Session) -> None:
    asked = planned(session, SHORT)

    everything = Range(DEFAULT_TENANT, None, 20)
    assert summaries.list_summaries(session, summaries.SummaryFilter(), everything).items == []
    listed = questions.list_answers(session, summaries.SummaryFilter(), everything).items
    assert [each.id for each in listed] == [asked.id]


def test_cancelled_answers_end_with_their_jobs_and_are_deleted_with_them(session: Session) -> None:
    body, pages = long_text()
    asked = planned(session, body, pages=pages)
    prepare_all(session)
    claimed = claim_next(session)
    assert claimed is not None
    summaries.cancel(session, asked.id, tenant_id=DEFAULT_TENANT, purpose=Purpose.ANSWERS)
    while summaries.stop_jobs(session, asked.id, tenant_id=DEFAULT_TENANT):
        pass
    complete(session, claimed, reply())
    session.refresh(asked)
    assert asked.state == "cancelled"
    assert settle_all(session) == 0
    questions.remove(session, asked.id, tenant_id=DEFAULT_TENANT)
    while summaries.sweep(session):
        pass
    for table in (Job, DocumentFinding, Summary, PromptText):
        assert session.scalar(select(func.count()).select_from(table)) == 0, table


def test_findings_belong_to_their_tenant_alone(session: Session) -> None:
    asked = planned(session, SHORT)
    run_jobs(session)
    settle_all(session)
    assert asked.purpose == Purpose.ANSWERS
    policies = text("SELECT count(*) FROM pg_policies WHERE tablename = 'findings'")
    assert session.scalar(policies)


def test_two_workers_settle_answers_once(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        planned(session, SHORT)
        run_jobs(session)
    with sessions() as one, sessions() as other:
        ready = one.scalars(ready_to_settle()).all()
        assert len(ready) == 1
        assert settle(one, ready) == 1
        patience = one.scalar(text("SHOW idle_in_transaction_session_timeout"))
        assert patience == "10min", "a long text takes long to search"
        assert settle(other, ready) == 0, "somebody settles it"
        one.commit()
        other.commit()
        assert settle(other, ready) == 0, "it is settled"
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(DocumentFinding)) == 3
        ends = select(func.count(WebhookEvent.summary_id))
        assert session.scalar(ends) == 1
