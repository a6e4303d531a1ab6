"""Callers that leave while they wait, on every kind of route that makes them wait: their requests end."""

import json
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from asking.over_http import MODEL, a_document, submitted
from batch_support import Service
from jobs import ids
from openai_support import chat_line
from support import API_KEY, PATIENCE, eventually

# Seconds: what has ended by then did not wait to the end of 60.
WELL_BEFORE_60: Final = 40

Wait = tuple[str, str, dict[str, Any] | None]
Make = Callable[[httpx2.Client, sessionmaker[Session]], Wait]


def of_a_job(http: httpx2.Client, _: sessionmaker[Session]) -> Wait:
    return "GET", f"/v1/jobs/{http.post('/v1/jobs', json={'input': 'a'}).json()['id']}", None


def of_a_batch(_: httpx2.Client, sessions: sessionmaker[Session]) -> Wait:
    batch_id = Service(sessions).create([chat_line("a")])
    return "GET", f"/v1/batches/{ids.batch_id(batch_id)}", None


def of_a_tree(path: str, **body: object) -> Make:
    def make(http: httpx2.Client, sessions: sessionmaker[Session]) -> Wait:
        (made,) = submitted(http, path, (a_document(sessions, "a few words"),), **body)
        return "GET", f"{path}/{made['id']}", None

    return make


def asking(path: str, **body: object) -> Make:
    def make(_: httpx2.Client, sessions: sessionmaker[Session]) -> Wait:
        a_document(sessions, "a few words")  # and an engine
        return "POST", path, {"model": MODEL, **body}

    return make


SUMMARY = of_a_tree("/v1/summaries")
ANSWERS = of_a_tree("/v1/answers", questions=["How many words?"])
EXTRACTION = of_a_tree(
    "/v1/extractions", schema={"type": "object", "properties": {"words": {"type": "integer"}}}
)
CHAT = {"messages": [{"role": "user", "content": "a"}]}
WAITS: Final[dict[str, tuple[Make, str]]] = {
    "job": (of_a_job, "?wait=60"),
    "summary": (SUMMARY, "?wait=60"),
    "answers": (ANSWERS, "?wait=60"),
    "extraction": (EXTRACTION, "?wait=60"),
    "events of a job": (of_a_job, "/events"),
    "events of a batch": (of_a_batch, "/events"),
    "events of a summary": (SUMMARY, "/events"),
    "events of answers": (ANSWERS, "/events"),
    "events of an extraction": (EXTRACTION, "/events"),
    "chat": (asking("/v1/chat/completions", **CHAT), ""),
    "stream of chat": (asking("/v1/chat/completions", stream=True, **CHAT), ""),
    "response": (asking("/v1/responses", input="a"), ""),
    "stream of a response": (asking("/v1/responses", input="a", stream=True), ""),
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_request_ends_when_its_caller_leaves(
    server: ApiProcess, http: httpx2.Client, sessions: sessionmaker[Session], kind: str
) -> None:
    make, rest = WAITS[kind]
    method, path, body = make(http, sessions)
    wait_for_open_requests(http, 1)  # those of other tests have ended
    sent = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path}{rest} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {API_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    host, port = server.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=PATIENCE)) as caller:
        caller.sendall(head.encode() + sent)
        wait_for_open_requests(http, 2)
        if "event" in rest or "stream" in kind:
            assert caller.recv(2**16).startswith(b"HTTP/1.1 200 ")
    wait_for_open_requests(http, 1, timeout=WELL_BEFORE_60)


def wait_for_open_requests(http: httpx2.Client, num: int, *, timeout: float = PATIENCE) -> None:
    """Wait until the service has so many, of which the scrape is one."""
    shown = f"longbatch_http_open_requests {num}.0"
    eventually(lambda: shown in http.get("/metrics").text.splitlines(), timeout=timeout)
