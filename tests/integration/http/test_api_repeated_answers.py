"""Requests whose callers wait for the answer, sent twice with a key: one job and one answer."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import error_of
from jobs import lifecycle
from jobs.models import DEFAULT_TENANT, Job
from jobs.states import FinishReason
from support import ERROR, claim_one, eventually, output_of, register_engine

MODEL: Final = "llama-3.1-8b-instruct"
KEY: Final = {"Idempotency-Key": "k"}
CHAT: Final[dict[str, Any]] = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]}
ROUTES: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"model": MODEL, "prompt": "Once"}),
    ("/generate", {"prompt": "Once"}),
    ("/v1/responses", {"model": MODEL, "input": "Why?"}),
]
Background = Callable[..., "Future[httpx2.Response]"]


def num_jobs(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


def end_next(sessions: sessionmaker[Session], *, error: dict[str, object] | None = None) -> None:
    """Complete the job that an engine runs next, or fail it."""
    with sessions.begin() as session:
        register_engine(session, model=MODEL)
        lease = claim_one(session).lease
        if error is None:
            ending.complete(session, lease, output_of("It scatters."), FinishReason.STOP)
        else:
            ending.fail(session, lease, error)


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_a_repeated_request_gets_the_same_answer(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    background: Background,
    route: str,
    body: dict[str, Any],
) -> None:
    first = background(http.post, route, json=body, headers=KEY)
    eventually(lambda: num_jobs(sessions) == 1)
    beside = background(http.post, route, json=body, headers=KEY)
    end_next(sessions)
    answers = [first.result(), beside.result(), http.post(route, json=body, headers=KEY)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[1].json() == answers[0].json() == answers[2].json()
    replayed = [answer.headers.get("idempotent-replayed") for answer in answers]
    assert replayed == [None, "true", "true"]
    assert num_jobs(sessions) == 1
    other = http.post(route, json=body | {"temperature": 0.5}, headers=KEY)
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"


def test_one_key_on_two_routes_of_answers_is_a_conflict(
    http: httpx2.Client, sessions: sessionmaker[Session], background: Background
) -> None:
    first = background(http.post, "/generate", json={"prompt": "Once"}, headers=KEY)
    eventually(lambda: num_jobs(sessions) == 1)
    end_next(sessions)
    assert first.result().status_code == 200
    for route, body in (
        ("/v1/completions", {"model": MODEL, "prompt": "Once", "temperature": 0, "stream": False}),
        ("/v1/jobs", {"input": "Once"}),
        ("/generate_stream", {"prompt": "Once"}),
    ):
        assert http.post(route, json=body, headers=KEY).status_code == 409, route


@pytest.mark.parametrize(("route", "body"), [ROUTES[0], ROUTES[3]])
def test_a_stream_is_sent_again_whole(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    background: Background,
    route: str,
    body: dict[str, Any],
) -> None:
    asked = body | {"stream": True}
    first = background(http.post, route, json=asked, headers=KEY)
    eventually(lambda: num_jobs(sessions) == 1)
    end_next(sessions)
    again = http.post(route, json=asked, headers=KEY)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.text == first.result().text
    assert "It scatters." in again.text
    assert num_jobs(sessions) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_with_a_key_goes_on_when_its_connection_breaks(
    http: httpx2.Client, sessions: sessionmaker[Session], *, stream: bool
) -> None:
    asked = CHAT | {"stream": stream}
    with pytest.raises(httpx2.ReadTimeout):
        http.post("/v1/chat/completions", json=asked, headers=KEY, timeout=httpx2.Timeout(30, read=1))
    # Had it been cancelled, nothing could be run: a request without a key, given up later, is.
    with pytest.raises(httpx2.ReadTimeout):
        http.post("/v1/chat/completions", json=asked, timeout=httpx2.Timeout(30, read=1))
    eventually(lambda: states(sessions) == ["queued", "cancelled"])
    end_next(sessions)
    again = http.post("/v1/chat/completions", json=asked, headers=KEY)
    assert again.status_code == 200
    assert "It scatters." in again.text
    assert num_jobs(sessions) == 2


def states(sessions: sessionmaker[Session]) -> list[str]:
    with sessions() as session:
        return list(session.scalars(select(Job.state).order_by(Job.id)))


def test_a_request_that_ended_without_an_answer_runs_again(
    http: httpx2.Client, sessions: sessionmaker[Session], background: Background
) -> None:
    failing = background(http.post, "/v1/chat/completions", json=CHAT, headers=KEY)
    eventually(lambda: num_jobs(sessions) == 1)
    end_next(sessions, error=ERROR)
    assert failing.result().status_code == 500
    cancelled = background(http.post, "/v1/chat/completions", json=CHAT, headers=KEY)
    eventually(lambda: num_jobs(sessions) == 2)
    with sessions.begin() as session:
        lifecycle.cancel_where(session, [], tenant_id=DEFAULT_TENANT)
    assert cancelled.result().status_code == 409
    third = background(http.post, "/v1/chat/completions", json=CHAT, headers=KEY)
    eventually(lambda: num_jobs(sessions) == 3)
    end_next(sessions)
    assert third.result().status_code == 200
    assert "idempotent-replayed" not in third.result().headers
    assert http.post("/v1/chat/completions", json=CHAT, headers=KEY).json() == third.result().json()


def test_tries_that_a_client_only_counts_are_requests_of_their_own(
    http: httpx2.Client, sessions: sessionmaker[Session], background: Background
) -> None:
    tries = []
    for number in ("0", "1"):
        headers = {"x-stainless-retry-count": number}
        tries.append(background(http.post, "/v1/chat/completions", json=CHAT, headers=headers))
        eventually(lambda: num_jobs(sessions) == len(tries))
    for _ in tries:
        end_next(sessions)
    first, second = (each.result() for each in tries)
    assert first.json()["id"] != second.json()["id"]
