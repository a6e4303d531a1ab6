"""Lists, tables and files in which some rows cannot be read: they show the others, and all else of these."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import ColumnElement, update
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import LargeBinary

from api_server import REPOSITORY, ApiProcess, Serve, error_of
from asking import answers, fields
from asking.answers import settle_all
from batch_support import Service, lines
from console_pages.browser import browsing, every_route
from jobs import ids
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import Job, Summary, SummaryNode
from jobs.models.document import Document
from jobs.resealing.places import sealed_tables
from jobs.sealing.content import SEALED
from jobs.states.summary import NodeKind
from jobs.summaries.own_templates import OwnTemplate
from sealed.sealers import SEALS_OTHERWISE, VARIABLES
from summary_support import SMALL, create, plan_all, ready_document, run_to_end
from summary_support import planned as planned_summary
from support import register_engine, submit_one
from webhook_support import Receiver, add_endpoint

Sessions = sessionmaker[Session]
Damage = Callable[[Any, str], object]

CODE = "content_unreadable"
QUESTIONS: Final = ["What is the fee?", "What is the term?"]
TEXT: Final = "The fee is 7. The term is a year."
TEMPLATE: Final = OwnTemplate({NodeKind.WHOLE: "Summarize it."})


def of_a_missing_key(stored: Any, place: str) -> object:  # noqa: ANN401  # a type of columns
    match stored:
        case LargeBinary():
            return SEALS_OTHERWISE.seal_bytes(b"lost", place)
        case JSON() | JSONB():
            return SEALS_OTHERWISE.seal_json("lost", place)
    return SEALS_OTHERWISE.seal_text("lost", place)


def with_other_bytes(stored: Any, _: str) -> object:  # noqa: ANN401  # a type of columns
    return f"{SEALED}broken".encode() if isinstance(stored, LargeBinary) else f"{SEALED}broken"


def of_another_form(stored: Any, _: str) -> object:  # noqa: ANN401  # a type of columns
    match stored:
        case LargeBinary():
            return b"not compressed"
        case JSON() | JSONB():
            return 7
    return "plain"


DAMAGES: Final = [of_a_missing_key, with_other_bytes, of_another_form]


def damage(
    sessions: Sessions, how: Damage = of_a_missing_key, *, table: str | None = None, **which: object
) -> None:
    """Make the content of every row unreadable, or of some rows of a table."""
    num_damaged = 0
    with transaction(sessions) as session:
        for each in sealed_tables():
            if table not in (None, each.name):
                continue
            for place in each.places:
                column = each.rows.c[place.name]
                mine: list[ColumnElement[bool]] = [column.is_not(None)]
                mine += [each.rows.c[name] == value for name, value in which.items() if name in each.rows.c]
                broken = (
                    update(each.rows)
                    .where(*mine)
                    .values({column: how(place.stored, place.content.place if place.content else "")})
                )
                num_damaged += session.execute(broken).rowcount  # type: ignore[attr-defined]
    assert num_damaged


def make_each(sessions: Sessions, receiver: Receiver) -> None:
    """Make one of everything that has content, brought to its end."""
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, f"{TEXT} {uuid7()}")
        document.title = "The fee"
        create(session, document, instructions="Be brief.", focus="the fee", template=TEMPLATE)
        plan_all(session)
        run_to_end(session)
    ask(sessions)
    extract(sessions)
    Service(sessions).accepted(lines(2))
    Service(sessions).complete()
    add_endpoint(sessions, receiver.url(), events=("*",))
    with transaction(sessions) as session:
        submit_one(session)


def documents(session: Session, number: int) -> list[Document]:
    register_engine(session, capacity=SMALL)
    return [ready_document(session, f"{TEXT} {uuid7()}") for _ in range(number)]


def ask(sessions: Sessions, number: int = 1) -> list[UUID]:
    with transaction(sessions) as session:
        made = answers.ask(session, *documents(session, number), questions_=QUESTIONS)
        plan_all(session)
        answers.run_jobs(session)
        settle_all(session)
        return [each.id for each in made]


def extract(sessions: Sessions, number: int = 1) -> list[UUID]:
    with transaction(sessions) as session:
        made = fields.extract(session, *documents(session, number), length=96)
        plan_all(session)
        fields.run(session)
        settle_all(session)
        return [each.id for each in made]


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[ApiProcess]:
    with serve(**VARIABLES | {"LONGBATCH_LIMITS__MAX_REQUESTS": "1000000"}) as process:
        yield process


@pytest.fixture
def http(server: ApiProcess, sealed: Sessions) -> Iterator[httpx2.Client]:  # noqa: ARG001  # without jobs
    with server.client() as client:
        yield client


# Rows of these are made here; further ones have as many as are.
COUNTED: Final = {"summaries", "answers", "extractions", "documents", "batches", "webhook_endpoints"}


def listings() -> Iterator[tuple[str, dict[str, str]]]:
    """Every list of the API that needs no other id, with each of its boolean parameters off and on."""
    described = json.loads((REPOSITORY / "docs" / "openapi.json").read_text())
    for path, operations in described["paths"].items():
        if "{" in path or "get" not in operations:
            continue
        content = operations["get"]["responses"]["200"]["content"]
        name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        if "data" not in described["components"]["schemas"].get(name, {}).get("properties", {}):
            continue
        yield path, {}
        for parameter in operations["get"].get("parameters", []):
            if parameter["schema"].get("type") == "boolean":
                yield from ((path, {parameter["name"]: value}) for value in ("true", "false"))


def test_the_lists_and_their_switches_are_found() -> None:
    found = list(listings())
    assert {path for path, _ in found} >= {f"/v1/{name}" for name in COUNTED | {"jobs", "files", "audit"}}
    assert ("/v1/extractions", {"values": "true"}) in found


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("num_readable", [0, 1])
def test_every_list_shows_rows_that_cannot_be_read(
    http: httpx2.Client, sealed: Sessions, receiver: Receiver, how: Damage, num_readable: int
) -> None:
    make_each(sealed, receiver)
    damage(sealed, how)
    for _ in range(num_readable):
        make_each(sealed, receiver)
    faults = {}
    for path, chosen in listings():
        answer = http.get(path, params=chosen)
        if answer.status_code != 200:
            faults[path, str(chosen)] = answer.text
            continue
        num_rows = len(answer.json()["data"])
        if path.rpartition("/")[2] in COUNTED and num_rows < 1 + num_readable:
            faults[path, str(chosen)] = f"{num_rows} rows"
    assert faults == {}


@pytest.mark.parametrize("num_readable", [0, 1])
def test_every_list_of_the_console_shows_rows_that_cannot_be_read(
    server: ApiProcess, sealed: Sessions, receiver: Receiver, num_readable: int
) -> None:
    make_each(sealed, receiver)
    damage(sealed)
    for _ in range(num_readable):
        make_each(sealed, receiver)
    lists = {path for method, path in every_route() if method == "GET" and "{" not in path}
    with browsing(server) as visitor:
        found = {}
        for path in lists:
            with visitor.client.stream("GET", path) as answer:
                found[path] = answer.status_code
    forms = {path for path in lists if path.rpartition("/")[2] in {"new", "cancel"} or "/new/" in path}
    assert {path: status for path, status in found.items() if status >= 500} == {}
    assert {path for path in lists - forms if found[path] not in (200, 204)} <= {"/console"}


def test_a_list_shows_what_can_be_read_of_each_row(http: httpx2.Client, sealed: Sessions) -> None:
    broken, good = extract(sealed, 2)
    damage(sealed, table="findings", summary_id=broken)
    listed = {each["id"]: each for each in http.get("/v1/extractions?values=true").json()["data"]}
    assert listed[ids.extraction_id(good)]["values"]["fee"] == 7
    unread = listed[ids.extraction_id(broken)]
    assert (unread["state"], unread["values"], unread["fields"]) == ("completed", None, [])
    alone = http.get(f"/v1/extractions/{ids.extraction_id(broken)}")
    assert (alone.status_code, error_of(alone)["code"]) == (500, CODE)
    assert http.get(f"/v1/extractions/{ids.extraction_id(broken)}?values=false").status_code == 200


def test_a_summary_that_cannot_be_read_is_an_error_alone_and_a_row_in_a_list(
    http: httpx2.Client, sealed: Sessions
) -> None:
    with transaction(sealed) as session:
        summary = planned_summary(session, 100)
        run_to_end(session)
        summary_id, name = summary.id, ids.summary_id(summary.id)
        root = session.get_one(Summary, summary_id).root_job_id
    damage(sealed, table="results", job_id=root)
    (listed,) = http.get("/v1/summaries").json()["data"]
    assert (listed["id"], listed["state"], listed["summary"]) == (name, "completed", None)
    for chunks in ("true", "false"):
        alone = http.get(f"/v1/summaries/{name}?chunks={chunks}")
        assert (alone.status_code, error_of(alone)["code"]) == (500, CODE)


def test_a_chunk_that_cannot_be_read_has_an_error_and_hides_no_other(
    http: httpx2.Client, server: ApiProcess, sealed: Sessions
) -> None:
    with transaction(sealed) as session:
        summary = planned_summary(session, 1000)
        run_to_end(session)
        name = ids.summary_id(summary.id)
        leaf = session.get_one(SummaryNode, (summary.id, 0))
        job_id, parent = leaf.job_id, leaf.parent
    damage(sealed, table="results", job_id=job_id)
    found = http.get(f"/v1/summaries/{name}").json()
    assert found["summary"] == "a summary"
    first, *others = found["chunks"]
    assert (first["summary"], first["error"]["code"]) == (None, CODE)
    assert {(each["summary"], each["error"]) for each in others} == {("a summary", None)}
    for form in ("json", "md", "csv"):
        written = http.get(f"/v1/summaries/{name}/result?format={form}")
        assert (written.status_code, "a summary" in written.text) == (200, True), form
    with browsing(server) as visitor:
        page = visitor.page(f"/console/summaries/{name}/parts/{parent}?show=texts").text_content()
        assert "a summary" in page
        assert CODE in page


def test_quotes_of_a_document_that_cannot_be_read_are_looked_up_in_the_others(
    http: httpx2.Client, sealed: Sessions
) -> None:
    with transaction(sealed) as session:
        lost, kept = documents(session, 2)
        create(session, lost, kept, combine=True)
        plan_all(session)
        run_to_end(session, text='It says "The fee is 7".')
        lost_id, kept_id = lost.id, ids.document_id(kept.id)
    damage(sealed, table="document_texts", document_id=lost_id)
    (listed,) = http.get("/v1/summaries").json()["data"]
    (quote,) = http.get(f"/v1/summaries/{listed['id']}?quotes=true").json()["quotes"]
    assert (quote["document_id"], quote["quote_in_text"]) == (kept_id, True)


@pytest.mark.parametrize(
    ("make", "kind"), [(ask, "answers"), (extract, "extractions")], ids=["answers", "extractions"]
)
def test_tables_and_files_name_the_rows_that_cannot_be_read(
    server: ApiProcess, sealed: Sessions, make: Callable[..., list[UUID]], kind: str
) -> None:
    broken, good = make(sealed, 2)
    damage(sealed, table="findings", summary_id=broken)
    prefix = {"answers": ids.ANSWERS, "extractions": ids.EXTRACTION}[kind]
    for subject_id in (broken, good):
        address = f"/console/{kind}/{prefix.format(subject_id)}/table"
        with browsing(server) as visitor:
            for show in ("", "?show=answers", "?show=values"):
                visitor.page(address + show)
            table = visitor.client.get(f"{address}/result?format=csv").text
            listed = json.loads(visitor.client.get(f"{address}/result?format=json").text)
        assert CODE in table
        assert ",7," in table
        assert [prefix.parse(each["id"]) for each in listed] == [broken, good]
        assert CODE in json.dumps(listed[0])
        assert CODE not in json.dumps(listed[1])


def test_a_part_whose_reply_cannot_be_read_hides_no_other(server: ApiProcess, sealed: Sessions) -> None:
    (asked,) = ask(sealed)
    with sealed() as session:
        node = session.get_one(SummaryNode, (asked, 0))
        assert session.get_one(Job, node.job_id).state == "completed"
    damage(sealed, table="results", job_id=node.job_id)
    with browsing(server) as visitor:
        page = visitor.page(f"/console/answers/{ids.answers_id(asked)}/questions/1?show=texts").text_content()
    assert CODE in page
