"""Summaries, answers and extractions whose content is sealed, and what becomes of one that cannot be read."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from asking import answers, fields
from asking.answers import settle_all
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import Job, Summary
from jobs.models.document import Document
from jobs.questions import queries as answer_queries
from jobs.sealing.content import ContentUnreadableError
from jobs.summaries import queries as summary_queries
from sealed.sealers import OPENS, Connect
from searching.stores import Marks, in_database
from summary_support import SMALL, claim_next, complete, create, plan_all, prepare_all, ready_document
from summary_support import planned as planned_summary
from support import register_engine

Sessions = sessionmaker[Session]

FEE, QUOTED = "appendectomy", "The fee is 1234567."
DOCUMENT = f"The diagnosis is {FEE}. {QUOTED}"
QUESTION = "What is the diagnosis?"
SUMMARY = "It is about laparoscopy."
SCHEMA = {"type": "object", "properties": {"fee": {"type": "integer", "description": FEE}}}
MARKS = Marks([FEE, "diagnosis", QUOTED, "carefully", "laparoscopy"])


def a_document(session: Session) -> Document:
    """Another one each time, as equal ones are one."""
    return ready_document(session, f"{DOCUMENT} {uuid7()}")


def ask(session: Session) -> UUID:
    (asked,) = answers.ask(session, a_document(session), questions_=[QUESTION])
    return asked.id


def extract(session: Session) -> UUID:
    (asked,) = fields.extract(session, a_document(session), schema=SCHEMA)
    return asked.id


def summarize(session: Session) -> UUID:
    document = a_document(session)
    (asked,) = create(session, document, instructions="Write carefully.", focus=f"the {FEE}")
    return asked.id


def run_answers(session: Session) -> None:
    answers.run_jobs(session)
    settle_all(session)


def run_fields(session: Session) -> None:
    fields.run(session, lambda *_: '{"fee": {"quote": "' + QUOTED + '", "value": 1234567}}')
    settle_all(session)


def run_summaries(session: Session) -> None:
    while True:
        prepare_all(session)
        claimed = claim_next(session)
        if claimed is None:
            return
        complete(session, claimed, SUMMARY)


def planned(sessions: Sessions, make: Callable[[Session], UUID]) -> UUID:
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        asked_id = make(session)
        plan_all(session)
        return asked_id


def whole(session: Session, asked_id: UUID) -> dict[str, Any]:
    asked = session.get_one(Summary, asked_id)
    match asked.purpose:
        case "answers":
            return answers.seen(session, asked)
        case "extraction":
            return fields.seen(session, asked)
    return {**summary_queries.describe(session, asked)}


@pytest.mark.parametrize(
    ("make", "run", "expected"),
    [
        (ask, run_answers, {"questions": [QUESTION], "answers": [FEE]}),
        (extract, run_fields, {"schema": SCHEMA, "values": {"fee": 1234567}}),
        (
            summarize,
            run_summaries,
            {
                "instructions": "Write carefully.",
                "focus": f"the {FEE}",
                "summary": SUMMARY,
            },
        ),
    ],
)
def test_no_row_shows_what_was_asked_of_a_document_and_found(
    sessions: Sessions,
    sealed: Sessions,
    connect: Connect,
    make: Callable[[Session], UUID],
    run: Callable[[Session], None],
    expected: dict[str, Any],
) -> None:
    asked = planned(sealed, make)
    with transaction(sealed) as session:
        run(session)
    assert in_database(sessions, MARKS) == set()
    for each in (sealed, connect(OPENS)):
        with each() as session:
            found = whole(session, asked)
        assert found["state"] == "completed"
        if "answers" in found:
            found["answers"] = [answer["answer"] for answer in found["answers"]]
        assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("make", [ask, extract, summarize])
def test_what_cannot_be_read_fails_when_it_is_planned_and_the_others_go_on(
    sealed: Sessions, otherwise: Sessions, make: Callable[[Session], UUID]
) -> None:
    with transaction(otherwise) as session:
        broken = make(session)
    good = planned(sealed, make)
    with sealed() as session:
        found = [session.get_one(Summary, each) for each in (broken, good)]
        assert [each.state for each in found] == ["failed", "running"]
        assert found[0].error is not None
        assert found[0].error["code"] == "content_unreadable"


def test_findings_that_cannot_be_read_are_an_error_and_the_list_is_none(
    sealed: Sessions, otherwise: Sessions
) -> None:
    asked = planned(otherwise, ask)
    good = planned(sealed, ask)
    with transaction(otherwise) as session:
        answers.run_jobs(session)
        settle_all(session)
    with sealed() as session:
        rows = [session.get_one(Summary, each) for each in (asked, good)]
        listed = answer_queries.describe(session, rows)
        assert [each["questions"] for each in listed] == [[], [QUESTION]]
        with pytest.raises(ContentUnreadableError):
            answers.seen(session, rows[0])


def test_what_cannot_be_settled_fails_and_the_others_are_settled(
    sealed: Sessions, otherwise: Sessions
) -> None:
    broken = planned(otherwise, ask)
    with transaction(otherwise) as session:
        answers.run_jobs(session)
    good = planned(sealed, ask)
    with transaction(sealed) as session:
        answers.run_jobs(session)
        assert settle_all(session) == 2
    with sealed() as session:
        found = [session.get_one(Summary, each) for each in (broken, good)]
        assert [each.state for each in found] == ["failed", "completed"]
        assert found[0].error is not None
        assert found[0].error["code"] == "content_unreadable"


def test_a_list_shows_a_summary_without_the_text_that_cannot_be_read(
    sealed: Sessions, otherwise: Sessions
) -> None:
    made = []
    for each in (otherwise, sealed):
        made.append(planned(each, summarize))
        with transaction(each) as session:
            run_summaries(session)
    with sealed() as session:
        rows = [session.get_one(Summary, each) for each in made]
        described = summary_queries.describe_each(session, rows)
        assert [each["summary"] for each in described] == [None, SUMMARY]
        assert [each["focus"] for each in described] == [None, f"the {FEE}"]
        with pytest.raises(ContentUnreadableError):
            summary_queries.describe(session, rows[0])


def test_a_part_that_cannot_be_read_is_a_gap_of_its_own_summary_alone(
    sealed: Sessions, otherwise: Sessions
) -> None:
    with transaction(sealed) as session:
        made = [planned_summary(session, num_words).id for num_words in (1000, 1001)]
        prepare_all(session)
    with transaction(otherwise) as session:
        claimed = claim_next(session)
        assert claimed is not None
        complete(session, claimed, "It is lost.")
        broken = session.get_one(Job, claimed.job.id).summary_id
        assert broken is not None
    with transaction(sealed) as session:
        run_summaries(session)
        described = summary_queries.describe_each(session, [session.get_one(Summary, each) for each in made])
        assert [each["state"] for each in described] == ["completed"] * 2
        gaps = {each: [gap["error"] for gap in of["gaps"]] for each, of in zip(made, described, strict=True)}
        assert [each and each["code"] for each in gaps.pop(broken)] == ["content_unreadable"] * 2
        assert [*gaps.values()] == [[]]
