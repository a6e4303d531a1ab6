"""Requests that are sent twice: by callers with a key, and by OpenAI's clients, which only count."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import httpx2
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from api_server import error_of
from jobs.models import IdempotencyKey, Job
from support import eventually

LINES = b"".join(b'{"input":"line %d"}\n' % number for number in range(700))  # three parts
RETRIES = "x-stainless-retry-count"


def num_jobs(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


def test_a_bulk_request_sent_twice_with_a_key_makes_its_jobs_once(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    headers = {"Idempotency-Key": "k"}
    first, second = (http.post("/v1/jobs/bulk", content=LINES, headers=headers).json() for _ in range(2))
    assert first["accepted"] == 700
    assert second == first
    assert num_jobs(sessions) == 700


def test_a_bulk_request_that_broke_off_is_completed_by_the_next(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    """The first call sends the first of three parts, as if its connection had broken then."""
    headers = {"Idempotency-Key": "k"}
    part = b"".join(LINES.splitlines(keepends=True)[:300])
    first = http.post("/v1/jobs/bulk", content=part, headers=headers).json()
    second = http.post("/v1/jobs/bulk", content=LINES, headers=headers).json()
    assert second["ids"][:300] == first["ids"]
    assert (second["accepted"], num_jobs(sessions)) == (700, 700)


def test_a_bulk_request_with_other_lines_under_the_key_is_a_conflict(http: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "k"}
    http.post("/v1/jobs/bulk", content=LINES, headers=headers)
    conflict = http.post("/v1/jobs/bulk", content=LINES + b'{"input":"z"}\n', headers=headers)
    assert conflict.json()["accepted"] == 600
    assert {error["code"] for error in conflict.json()["errors"]} == {"idempotency_conflict"}
    refused = http.post("/v1/jobs/bulk", content=b'{"input":"z"}\n' + LINES, headers=headers)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    assert error_of(refused)["param"] == "Idempotency-Key"


def test_one_key_on_two_routes_is_a_conflict(http: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "k"}
    assert http.post("/v1/jobs", json={"input": "a"}, headers=headers).status_code == 202
    again = http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n', headers=headers)
    assert again.status_code == 200, "a part has a key of its own"
    assert http.post("/v1/jobs", json={"input": "b"}, headers=headers).status_code == 409


def test_a_retry_of_the_sdk_finds_what_its_first_try_made(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    answers = [
        http.post("/v1/jobs", json={"input": "a"}, headers={RETRIES: count}) for count in ("0", "1", "2")
    ]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true", "true"]
    assert num_jobs(sessions) == 1


def test_a_retry_of_the_sdk_whose_first_try_never_came_makes_one(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    for count in ("1", "2"):
        assert http.post("/v1/jobs", json={"input": "a"}, headers={RETRIES: count}).status_code == 202
    assert num_jobs(sessions) == 1


def test_equal_requests_that_are_no_retries_are_two(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    ids = [
        http.post("/v1/jobs", json={"input": text_}, headers={RETRIES: count}).json()["id"]
        for text_, count in (("a", "0"), ("a", "0"), ("a", "1"), ("b", "1"))
    ]
    assert ids[1] == ids[2], "the retry is of the newer one"
    assert len(set(ids)) == num_jobs(sessions) == 3


def test_a_retry_after_minutes_is_a_new_request(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    http.post("/v1/jobs", json={"input": "a"}, headers={RETRIES: "0"})
    with sessions.begin() as session:
        (key,) = session.scalars(select(IdempotencyKey))
        key.created_at -= timedelta(minutes=16)
    http.post("/v1/jobs", json={"input": "a"}, headers={RETRIES: "1"})
    assert num_jobs(sessions) == 2


def test_a_retry_while_its_first_try_is_still_being_stored_waits_for_it(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    background: Callable[..., "Future[httpx2.Response]"],
) -> None:
    with sessions.begin() as session:
        session.execute(text("LOCK TABLE texts IN ACCESS EXCLUSIVE MODE"))
        first = background(http.post, "/v1/jobs", json={"input": "a"}, headers={RETRIES: "0"})
        eventually(lambda: num_waiting(sessions) == 1)
        retry = background(http.post, "/v1/jobs", json={"input": "a"}, headers={RETRIES: "1"})
        eventually(lambda: num_waiting(sessions) == 2)
    assert first.result().json()["id"] == retry.result().json()["id"]
    assert num_jobs(sessions) == 1


def test_many_equal_bulk_requests_at_once_make_the_jobs_once(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    together = threading.Barrier(5)

    def send(_: int) -> list[str]:
        together.wait(10)
        found = http.post("/v1/jobs/bulk", content=LINES, headers={"Idempotency-Key": "k"}).json()
        ids: list[str] = found["ids"]
        return ids

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(send, range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert num_jobs(sessions) == 700


def num_waiting(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return session.scalar(text(waiting)) or 0


def upload(
    http: httpx2.Client, headers: dict[str, str] | None = None, content: bytes = b'{"a":1}\n'
) -> httpx2.Response:
    sent = {"file": ("a.jsonl", content)}
    return http.post("/v1/files", files=sent, data={"purpose": "batch"}, headers=headers)


def test_a_file_uploaded_twice_with_a_key_or_by_an_sdk_s_retry_is_one(http: httpx2.Client) -> None:
    for first, second in (
        ({"Idempotency-Key": "f"}, {"Idempotency-Key": "f"}),
        ({RETRIES: "0"}, {RETRIES: "1"}),
    ):
        ids = [upload(http, headers).json()["id"] for headers in (first, second)]
        assert ids[0] == ids[1]
    assert len(http.get("/v1/files").json()["data"]) == 2
    assert upload(http, {RETRIES: "0"}).json()["id"] not in ids
    conflict = upload(http, {"Idempotency-Key": "f"}, b'{"a":2}\n')
    assert (conflict.status_code, error_of(conflict)["code"]) == (409, "idempotency_conflict")
    assert len(http.get("/v1/files").json()["data"]) == 3


def test_a_file_that_was_deleted_since_is_made_anew(http: httpx2.Client) -> None:
    first = upload(http, {"Idempotency-Key": "f"}).json()["id"]
    assert http.delete(f"/v1/files/{first}").status_code == 200
    assert upload(http, {"Idempotency-Key": "f"}).json()["id"] != first


def test_a_batch_created_twice_with_a_key_is_one(http: httpx2.Client) -> None:
    sent = {
        "input_file_id": upload(http).json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    headers = {"Idempotency-Key": "b"}
    ids = [http.post("/v1/batches", json=sent, headers=headers).json()["id"] for _ in range(2)]
    assert ids[0] == ids[1]
    other = http.post("/v1/batches", json=sent | {"completion_window": "1h"}, headers=headers)
    assert (other.status_code, error_of(other)["param"]) == (409, "Idempotency-Key")
    assert http.post("/v1/batches", json=sent).json()["id"] != ids[0]
