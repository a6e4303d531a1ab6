"""Extractions from schema to end: planned, every part read, joined by rules, settled with quotes."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import settle_all
from asking.fields import SCHEMA, asked_of, extract, look_up, reply, run, seen
from jobs import extractions, questions, summaries
from jobs.database import database_now
from jobs.database.paging import Range
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.models import DEFAULT_TENANT, DocumentFinding, Job, PromptText, Summary, WebhookEvent
from jobs.prompts import store
from jobs.prompts.guides import Guide
from jobs.questions.settling import ready_to_settle, settle
from jobs.states.summary import JoinRule, Purpose
from summary_support import failed_document, nodes_of, plan_all, ready_document, text_of
from support import ENGINE, MODEL, register_engine

SHORT = "The rent is 900. The parties are Ada and Bob. The fee is 5."
SMALL = Capacity(max_batch_size=4, max_blocks=64, tokens_per_block=64, max_input_len=900, max_seq_len=1024)


def long_text() -> tuple[str, list[int]]:
    """A text of several parts on pages of about a hundred words; facts are at both ends."""
    body = f"{SHORT}\n\n{text_of(1200)}\n\nThe parties are bob and Cy. The fee is 7. The notice is a week."
    return body, [0, *(body.index(f"w{number} ") for number in range(100, 1200, 100))]


def planned(session: Session, body: str, *, pages: list[int] | None = None, **fields: Any) -> Summary:  # noqa: ANN401  # of `extract`
    register_engine(session, capacity=SMALL)
    (made,) = extract(session, ready_document(session, body, pages=pages), length=96, **fields)
    plan_all(session)
    session.refresh(made)
    return made


def test_a_document_that_fits_is_one_job_for_all_fields(session: Session) -> None:
    made = planned(session, SHORT)
    ((node, job),) = nodes_of(session, made)
    assert (node.kind, node.question, job.task) == ("whole", None, "extraction_whole")
    (prompt,) = run(session)
    listed = asked_of(prompt)[1]
    places = [listed.index(f'"{name}": {{') for name in SCHEMA["properties"]]
    assert places == sorted(places), "fields are told in their order"
    assert "x-longbatch-join" not in listed
    session.refresh(made)
    assert made.state == "running", "its job has ended, and what it said is not stored yet"
    assert settle_all(session) == 1
    found = seen(session, made)
    assert (found["state"], found["valid"], found["fault"], found["gaps"]) == ("completed", True, None, [])
    assert found["values"] == {"rent": 900, "notice": None, "parties": ["Ada", "Bob"], "fee": 5}
    assert [*found["values"]] == [each["field"] for each in found["fields"]] == [*SCHEMA["properties"]]
    (source,) = found["fields"][0]["sources"]
    assert SHORT[source["start"] : source["end"]] == source["quote"] == "The rent is 900."
    assert found["fields"][1] == {"field": "notice", "found": False, "value": None, "sources": []}
    assert found["plan"]["levels"] == found["plan"]["jobs"] == found["progress"]["completed"] == 1
    assert settle_all(session) == 0
    (event,) = session.scalars(select(WebhookEvent).where(WebhookEvent.summary_id == made.id)).all()
    data: Any = (event.payload or {})["data"]
    assert (event.type, data["object"], data["id"]) == ("extractions.completed", "extraction", found["id"])
    assert data["result_url"] == f"/v1/extractions/{found['id']}"


def test_parts_of_a_long_document_are_joined_by_the_rules_without_a_job(session: Session) -> None:
    body, pages = long_text()
    made = planned(session, body, pages=pages)
    nodes = nodes_of(session, made)
    plan: Any = made.plan
    assert len(nodes) == plan["chunks"] > 2
    assert {(node.kind, node.level, node.parent) for node, _ in nodes} == {("map", 0, None)}
    run(session)
    settle_all(session)
    found = seen(session, made)
    assert found["values"] == {"rent": 900, "notice": "a week", "parties": ["Ada", "Bob", "Cy"], "fee": 12}
    assert found["joins"] == {
        "rent": "most_frequent",
        "notice": "most_frequent",
        "parties": "all",
        "fee": "sum",
    }
    fee = found["fields"][3]["sources"]
    assert [(each["quote"], each["pages"]) for each in fee] == [
        ("The fee is 5.", [1, 1]),
        ("The fee is 7.", [len(pages), len(pages)]),
    ]
    assert all(each["quote_in_text"] for each in fee)


def test_rules_of_the_request_decide(session: Session) -> None:
    body, pages = long_text()
    made = planned(session, body, pages=pages, joins={"fee": JoinRule.FIRST, "parties": JoinRule.FIRST})
    run(session)
    settle_all(session)
    values = seen(session, made)["values"]
    assert (values["fee"], values["parties"]) == (5, ["Ada", "Bob"])


def test_a_row_that_is_not_valid_is_named_with_the_reason(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    bodies = ["The fee is 5.", SHORT, "The rent is 0. The fee is 1."]
    made = extract(session, *(ready_document(session, body) for body in bodies), length=96)
    plan_all(session)
    run(session)
    assert settle_all(session) == 3
    missing, good, below = (seen(session, each) for each in made)
    assert [each["state"] for each in (missing, good, below)] == ["completed"] * 3
    assert (missing["valid"], good["valid"], below["valid"]) == (False, True, False)
    assert '"rent" is a required property' in missing["fault"]
    assert missing["values"] == {"notice": None, "fee": 5}
    assert "at /rent" in below["fault"]
    body, pages = long_text()
    (many,) = extract(session, ready_document(session, body, pages=pages), length=96)
    plan_all(session)
    four = [["a"], ["b", "c"], ["d"]]
    said = iter([reply(rent=(1, ""), parties=(value, "")) for value in four])
    run(session, lambda *_: next(said, reply()))
    settle_all(session)
    found = seen(session, many)
    assert (found["values"]["parties"], found["valid"]) == (["a", "b", "c", "d"], False), (
        "joined lists are checked"
    )
    assert "at /parties" in found["fault"]


def test_a_part_that_fails_is_a_gap_and_the_others_count(session: Session) -> None:
    body, pages = long_text()
    made = planned(session, body, pages=pages)
    run(session, lambda material, _: None if "w600 " in material else look_up(material, _))
    settle_all(session)
    found = seen(session, made)
    assert (found["state"], found["values"]["fee"]) == ("completed", 12)
    (gap,) = found["gaps"]
    assert "w600 " in body[gap["start"] : gap["end"]]
    assert gap["error"]["code"] == "invalid_output"
    assert found["progress"]["failed"] == 1


def test_an_extraction_fails_if_nothing_could_be_read(session: Session) -> None:
    made = planned(session, SHORT)
    run(session, lambda *_: None)
    settle_all(session)
    found = seen(session, made)
    assert (found["state"], found["error"]["code"]) == ("failed", "invalid_output")
    assert (found["valid"], found["values"], found["fields"]) == (None, None, [])
    (unreadable,) = extract(session, failed_document(session), length=96)
    plan_all(session)
    found = seen(session, unreadable)
    assert (found["state"], found["error"]["code"], found["gaps"]) == ("failed", "document_corrupt", [])


def test_a_second_attempt_takes_the_place_of_a_job_that_an_engine_lost(session: Session) -> None:
    made = planned(session, SHORT)
    failures = iter([True])
    run(session, lambda *asked: None if next(failures, False) else look_up(*asked))
    settle_all(session)
    found = seen(session, made)
    assert (found["values"]["rent"], found["progress"]["failed"]) == (900, 0)


def test_engines_are_held_to_the_form_of_a_reply_where_they_guide(session: Session) -> None:
    now = database_now(session)
    for takes, in_words in (({"guided_json", "temperature"}, False), ({"temperature"}, True)):
        registry.register(session, ENGINE, MODEL, SMALL, now=now, takes=takes)
        (made,) = extract(session, ready_document(session, f"{SHORT} {in_words}"), length=96)
        plan_all(session)
        ((_, job),) = nodes_of(session, made)
        assert job.guide_id is not None
        guide = Guide.read(store.load(session, job.guide_id).canonical)
        assert (guide.in_words, job.is_whole) == (in_words, not in_words)
        assert [*guide.schema["properties"]] == [*SCHEMA["properties"]]
        rent = guide.schema["properties"]["rent"]["properties"]
        assert [*rent] == ["quote", "value"]
        assert rent["value"]["anyOf"] == [SCHEMA["properties"]["rent"], {"type": "null"}]


def test_extractions_are_neither_summaries_nor_answers(session: Session) -> None:
    made = planned(session, SHORT)
    everything = Range(DEFAULT_TENANT, None, 20)
    assert summaries.list_summaries(session, summaries.SummaryFilter(), everything).items == []
    assert questions.list_answers(session, summaries.SummaryFilter(), everything).items == []
    listed = extractions.list_extractions(session, summaries.SummaryFilter(), everything).items
    assert [each.id for each in listed] == [made.id]


def test_a_cancelled_extraction_ends_with_its_jobs_and_is_deleted_with_them(session: Session) -> None:
    body, pages = long_text()
    made = planned(session, body, pages=pages)
    summaries.cancel(session, made.id, tenant_id=DEFAULT_TENANT, purpose=Purpose.EXTRACTION)
    while summaries.stop_jobs(session, made.id, tenant_id=DEFAULT_TENANT):
        pass
    session.refresh(made)
    assert made.state == "cancelled"
    assert settle_all(session) == 0
    extractions.remove(session, made.id, tenant_id=DEFAULT_TENANT)
    while summaries.sweep(session):
        pass
    for table in (Job, DocumentFinding, Summary, PromptText):
        assert session.scalar(select(func.count()).select_from(table)) == 0, table


def test_a_worker_that_knows_no_extractions_leaves_them_to_others(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        planned(session, SHORT)
        run(session)
    with sessions.begin() as session:
        ready = session.scalars(ready_to_settle()).all()
        assert len(ready) == 1
        assert settle(session, ready) == 0
    with sessions.begin() as session:
        assert settle_all(session) == 1
