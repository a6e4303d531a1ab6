"""Servers that are away, odd or in a hurry: what callers of the Python client see."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from cli.stack.ports import LOOPBACK
from longbatch import (
    ApiError,
    AsyncClient,
    Client,
    InvalidKeyError,
    InvalidUrlError,
    LongbatchError,
    NoDocumentsError,
    WaitTimeoutError,
)
from longbatch.documents.run import NoObserver
from longbatch.documents.sources import SourceFile

ERROR = {"message": "not now", "code": "unavailable", "param": None, "type": "server_error"}
VERSION = {"version": "1", "model": "m"}


@pytest.fixture
def client(httpserver: HTTPServer) -> Iterator[Client]:
    with Client(httpserver.url_for(""), "lb_key") as made:
        yield made


def refusal(status: int, **headers: str) -> Response:
    return Response(json.dumps({"error": ERROR}), status, headers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text(str(number))
    return tmp_path


def test_a_key_from_a_file_has_no_line_feed(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/v1/version", headers={"Authorization": "Bearer lb_1"}).respond_with_json(
        VERSION
    )
    with Client(httpserver.url_for(""), "lb_1\n") as client:
        assert client.version() == VERSION


@pytest.mark.parametrize("key", ["lb_secret\nX: y", "lb_sécret"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidKeyError) as raised:
        Client("http://127.0.0.1:1", key)
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:8080", "http://", "ftp://a", "http://a:port"])
def test_an_address_that_is_none_of_http_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        Client(url)


def test_the_path_of_openai_s_clients_is_no_part_of_the_address(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/v1/version").respond_with_json(VERSION)
    with Client(httpserver.url_for("/v1/")) as client:
        assert client.version() == VERSION


def test_texts_of_events_may_hold_every_line_separator(httpserver: HTTPServer, client: Client) -> None:
    text = "a\u2028b\u2029c\x85d"
    event = f"id: 1\nevent: text\ndata: {json.dumps({'text': text}, ensure_ascii=False)}\n\n"
    httpserver.expect_request("/v1/jobs/job_1/events").respond_with_data(event)
    assert list(client.events("/v1/jobs/job_1/events")) == [("text", {"text": text})]

    async def run() -> list[object]:
        async with AsyncClient(httpserver.url_for("")) as lb:
            return [each async for each in lb.events("/v1/jobs/job_1/events")]

    assert asyncio.run(run()) == [("text", {"text": text})]


def test_a_stream_goes_on_after_its_last_event_when_a_proxy_answers_meanwhile(
    httpserver: HTTPServer, client: Client
) -> None:
    path = "/v1/jobs/job_1/events"
    httpserver.expect_ordered_request(path).respond_with_response(refusal(503, **{"Retry-After": "0"}))
    httpserver.expect_ordered_request(path).respond_with_data("id: 7\ndata: {}\n\n")
    assert list(client.events(path)) == [("message", {})]


def test_leaving_a_loop_starts_no_further_document(
    httpserver: HTTPServer, client: Client, folder: Path
) -> None:
    httpserver.expect_request("/v1/version").respond_with_json(VERSION)
    found = {"id": "sum_1", "state": "completed", "summary": "s", "usage": {}, "warnings": []}
    httpserver.expect_request("/v1/summaries").respond_with_json({"data": [found]})
    httpserver.expect_request("/v1/summaries/sum_1").respond_with_json(found)

    class Counting(NoObserver):
        num_begun = 0

        def began(self, source: SourceFile) -> None:  # noqa: ARG002  # of the protocol
            Counting.num_begun += 1

    each = client.summarize(folder, concurrency=2, observer=Counting())
    assert next(each).summary == "s"
    each.close()
    for thread in threading.enumerate():
        if thread.name.startswith("document-"):
            thread.join(30)
    assert Counting.num_begun <= 6, "two threads, and a few results that nobody has read"


def test_a_run_begins_although_the_server_hiccups(
    httpserver: HTTPServer, client: Client, tmp_path: Path
) -> None:
    httpserver.expect_ordered_request("/v1/version").respond_with_response(refusal(503))
    httpserver.expect_ordered_request("/v1/version").respond_with_json(VERSION)
    httpserver.expect_ordered_request("/v1/summaries").respond_with_response(refusal(401))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ApiError) as raised:
        list(client.summarize(tmp_path))
    assert raised.value.status == 401


@pytest.mark.parametrize("answer", ["[]", '"ok"', '{"status": "ok"}', "<html>"])
def test_another_server_is_found_out(
    httpserver: HTTPServer, client: Client, tmp_path: Path, answer: str
) -> None:
    httpserver.expect_request("/v1/version").respond_with_data(answer)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ApiError, match="not a Longbatch server"):
        list(client.summarize(tmp_path))


def test_waiting_ends_in_time_while_a_limit_is_reached(httpserver: HTTPServer, client: Client) -> None:
    job = {"id": "job_1", "state": "running", "error": None, "custom_id": None}
    httpserver.expect_oneshot_request("/v1/jobs").respond_with_json(job)
    httpserver.expect_oneshot_request("/v1/jobs/job_1").respond_with_json(job)
    httpserver.expect_request("/v1/jobs/job_1").respond_with_response(refusal(429))
    with pytest.raises(WaitTimeoutError):
        client.jobs.submit("a").wait(timeout=1)


@pytest.mark.parametrize("number", [0, -1])
def test_a_run_needs_at_least_one_document_at_once(client: Client, tmp_path: Path, number: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        client.summarize(tmp_path, concurrency=number)


@pytest.mark.parametrize("paths", [[], "nope/", ["nope.txt"]])
def test_paths_that_do_not_exist_are_an_error(
    httpserver: HTTPServer, client: Client, paths: str | list[str]
) -> None:
    httpserver.expect_request("/v1/version").respond_with_json(VERSION)
    with pytest.raises(NoDocumentsError):
        list(client.summarize(paths))


@contextmanager
def refusing_early() -> Iterator[str]:
    """A server that answers 413 once it has read the head of an upload, as ours does."""
    listening = socket.create_server((LOOPBACK, 0))
    body = json.dumps({"error": {**ERROR, "code": "too_large"}}).encode()
    head = f"HTTP/1.1 413 Too Large\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(head + body)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(2**16):  # so that the answer is not lost with the rest of the body
                    pass

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{listening.getsockname()[1]}"
    finally:
        listening.close()


def test_a_document_that_is_too_large_is_refused_by_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "large.txt"
    file.write_bytes(b"x" * 20_000_000)
    with refusing_early() as url:
        with Client(url) as client, pytest.raises(ApiError) as raised:
            client.documents.add(file)
        assert raised.value.code == "too_large"

        async def run() -> None:
            async with AsyncClient(url) as lb:
                await lb.documents.add(file)

        with pytest.raises(ApiError) as raised:
            asyncio.run(run())
        assert raised.value.code == "too_large"


def test_jobs_can_be_kept_in_sets(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_request("/v1/jobs").respond_with_json({"id": "job_1", "state": "queued"})
    assert len({client.jobs.submit("a")}) == 1


def test_every_error_is_of_one_family() -> None:
    assert issubclass(InvalidUrlError, LongbatchError)
    assert issubclass(InvalidKeyError, LongbatchError)
