"""Answers over HTTP: asked, looked at, waited for, followed, estimated, cancelled, deleted, kept apart."""

import json
from typing import Any

import httpx2
import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET, error_of
from asking.answers import run_jobs, settle_all
from asking.over_http import Background, a_document, submitted, work
from jobs.models import Job, PromptText, WebhookDispatch, WebhookEvent
from summary_support import plan_all, text_of
from support import eventually

QUESTIONS = ["What is the rent?", "What is the notice period?"]
SHORT = "The rent is 900 euros. It is due at once."


@pytest.fixture
def document(sessions: sessionmaker[Session]) -> str:
    return a_document(sessions, SHORT)


def ask(http: httpx2.Client, *documents: str, **body: object) -> list[dict[str, Any]]:
    return submitted(http, "/v1/answers", documents, **{"questions": QUESTIONS, "length": 64, **body})


def test_each_document_has_its_answers_in_the_order_of_the_questions(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    other = a_document(sessions, "The notice period is a week.")
    first, second = ask(http, document, other, custom_id="mine", metadata={"a": "b"})
    assert [first["document"], second["document"]] == [document, other]
    assert (first["object"], first["state"], first["questions"]) == ("answers", "preparing", QUESTIONS)
    assert http.get(f"/v1/answers/{first['id']}").json()["answers"] == []
    work(sessions, run_jobs)
    seen = http.get(f"/v1/answers/{first['id']}").json()
    assert seen["state"] == "completed"
    assert [(each["question"], each["answer"]) for each in seen["answers"]] == [
        (QUESTIONS[0], "900 euros"),
        (QUESTIONS[1], None),
    ]
    assert "answers" not in http.get(f"/v1/answers/{first['id']}", params={"answers": False}).json()
    (other_seen,) = http.get("/v1/answers", params={"document": other}).json()["data"]
    assert other_seen["id"] == second["id"]
    listed = http.get("/v1/answers", params={"custom_id": "mine"}).json()["data"]
    assert {each["id"] for each in listed} == {first["id"], second["id"]}
    assert http.get("/v1/summaries").json()["data"] == []
    wrong = http.get(f"/v1/summaries/{first['id'].replace('ans_', 'sum_')}")
    assert wrong.status_code == 404, "answers are no summary"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"questions": []}, "questions", "at least 1"),
        ({"questions": ["why?"] * 101}, "questions", "at most 100"),
        ({"questions": ["w" * 2001]}, "questions.0", "2000"),
        ({"questions": ["a?", ""]}, "questions.1", ""),
        ({"questions": ["a?", "b?", "a?"]}, "questions", "the one at 2 repeats"),
        (
            {"questions": [f"{number} {'w' * 1990}" for number in range(11)]},
            "questions",
            "20000 characters in all",
        ),
        ({"documents": []}, "documents", ""),
        ({"documents": ["doc_" + "0" * 32]}, "documents.0", "no such document"),
        ({"documents": ["x"] * 1001}, "documents", "at most 1000"),
        ({"length": 63}, "length", "64"),
        ({"style": "bullets"}, "style", ""),
        ({"model": "none"}, "model", ""),
    ],
)
def test_what_cannot_be_asked_is_refused_with_field_and_limit(
    http: httpx2.Client, document: str, body: dict[str, object], param: str, says: str
) -> None:
    answer = http.post("/v1/answers", json={"documents": [document], "questions": QUESTIONS} | body)
    assert answer.status_code in (400, 404)
    error = error_of(answer)
    assert says in str(error["message"])
    assert error["param"] == param


def test_the_same_key_returns_the_same_answers(http: httpx2.Client, document: str) -> None:
    body = {"documents": [document], "questions": QUESTIONS}
    headers = {"Idempotency-Key": "once"}
    first = http.post("/v1/answers", json=body, headers=headers)
    again = http.post("/v1/answers", json=body, headers=headers)
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    other = http.post("/v1/answers", json=body | {"questions": QUESTIONS[:1]}, headers=headers)
    assert other.status_code == 409
    as_summary = http.post("/v1/summaries", json={"documents": [document]}, headers=headers)
    assert as_summary.status_code == 409


def test_waiting_and_following_last_until_the_answers_are_stored(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str, background: Background
) -> None:
    (made,) = ask(http, document)
    waiting = background(http.get, f"/v1/answers/{made['id']}", params={"wait": 30})
    following = background(http.get, f"/v1/answers/{made['id']}/events")
    for step in (plan_all, run_jobs):
        with sessions.begin() as session:
            step(session)
    assert not waiting.done()
    with sessions.begin() as session:
        settle_all(session)
    assert waiting.result(30).json()["answers"][0]["answer"] == "900 euros"
    events = [json.loads(line[6:]) for line in following.result(30).text.splitlines() if "data: " in line]
    assert events[-1]["state"] == "completed"
    assert {each["id"] for each in events} == {made["id"]}
    assert "answers" not in events[-1]


def test_an_estimate_counts_a_text_once_where_it_is_read_once(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    long = a_document(sessions, text_of(1500))
    asked = {"documents": [long], "questions": QUESTIONS, "length": 64}
    path = "/v1/answers/estimate"
    answer = eventually(lambda: (a := http.post(path, json=asked)).status_code != 503 and a)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    (made,) = ask(http, long)
    with sessions.begin() as session:
        plan_all(session)
    plan = http.get(f"/v1/answers/{made['id']}").json()["plan"]
    assert found["is_exact"]
    assert found["jobs"] >= len(QUESTIONS) * (found["chunks"] + 1)
    assert plan["levels"] == found["levels"] == 2 or plan["levels"] > 1
    assert found["prompt_tokens"] - found["read_tokens"] >= found["documents"][0]["tokens"]
    by_length = http.post(path, json={**asked, "documents": [], "tokens": [5000, 10]}).json()
    assert [each["chunks"] for each in by_length["documents"]][1] == 1
    assert not by_length["is_exact"]
    both = http.post(path, json={**asked, "tokens": [1]})
    assert (both.status_code, error_of(both)["param"]) == (400, "tokens")


def test_an_estimate_of_millions_of_jobs_takes_a_tree_of_each_document(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    a_document(sessions, SHORT)

    def estimate(num_documents: int, num_questions: int) -> dict[str, Any]:
        asked = {
            "tokens": [28_000] * num_documents,
            "questions": [f"What is {number:02}?" for number in range(10, 10 + num_questions)],
            "chunk_tokens": 64,
            "length": 64,
        }
        answer = eventually(
            lambda: (a := http.post("/v1/answers/estimate", json=asked)).status_code != 503 and a
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    one, two, many = estimate(1, 1), estimate(1, 2), estimate(100, 90)
    assert many["jobs"] == one["jobs"] * 9000 > 4_000_000
    assert many["chunks"] == one["chunks"] * 100
    assert many["prompt_tokens"] == one["prompt_tokens"] * 9000
    assert many["completion_tokens"]["max"] == one["completion_tokens"]["max"] * 9000
    assert one["read_tokens"] == one["prompt_tokens"]
    read_again = two["prompt_tokens"] - two["read_tokens"]
    assert read_again >= 28_000
    assert many["prompt_tokens"] - many["read_tokens"] == read_again * 100 * 89
    assert many["documents"][0]["jobs"] == one["jobs"] * 90


def test_answers_are_cancelled_and_deleted_and_hold_their_document_meanwhile(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    (made,) = ask(http, document)
    path = f"/v1/answers/{made['id']}"
    held = http.delete(f"/v1/documents/{document}")
    assert held.status_code == 409
    assert "Answers from this document" in str(error_of(held)["message"])
    assert http.delete(path).status_code == 409
    with sessions.begin() as session:
        plan_all(session)
    assert http.post(f"{path}/cancel").json()["state"] == "cancelled"
    assert http.delete(path).json() == {"id": made["id"], "object": "answers", "deleted": True}
    assert http.get(path).status_code == 404
    assert http.delete(f"/v1/documents/{document}").status_code == 200


def test_answers_outlive_their_document_and_count_as_stored_until_they_are_deleted(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    (made,) = ask(http, document)
    work(sessions, run_jobs)
    path = f"/v1/answers/{made['id']}"
    before = http.get(path).json()["answers"]
    assert http.delete(f"/v1/documents/{document}").status_code == 200
    assert http.get(path).json()["answers"] == before
    assert before[0]["quote"] == "The rent is 900 euros."
    with sessions.begin() as session:
        session.execute(delete(Job))
        session.execute(delete(PromptText))
    kept = http.get("/v1/usage").json()["stored"]["bytes"]
    found = (value for each in before for value in (each["question"], each["answer"], each["quote"]))
    assert kept >= sum(map(len, filter(None, found))), "questions and findings alone are left"
    assert http.delete(path).status_code == 200
    assert http.get("/v1/usage").json()["stored"]["bytes"] == 0


def test_the_end_is_an_event_at_the_callers_own_address(
    http: httpx2.Client, sessions: sessionmaker[Session], document: str
) -> None:
    (made,) = ask(
        http, document, webhook_url="https://example.com/hook", webhook_secret=WEBHOOK_SECRET, custom_id="c"
    )
    work(sessions, run_jobs)
    with sessions() as session:
        query = select(WebhookEvent).join(WebhookDispatch, WebhookDispatch.event_id == WebhookEvent.id)
        (event,) = session.scalars(query).all()
        data: Any = (event.payload or {})["data"]
    assert event.type == "answers.completed"
    assert (data["id"], data["custom_id"]) == (made["id"], "c")
    assert http.get(data["result_url"]).json()["state"] == "completed"
