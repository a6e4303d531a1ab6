"""What one request extracted from several documents: the table of its pages, its files, and those of one."""

import csv
import io
import json

import pytest
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import settle_all
from asking.field_pages import SHORT, address_of, completed, running, waiting
from asking.fields import SCHEMA, extract, look_up, reply, run
from console_pages.browser import PROBE, Browser, words
from jobs import ids
from summary_support import SMALL, failed_document, plan_all, ready_document
from support import register_engine

HEADING = [
    *("document", "rent", "notice", "parties", "fee", "rent.pages", "rent.quote", "notice.pages"),
    *("notice.quote", "parties.pages", "parties.quote", "fee.pages", "fee.quote", "error", "warnings"),
]


def cells(browser: Browser, address: str) -> list[list[str]]:
    return [
        [words(each) for each in row.xpath("./td|./th")] for row in browser.page(address).xpath("//tbody/tr")
    ]


def lines(browser: Browser, address: str) -> list[list[str]]:
    answer = browser.client.get(address)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.reader(io.StringIO(answer.text)))


def test_the_table_has_a_row_for_each_document_of_the_request(
    visitor: Browser, sessions: sessionmaker[Session]
) -> None:
    others = completed(sessions, "The fee is 1.")
    made = completed(sessions, *(f"The rent is {number}." for number in range(1, 28)))
    address = f"{address_of(made[5])}/table"
    assert visitor.page(address_of(made[5])).xpath(f"//a[@href='{address}']")
    assert not visitor.page(address_of(others[0])).xpath("//a[contains(@href, '/table')]")
    (following,) = visitor.page(f"{address}?show=values").xpath("//a[@rel='next']/@href")
    rows = cells(visitor, f"{address}?show=values") + cells(visitor, following)
    assert [row[2] for row in rows] == [f"{number}.0" for number in range(1, 28)]
    assert [row[0] for row in rows] == [f"lease-{number}.txt" for number in range(27)]
    assert rows[0][1:] == ["completed valid", "1.0", *["not in the document"] * 3]
    assert "7.0" not in words(visitor.page(address))
    assert cells(visitor, address)[6][2] == "found"
    heading, *written = lines(visitor, f"{address}/result?format=csv")
    assert heading == HEADING
    assert [line[1] for line in written] == [f"{number}.0" for number in range(1, 28)]
    found = visitor.client.get(f"{address}/result?format=json").json()
    assert [each["id"] for each in found] == made
    assert (found[3]["values"], found[3]["filename"]) == ({"rent": 4.0, "notice": None}, "lease-3.txt")
    listed = visitor.client.get(f"{address}/result?format=jsonl").text.splitlines()
    assert [json.loads(each) for each in listed] == found


def test_rows_say_what_is_wrong_with_them(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        torn, whole = failed_document(session), ready_document(session, "The fee is 5.")
        made = extract(session, torn, whole, length=96)
        plan_all(session)
        run(session)
        settle_all(session)
        address = address_of(ids.extraction_id(made[0].id))
    failed, invalid = cells(visitor, f"{address}/table?show=values")
    assert "document_corrupt" in failed[1]
    assert invalid[1] == "completed not valid"
    _, failed, invalid = lines(visitor, f"{address}/table/result")
    assert failed[1:] == [*[""] * 12, "[failed] it is broken (document_corrupt)", ""]
    assert (invalid[4], invalid[12]) == ("5", "The fee is 5.")
    assert invalid[13].startswith("[not valid] ")


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_an_extraction_is_downloaded_once_it_has_ended(
    visitor: Browser, sessions: sessionmaker[Session], form: str
) -> None:
    (name,) = completed(sessions, SHORT)
    (link,) = visitor.page(address_of(name)).xpath(f"//a[substring-after(@href, 'format=') = '{form}']/@href")
    answer = visitor.client.get(link)
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.{form}"'
    assert "900" in answer.text
    (unfinished,) = waiting(sessions, "another")
    assert visitor.client.get(f"{address_of(unfinished)}/result?format={form}").status_code == 409
    assert visitor.client.get(f"{address_of(name)}/result?format=xml").status_code == 400
    table = lines(visitor, f"{address_of(unfinished)}/table/result")
    assert table[1][1:] == [*[""] * 12, "[preparing]", ""]


def test_no_cell_is_a_formula_or_markup(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    schema = {"type": "object", "properties": {"=1+1": {"type": "string"}, PROBE[:64]: {"type": "string"}}}
    said = {name: {"quote": "-2", "value": f"@{PROBE}"} for name in schema["properties"]}
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        document, other = ready_document(session, "a text"), ready_document(session, "another")
        document.filename = "=cmd"
        made = extract(session, document, other, schema=schema, length=96)
        plan_all(session)
        run(session, lambda *_: json.dumps(said))
        settle_all(session)
        address = f"{address_of(ids.extraction_id(made[0].id))}/table"
    for cell in (each for line in lines(visitor, f"{address}/result") for each in line):
        assert not cell.startswith(("=", "+", "-", "@"))
    assert words(visitor.page(f"{address}?show=values")).count("<script>alert(1)</script>") >= 5


def test_other_tenants_see_no_table_and_operators_all(
    visitor: Browser, stranger: Browser, operator: Browser, sessions: sessionmaker[Session]
) -> None:
    mine = completed(sessions, SHORT, "The rent is 2.")
    address = address_of(mine[0])
    stranger.page(f"{address}/table", status=404)
    for place in ("/table/live", "/result?format=csv", "/table/result?format=csv"):
        assert stranger.client.get(address + place).status_code == 404
    visitor.page(f"{address}/table?after=x", status=400)
    assert "900" in words(operator.page(f"{address}/table?show=values"))
    assert "900" in operator.client.get(f"{address}/table/result?format=jsonl").text


def test_a_table_is_followed_while_rows_are_open(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    made = running(sessions, SHORT, "The rent is 2.")
    address = f"{address_of(made[1])}/table"
    page = visitor.page(f"{address}?show=values")
    assert page.xpath("//@*[name()='hx-sse:connect']") == [f"{address}/live?show=values"]
    with sessions.begin() as session:
        run(session, lambda *asked: reply(rent=(5, "")) if "rent is 2" in asked[0] else look_up(*asked))
        settle_all(session)
    assert not visitor.page(address).xpath("//@*[name()='hx-sse:connect']")
    assert [row[2] for row in cells(visitor, f"{address}?show=values")] == ["900.0", "5"]
    assert [*SCHEMA["properties"]] == [
        words(each) for each in visitor.page(address).xpath("//thead//th[position() > 2]")
    ]
