"""Extractions over HTTP: made, looked at, waited for, followed, estimated, cancelled, deleted, kept apart."""

import json
from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import error_of
from asking.answers import settle_all
from asking.fields import SCHEMA, run
from asking.over_http import Background, a_document, submitted, work
from summary_support import plan_all, text_of
from support import eventually

SHORT = "The rent is 900. The parties are Ada and Bob."


@pytest.fixture
def document(sessions: sessionmaker[Session]) -> str:
    return a_document(sessions, SHORT)


def extract(http: httpx2.Client, *documents: str, **body: object) -> list[dict[str, Any]]:
    return submitted(http, "/v1/extractions", documents, **{"schema": SCHEMA, "length": 96, **body})


def test_each_document_has_its_values_in_the_order_of_the_schema(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    other = a_document(sessions, "The fee is 3.")
    first, second = extract(http, document, other, custom_id="mine", joins={"fee": "first"})
    assert [first["document"], second["document"]] == [document, other]
    assert (first["object"], first["state"], first["schema"]) == ("extraction", "preparing", SCHEMA)
    assert [*first["schema"]["properties"]] == [*SCHEMA["properties"]], "the order of fields is kept"
    assert first["joins"]["fee"] == "first"
    path = f"/v1/extractions/{first['id']}"
    before = http.get(path).json()
    assert (before["values"], before["fields"], before["valid"]) == (None, [], None)
    work(sessions, run)
    seen = http.get(path).json()
    assert (seen["state"], seen["valid"]) == ("completed", True)
    assert seen["values"] == {"rent": 900, "notice": None, "parties": ["Ada", "Bob"]}
    short = http.get(path, params={"values": False}).json()
    assert short.keys() == seen.keys() - {"values", "fields"}
    invalid = http.get(f"/v1/extractions/{second['id']}").json()
    assert (invalid["valid"], invalid["values"]["fee"]) == (False, 3)
    assert "rent" in invalid["fault"]
    listed = http.get("/v1/extractions", params={"custom_id": "mine", "values": True}).json()["data"]
    assert {each["id"]: each["values"] for each in listed} == {
        each["id"]: each["values"] for each in (seen, invalid)
    }
    (alone,) = http.get("/v1/extractions", params={"document": other}).json()["data"]
    assert alone["id"] == second["id"]
    assert "values" not in alone
    assert http.get("/v1/summaries").json()["data"] == http.get("/v1/answers").json()["data"] == []
    wrong = http.get(f"/v1/answers/{first['id'].replace('ext_', 'ans_')}")
    assert wrong.status_code == 404, "an extraction is no set of answers"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"schema": {}}, "schema", "object"),
        ({"schema": []}, "schema", ""),
        ({"schema": {"type": "object", "properties": {"a": {"type": "strin"}}}}, "schema", "JSON Schema"),
        ({"joins": {"rent": "last"}}, "joins.rent", "most_frequent"),
        ({"joins": {"notice": "sum"}}, "joins.notice", "integer or number"),
        ({"joins": {"x": "first"}}, "joins.x", "no such property"),
        ({"documents": []}, "documents", ""),
        ({"documents": ["doc_" + "0" * 32]}, "documents.0", "no such document"),
        ({"length": 63}, "length", "64"),
        ({"length": 8193}, "length", "8192"),
        ({"questions": ["a?"]}, "questions", ""),
        ({"model": "none"}, "model", ""),
    ],
)
def test_what_cannot_be_extracted_is_refused_with_field_and_limit(
    http: httpx2.Client, document: str, body: dict[str, object], param: str, says: str
) -> None:
    for path in ("/v1/extractions", "/v1/extractions/estimate"):
        answer = http.post(path, json={"documents": [document], "schema": SCHEMA, "length": 96} | body)
        if answer.status_code != 503:  # an estimate needs a tokenizer, and it is loading
            assert answer.status_code in (400, 404)
            error = error_of(answer)
            assert (error["param"], says in str(error["message"])) == (param, True), error


def test_the_same_key_returns_the_same_extraction(http: httpx2.Client, document: str) -> None:
    body = {"documents": [document], "schema": SCHEMA}
    headers = {"Idempotency-Key": "once"}
    first = http.post("/v1/extractions", json=body, headers=headers)
    again = http.post("/v1/extractions", json=body, headers=headers)
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    other = http.post("/v1/extractions", json=body | {"joins": {"rent": "sum"}}, headers=headers)
    assert other.status_code == 409
    asked = {"documents": [document], "questions": ["Why?"]}
    assert http.post("/v1/answers", json=asked, headers=headers).status_code == 409


def test_waiting_and_following_last_until_the_values_are_stored(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str, background: Background
) -> None:
    (made,) = extract(http, document)
    waiting = background(http.get, f"/v1/extractions/{made['id']}", params={"wait": 30})
    following = background(http.get, f"/v1/extractions/{made['id']}/events")
    for step in (plan_all, run):
        with sessions.begin() as session:
            step(session)
    assert not waiting.done()
    with sessions.begin() as session:
        settle_all(session)
    assert waiting.result(30).json()["values"]["rent"] == 900
    text = following.result(30).text
    events = [json.loads(line[6:]) for line in text.splitlines() if "data: " in line]
    assert "event: extraction\n" in text
    assert (events[-1]["state"], events[-1]["valid"]) == ("completed", True)
    assert "values" not in events[-1]


def test_an_estimate_is_the_plan_that_a_request_would_get(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    long = a_document(sessions, text_of(1500))
    asked = {"documents": [long], "schema": SCHEMA, "length": 96}
    path = "/v1/extractions/estimate"
    answer = eventually(lambda: (a := http.post(path, json=asked)).status_code != 503 and a)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["object"], found["levels"], found["is_exact"]) == ("extraction.estimate", 1, True)
    assert found["jobs"] == found["chunks"] > 1
    by_length = http.post(path, json={**asked, "documents": [], "tokens": [5000, 10]}).json()
    assert [each["jobs"] for each in by_length["documents"]][1] == 1
    both = http.post(path, json={**asked, "tokens": [1]})
    assert (both.status_code, error_of(both)["param"]) == (400, "tokens")


def test_extractions_are_cancelled_and_deleted_and_hold_their_document_meanwhile(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    (made,) = extract(http, document)
    path = f"/v1/extractions/{made['id']}"
    held = http.delete(f"/v1/documents/{document}")
    assert held.status_code == 409
    assert "An extraction from this document" in str(error_of(held)["message"])
    assert http.delete(path).status_code == 409
    with sessions.begin() as session:
        plan_all(session)
    assert http.post(f"{path}/cancel").json()["state"] == "cancelled"
    assert http.delete(path).json() == {"id": made["id"], "object": "extraction", "deleted": True}
    assert http.get(path).status_code == 404
    assert http.delete(f"/v1/documents/{document}").status_code == 200
