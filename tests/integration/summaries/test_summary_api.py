"""Summaries over HTTP: created, looked at, waited for, followed, read in three forms, cancelled, deleted."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET, ApiProcess, error_of
from asking.answers import settle_all
from jobs import ids
from jobs.models import PromptText, Summary, WebhookDispatch, WebhookEvent
from jobs.prompts.messages import parse
from jobs.prompts.tokenizer import unpack_text
from longbatch.client import Client
from longbatch.documents.trees import Trees
from summary_support import SMALL, failed_document, plan_all, ready_document, run_to_end, text_of
from support import API_KEY, PATIENCE, eventually, register_engine

MODEL = "llama-3.1-8b-instruct"
Background = Callable[..., Future[Any]]


@pytest.fixture
def document(sessions: sessionmaker[Session]) -> str:
    """A document of the default tenant that takes a tree, on 21 pages."""
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model=MODEL)
        body = text_of(2000)
        pages = [0, *(body.index(f"w{number} ") for number in range(100, 2000, 100))]
        return ids.document_id(ready_document(session, body, pages=pages).id)


def create(http: httpx2.Client, *documents: str, **body: object) -> dict[str, Any]:
    answer = http.post("/v1/summaries", json={"documents": documents, **body})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()["data"][0]
    return found


def work(sessions: sessionmaker[Session]) -> None:
    """What workers would do."""
    with sessions.begin() as session:
        plan_all(session)
    with sessions.begin() as session:
        run_to_end(session)


def test_a_summary_is_accepted_planned_and_completed_with_its_sources(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    made = create(http, document, style="bullets", length=100, language="German", custom_id="mine")
    assert (made["state"], made["plan"], made["summary"]) == ("preparing", None, None)
    assert made["templates"] == {"whole": "whole-1", "map": "map-1", "reduce": "reduce-1"}
    work(sessions)
    seen = http.get(f"/v1/summaries/{made['id']}").json()
    assert (seen["state"], seen["summary"], seen["gaps"]) == ("completed", "a summary", [])
    assert seen["progress"]["completed"] == seen["plan"]["jobs"] > seen["plan"]["chunks"] > 1
    body = text_of(2000)
    assert "".join(body[chunk["start"] : chunk["end"]] for chunk in seen["chunks"]) == body
    assert all(chunk["document_id"] == document and len(chunk["pages"]) == 2 for chunk in seen["chunks"])
    assert "chunks" not in http.get(f"/v1/summaries/{made['id']}", params={"chunks": False}).json()
    listed = http.get("/v1/summaries", params={"custom_id": "mine", "document": document}).json()["data"]
    assert [each["id"] for each in listed] == [made["id"]]
    assert http.get("/v1/summaries", params={"state": "failed"}).json()["data"] == []


def test_variables_of_the_chat_template_reach_every_prompt_and_are_checked_at_once(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    variables = {"enable_thinking": False}
    made = create(http, document, chat_template_kwargs=variables)
    assert made["chat_template_kwargs"] == variables
    work(sessions)
    seen = http.get(f"/v1/summaries/{made['id']}").json()
    assert seen["state"] == "completed"
    with sessions() as session:
        prompts = [parse(unpack_text(body)) for body in session.scalars(select(PromptText.body))]
    assert {each.variables for each in prompts} == {'{"enable_thinking":false}'}
    assert len(prompts) > seen["plan"]["chunks"], "those of joins too"
    wrong = {"documents": [document], "chat_template_kwargs": {"messages": []}}
    for path in ("/v1/summaries/estimate", "/v1/summaries"):
        refused = eventually(lambda path=path: (a := http.post(path, json=wrong)).status_code != 503 and a)
        assert (refused.status_code, error_of(refused)["param"]) == (400, "chat_template_kwargs")


def test_chunks_are_listed_page_by_page_where_that_is_asked_for(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    path = f"/v1/summaries/{create(http, document)['id']}"
    work(sessions)
    whole = http.get(path).json()
    assert "next_chunks_start" not in whole
    num_chunks = len(whole["chunks"])
    assert num_chunks > 4
    paged: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next_chunks_start": 0}
    while "next_chunks_start" in page:
        wanted = {"chunks_start": page["next_chunks_start"], "chunks_limit": 2}
        page = http.get(path, params=wanted).json()
        paged += page["chunks"]
    assert paged == whole["chunks"]
    exactly = http.get(path, params={"chunks_limit": num_chunks}).json()
    assert exactly == whole
    assert http.get(path, params={"chunks_start": num_chunks}).json() == whole | {"chunks": []}
    for wrong in ({"chunks_start": -1}, {"chunks_limit": 0}, {"chunks_limit": 1001}):
        (param,) = wrong
        refused = http.get(path, params=wrong)
        assert (refused.status_code, error_of(refused)["param"]) == (400, param)


def test_more_chunks_than_one_answer_lists_are_all_fetched_by_the_client(
    http: httpx2.Client, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model=MODEL)
        long = ids.document_id(ready_document(session, text_of(70_000)).id)
    made = create(http, long, chunk_tokens=64, length=16)
    with sessions.begin() as session:
        plan_all(session)
    first = http.get(f"/v1/summaries/{made['id']}").json()
    assert (len(first["chunks"]), first["next_chunks_start"]) == (1000, 1000)
    with Client(server.url, API_KEY) as client:
        found = client.run(Trees().whole(made["id"]))
    assert "next_chunks_start" not in found
    assert len(found["chunks"]) == found["plan"]["chunks"] > 1000
    assert [each["index"] for each in found["chunks"]] == list(range(len(found["chunks"])))


def test_each_document_has_its_own_summary_in_their_order_unless_they_are_combined(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    with sessions.begin() as session:
        other = ids.document_id(ready_document(session, text_of(100, name="x")).id)
    both = http.post("/v1/summaries", json={"documents": [other, document]}).json()
    assert [each["documents"] for each in both["data"]] == [[other], [document]]
    assert both["has_more"] is False
    assert create(http, other, document, combine=True)["documents"] == [other, document]


def test_the_same_key_gives_the_same_summaries_and_another_request_is_a_conflict(
    http: httpx2.Client, document: str
) -> None:
    headers = {"Idempotency-Key": "sum-once"}
    body = {"documents": [document], "length": 99}
    first = http.post("/v1/summaries", json=body, headers=headers)
    again = http.post("/v1/summaries", json=body, headers=headers)
    assert [each["id"] for each in first.json()["data"]] == [each["id"] for each in again.json()["data"]]
    assert again.headers["Idempotent-Replayed"] == "true"
    other = http.post("/v1/summaries", json=body | {"length": 98}, headers=headers)
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": ["doc_nothing"]}, "documents.0"),
        ({"documents": ["doc_" + "0" * 32]}, "documents.0"),
        ({"documents": ["DOCUMENT", "DOCUMENT"]}, "documents.1"),
        ({"documents": ["DOCUMENT"], "urls": ["https://example.com"]}, "urls"),
        ({"documents": ["DOCUMENT"], "style": "poem"}, "style"),
        ({"documents": ["DOCUMENT"], "length": 0}, "length"),
        ({"documents": ["DOCUMENT"], "chunk_tokens": 100, "overlap_tokens": 50}, None),
        ({"documents": ["DOCUMENT"], "surprise": 1}, "surprise"),
        ({"documents": ["DOCUMENT"], "webhook_secret": WEBHOOK_SECRET}, "webhook_secret"),
    ],
)
def test_what_cannot_be_summarized_is_refused_by_name(
    http: httpx2.Client, document: str, body: dict[str, Any], param: str | None
) -> None:
    sent = json.loads(json.dumps(body).replace("DOCUMENT", document))
    answer = http.post("/v1/summaries", json=sent)
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["param"] == param
    assert http.post("/v1/summaries", json={"documents": [document], "model": "x"}).status_code == 404


def test_who_waits_is_answered_when_it_ends(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str, background: Background
) -> None:
    made = create(http, document)
    assert http.get(f"/v1/summaries/{made['id']}", params={"wait": 0.2}).json()["state"] == "preparing"
    waiting = background(http.get, f"/v1/summaries/{made['id']}", params={"wait": 50})
    work(sessions)
    assert waiting.result(timeout=PATIENCE).json()["state"] == "completed"


def test_who_follows_sees_it_move_and_end(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str, background: Background
) -> None:
    made = create(http, document)

    def states() -> list[str]:
        with http.stream("GET", f"/v1/summaries/{made['id']}/events") as stream:
            return [json.loads(line[6:])["state"] for line in _data(stream.iter_lines())]

    following = background(states)
    work(sessions)
    seen = following.result(timeout=PATIENCE)
    assert seen[-1] == "completed"
    assert len(seen) <= 4


def _data(lines: Iterator[str]) -> Iterator[str]:
    return (line for line in lines if line.startswith("data: "))


def test_results_come_as_json_markdown_and_csv(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    made = create(http, document)
    path = f"/v1/summaries/{made['id']}/result"
    early = http.get(path)
    assert (early.status_code, error_of(early)["code"]) == (409, "job_not_finished")
    work(sessions)
    result = http.get(path).json()
    assert result["summary"] == "a summary"
    markdown = http.get(path, params={"format": "md"})
    assert markdown.headers["content-type"].startswith("text/markdown")
    chunk = result["chunks"][1]
    first, last = chunk["pages"]
    link = f"(/v1/documents/{document}/text?start={chunk['start']}&end={chunk['end']})"
    assert f"[test.txt, pages {first}\u2013{last}]{link}" in markdown.text
    source = http.get(link[1:-1])
    assert source.text == text_of(2000)[chunk["start"] : chunk["end"]]
    table = list(csv.DictReader(io.StringIO(http.get(path, params={"format": "csv"}).text)))
    assert [row["index"] for row in table] == ["", *(str(each["index"]) for each in result["chunks"])]
    assert table[2]["first_page"] == str(first)
    assert http.get(path, params={"format": "pdf"}).status_code == 400


def test_cancelling_ends_it_at_once_and_again_changes_nothing(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    made = create(http, document)
    with sessions.begin() as session:
        plan_all(session)
    for _ in range(2):
        seen = http.post(f"/v1/summaries/{made['id']}/cancel").json()
        assert (seen["state"], seen["cancel_requested"], seen["gaps"]) == ("cancelled", True, [])
    with sessions() as session:
        left = text("SELECT count(*) FROM jobs WHERE finalized_at IS NULL")
        assert session.scalar(left) == 0


def test_a_document_in_use_and_a_summary_at_work_cannot_be_deleted(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    made = create(http, document)
    assert http.delete(f"/v1/documents/{document}").status_code == 409
    assert http.delete(f"/v1/summaries/{made['id']}").status_code == 409
    work(sessions)
    assert http.delete(f"/v1/documents/{document}").status_code == 200
    seen = http.get(f"/v1/summaries/{made['id']}").json()
    assert seen["summary"] == "a summary", "it outlives its document"
    markdown = http.get(f"/v1/summaries/{made['id']}/result", params={"format": "md"})
    assert markdown.status_code == 200
    assert http.delete(f"/v1/summaries/{made['id']}").json()["deleted"]
    assert http.get(f"/v1/summaries/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/summaries", {}),
        ("/v1/answers", {"questions": ["Rent?"]}),
        ("/v1/extractions", {"schema": {"type": "object", "properties": {"rent": {"type": "number"}}}}),
    ],
)
def test_a_result_keeps_the_warnings_of_a_deleted_document(
    http: httpx2.Client, sessions: sessionmaker[Session], path: str, fields: dict[str, object]
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model=MODEL)
        document = ready_document(session, text_of(20, name="warned"))
        document.warnings = [{"code": "pages_without_text", "message": "1 page has no text.", "pages": [2]}]
        document_id = ids.document_id(document.id)
    (made,) = http.post(path, json={"documents": [document_id], **fields}).json()["data"]
    assert made["warnings"] == []
    with sessions.begin() as session:
        plan_all(session)
        run_to_end(session)
        settle_all(session)
    assert http.delete(f"/v1/documents/{document_id}").status_code == 200
    (warning,) = http.get(f"{path}/{made['id']}").json()["warnings"]
    assert warning == {
        "document_id": document_id,
        "code": "pages_without_text",
        "message": "1 page has no text.",
        "pages": [2],
    }
    if path == "/v1/summaries":
        result = f"{path}/{made['id']}/result"
        assert http.get(result).json()["warnings"] == [warning]
        assert "## Warnings" in http.get(result, params={"format": "md"}).text
        table = csv.DictReader(io.StringIO(http.get(result, params={"format": "csv"}).text))
        assert next(table)["warnings"] == "1 page has no text."


def test_an_unreadable_document_fails_its_summary_with_its_code(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    with sessions.begin() as session:
        bad = ids.document_id(failed_document(session).id)
    answer = http.post("/v1/summaries", json={"documents": [bad, document]}).json()["data"]
    work(sessions)
    failed, completed = (http.get(f"/v1/summaries/{each['id']}").json() for each in answer)
    assert (failed["state"], failed["error"]["code"]) == ("failed", "document_corrupt")
    assert completed["state"] == "completed"


def test_an_end_is_delivered_to_endpoints_and_to_the_summary_s_own_url(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    endpoint = {"url": "https://example.com/hooks", "events": ["summary.completed"]}
    assert http.post("/v1/webhook_endpoints", json=endpoint).status_code in {200, 201}
    made = create(http, document, webhook_url="https://example.org/own", metadata={"a": "b"})
    work(sessions)
    with sessions() as session:
        event = session.scalars(
            select(WebhookEvent).join(Summary, Summary.id == WebhookEvent.summary_id)
        ).one()
        assert event.payload is not None
        data = event.payload["data"]
        assert isinstance(data, dict)
        assert (data["id"], data["state"], data["metadata"]) == (made["id"], "completed", {"a": "b"})
        urls = session.scalars(select(WebhookDispatch.url)).all()
        assert sorted(str(each) for each in urls) == ["None", "https://example.org/own"]


def test_an_estimate_is_the_plan_and_says_what_it_rests_on(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    with sessions.begin() as session:
        session.execute(text("UPDATE documents SET num_tokens = 8000, fingerprint = 'x'"))
    exact = http.post("/v1/summaries/estimate", json={"documents": [document]}).json()
    again = http.post("/v1/summaries/estimate", json={"documents": [document]}).json()
    assert exact == again
    assert exact["is_exact"]
    assert exact["documents"][0]["chunks"] == exact["chunks"] > 1
    rough = http.post("/v1/summaries/estimate", json={"tokens": [8000, 100]}).json()
    assert (rough["is_exact"], rough["documents"][1]["jobs"]) == (False, 1)
    assert rough["completion_tokens"]["max"] > rough["completion_tokens"]["expected"] > 0
    with sessions() as session:
        assert session.scalar(text("SELECT count(*) FROM summaries")) == 0


def test_a_document_whose_life_is_over_is_neither_estimated_nor_summarized(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    with sessions.begin() as session:
        session.execute(text("UPDATE documents SET expires_at = clock_timestamp() - interval '1 second'"))
    for path in ("/v1/summaries/estimate", "/v1/summaries"):
        refused = http.post(path, json={"documents": [document]})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "documents.0"), path


def test_an_estimate_of_more_chunks_than_are_ever_made_is_refused_at_once(http: httpx2.Client) -> None:
    asked = {"tokens": [100_000_000] * 1000, "chunk_tokens": 512, "length": 16}
    refused = http.post("/v1/summaries/estimate", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_chunks")


def test_many_summaries_are_listed_page_by_page(http: httpx2.Client, document: str) -> None:
    made = [create(http, document)["id"] for _ in range(5)]
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = http.get("/v1/summaries", params={"limit": 2, **after}).json()
        found += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == made[::-1]
