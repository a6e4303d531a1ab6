"""A new extraction without script: a schema for documents, its estimate, the start, once; and its end."""

import json

import pytest
from lxml.html import HtmlElement
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from asking.field_pages import LIST, SHORT, address_of, completed, running, waiting
from asking.fields import SCHEMA
from console_pages.browser import PROBE, Browser, checked, words
from console_pages.checks import check_buttons, check_reader
from jobs import ids
from jobs.extractions.shape import default_length
from jobs.models import Summary
from jobs.states.summary import JoinRule
from summary_support import ready_document

NEW = f"{LIST}/new"
WRITTEN = json.dumps(SCHEMA, indent=2)


def fields_of(page: HtmlElement) -> dict[str, str]:
    """The form of the draft as a browser sends it."""
    (form,) = page.xpath("//form[@id='draft']")
    return dict(form.form_values())


def made(sessions: sessionmaker[Session]) -> list[Summary]:
    with sessions() as session:
        return list(session.scalars(select(Summary).order_by(Summary.id)))


def two_documents(sessions: sessionmaker[Session]) -> list[str]:
    with sessions.begin() as session:
        return [ids.document_id(ready_document(session, each).id) for each in (SHORT, "The fee is 5.")]


def test_fields_are_asked_estimated_and_started_once(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    name, _ = two_documents(sessions)
    (link,) = visitor.page(f"/console/documents/{name}").xpath(f"//a[starts-with(@href, '{NEW}')]/@href")
    page = visitor.page(link)
    assert not page.xpath("//dl[@class='figures']"), "nothing is asked yet"
    assert not page.xpath("//*[@role='alert']")
    fields = fields_of(page) | {
        "schema": WRITTEN.replace("\n", "\r\n"),
        "joins": " rent = first \r\n\r\nparties=most_frequent",
        "priority": "high",
        "custom_id": "mine",
    }
    figures = checked(visitor.post(f"{NEW}/estimate", **fields)).xpath("//dl[@class='figures']/div")
    assert ("jobs", "1") in [(words(each[0]), words(each[1])) for each in figures]
    for _ in range(2):
        started = visitor.post(f"{NEW}/start", **fields)
        assert started.status_code == 303
    (row,) = made(sessions)
    assert started.headers["location"] == address_of(ids.extraction_id(row.id))
    assert (row.schema, row.rank, row.custom_id, row.length) == (SCHEMA, 1, "mine", 64 + 4 * 96)
    assert row.joins == {"rent": "first", "notice": "most_frequent", "parties": "most_frequent", "fee": "sum"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"schema": " "}, "schema: must be JSON"),
        ({"schema": '{"type": "object",\n}'}, "line 2, column 1"),
        ({"schema": "[" * 50_000}, "less deep"),
        ({"schema": f"[{'1' * 5000}]"}, "shorter numbers"),
        ({"schema": "[1]"}, "schema: "),
        ({"schema": '{"type": "object"}'}, "schema: must have"),
        ({"schema": '{"type": "object", "properties": {"a": {"type": "nothing"}}}'}, "schema: "),
        ({"schema": '{"type": "object", "properties": {"a\\u0000": {}}}'}, "schema"),
        ({"schema": json.dumps(SCHEMA | {"description": "w" * 20_000})}, "20000 characters"),
        ({"joins": "rent"}, "joins: line 1"),
        ({"joins": "rent=first\nrent=sum"}, "joins: line 2"),
        ({"joins": "rent=median"}, "joins"),
        ({"joins": "cat=first"}, "no such property"),
        ({"joins": "notice=sum"}, "joins.notice: sum joins values"),
        ({"length": "9"}, "length: "),
        ({"length": "many"}, "length: Must be a number."),
    ],
)
def test_what_is_wrong_is_named_and_nothing_typed_is_lost(
    visitor: Browser, sessions: sessionmaker[Session], fields: dict[str, str], expected: str
) -> None:
    name, _ = two_documents(sessions)
    given = fields_of(visitor.page(f"{NEW}?document={name}"))
    given |= {"schema": WRITTEN, "custom_id": f"kept {PROBE}"[:64]} | fields
    answer = visitor.post(f"{NEW}/start", **given)
    assert answer.status_code == 400
    page = checked(answer)
    assert expected in words(page.xpath("//*[@role='alert']")[0])
    kept = fields_of(page)
    assert (kept["schema"].split(), kept["custom_id"]) == (given["schema"].split(), given["custom_id"])
    assert made(sessions) == []


def test_an_earlier_extraction_is_made_again_of_the_same_documents(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    (ended,) = completed(sessions, SHORT)
    (link,) = visitor.page(address_of(ended)).xpath("//a[contains(@href, 'like=')]/@href")
    assert fields_of(visitor.page(link))["length"] == "96"
    joins = {"rent": JoinRule.FIRST, "fee": JoinRule.SUM}
    first, _ = waiting(sessions, "one", "two", joins=joins, length=default_length(len(SCHEMA["properties"])))
    fields = fields_of(visitor.page(f"{NEW}?like={first}"))
    assert (json.loads(fields["schema"]), [*json.loads(fields["schema"])["properties"]]) == (
        SCHEMA,
        [*SCHEMA["properties"]],
    )
    assert (fields["joins"], fields["length"]) == ("rent=first", "")
    started = visitor.post(f"{NEW}/start", **fields)
    assert started.status_code == 303
    rows = made(sessions)
    assert [each.length for each in rows] == [96, *[64 + 4 * 96] * 4]
    assert rows[1].joins == rows[4].joins
    assert json.dumps(rows[4].schema) == json.dumps(SCHEMA)


def test_others_and_readers_extract_nothing(
    visitor: Browser, reader: Browser, stranger: Browser, sessions: sessionmaker[Session]
) -> None:
    name, _ = two_documents(sessions)
    (mine,) = completed(sessions, "b")
    reader.page(NEW, status=403)
    for verb in ("estimate", "start"):
        assert reader.post(f"{NEW}/{verb}").status_code == 403
    fields = fields_of(visitor.page(f"{NEW}?document={name}")) | {"schema": WRITTEN}
    theirs = fields_of(stranger.page(f"{NEW}?document={name}")) | {"of": fields["of"], "schema": WRITTEN}
    assert stranger.post(f"{NEW}/start", **theirs).status_code == 400
    stranger.page(f"{NEW}?like={mine}", status=404)
    for wrong in ("of=x", "of=%FF", "document=doc_x", "like=x"):
        visitor.page(f"{NEW}?{wrong}", status=400)
    assert len(made(sessions)) == 1


def test_an_extraction_is_cancelled_then_deleted_by_its_buttons(
    visitor: Browser, stranger: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    (name,) = running(sessions, SHORT)
    address = address_of(name)
    stranger.page(f"{address}/delete", status=404)
    for verb in ("cancel", "delete"):
        assert stranger.post(f"{address}/{verb}").status_code == 404
        assert operator.post(f"{address}/{verb}").status_code == 403
    for other in ("answers/ans_", "summaries/sum_"):
        wrong = f"/console/{other}{name.removeprefix('ext_')}"
        assert visitor.post(f"{wrong}/cancel").status_code == 404, "it is of another kind"
    check_buttons(visitor, address, "extraction")


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(
    reader: Browser, sessions: sessionmaker[Session]
) -> None:
    (open_one,), (ended,) = running(sessions, "a"), completed(sessions, "b")
    check_reader(reader, address_of(open_one), address_of(ended))
