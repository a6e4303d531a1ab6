import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Timer

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cli.client import Client, RefusedError, ServerUnreachableError
from cli.output import notes
from cli.stack.ports import free_port
from cli.summaries.progress import progress
from cli.summaries.remote import FileChangedError, StoppedError, SummaryClient, content_of
from cli.summaries.run import DocumentFailure, SummaryRun, in_threads
from cli.summaries.sources import SourceFile

ERROR = {"message": "not now", "code": "unavailable", "param": None, "type": "server_error"}


@pytest.fixture
def stop() -> Event:
    return Event()


@pytest.fixture
def server(httpserver: HTTPServer, stop: Event) -> Iterator[SummaryClient]:
    with Client(httpserver.url_for("")) as client:
        yield SummaryClient(client, patience=5, stop=stop)


def refuses(httpserver: HTTPServer, *statuses: int, headers: dict[str, str] | None = None) -> None:
    """A document that is there after so many refusals."""
    left = list(statuses)

    def answer(_request: Request) -> Response:
        if left:
            return Response(json.dumps({"error": ERROR}), left.pop(0), headers)
        return Response(json.dumps({"id": "doc_1"}))

    httpserver.expect_request("/v1/documents/doc_1").respond_with_handler(answer)


def test_a_server_that_is_busy_or_restarted_is_asked_again(
    httpserver: HTTPServer, server: SummaryClient
) -> None:
    refuses(httpserver, 503, 502)
    assert server.document("doc_1")["id"] == "doc_1"
    assert len(httpserver.log) == 3


def test_a_full_queue_is_waited_out(httpserver: HTTPServer, stop: Event) -> None:
    refuses(httpserver, *[429] * 3, headers={"Retry-After": "1"})
    with Client(httpserver.url_for("")) as client:
        assert SummaryClient(client, patience=0.1, stop=stop).document("doc_1")["id"] == "doc_1"


def test_a_limit_that_no_wait_would_help_is_reported_at_once(
    httpserver: HTTPServer, server: SummaryClient
) -> None:
    refuses(httpserver, *[429] * 10, headers={"Retry-After": "1", "x-should-retry": "false"})
    with pytest.raises(RefusedError):
        server.document("doc_1")
    assert len(httpserver.log) == 1


def test_a_limit_that_stays_reached_is_reported_after_a_while(httpserver: HTTPServer, stop: Event) -> None:
    refuses(httpserver, *[429] * 1000)
    with Client(httpserver.url_for("")) as client, pytest.raises(RefusedError) as raised:
        SummaryClient(client, patience=0.1, stop=stop, full_patience=0.6).document("doc_1")
    assert raised.value.status == 429
    assert len(httpserver.log) > 1


@pytest.mark.parametrize("is_final", [False, True])
def test_a_limit_that_stays_reached_ends_the_run_and_one_that_a_file_exceeds_its_own(
    httpserver: HTTPServer, stop: Event, tmp_path: Path, *, is_final: bool
) -> None:
    headers = {"x-should-retry": "false"} if is_final else {}
    refused = Response(json.dumps({"error": ERROR}), 429, headers)
    httpserver.expect_request("/v1/documents", method="POST").respond_with_response(refused)
    file = tmp_path / "a.txt"
    file.write_text("a")
    with Client(httpserver.url_for("")) as client, progress(notes, total=None, live=False) as shown:
        server = SummaryClient(client, patience=0.1, stop=stop, full_patience=0.3)
        run = SummaryRun(server, {}, model="m", progress=shown)
        failure = run.add(SourceFile(file, "a.txt", Path("a.txt")))
    assert isinstance(failure, DocumentFailure)
    assert (failure.is_final, run.fatal_error is None) == (is_final, is_final)


def test_a_refusal_is_reported_at_once(httpserver: HTTPServer, server: SummaryClient) -> None:
    refuses(httpserver, 404)
    with pytest.raises(RefusedError):
        server.document("doc_1")
    assert len(httpserver.log) == 1


def test_a_fault_that_stays_is_reported(httpserver: HTTPServer, server: SummaryClient) -> None:
    refuses(httpserver, *[500] * 10)
    with pytest.raises(RefusedError):
        server.document("doc_1")
    assert len(httpserver.log) == 4


def test_a_missing_server_is_reported_after_a_while(stop: Event) -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ServerUnreachableError):
        SummaryClient(client, patience=0.6, stop=stop).document("doc_1")


def test_whoever_stops_waits_for_nothing(stop: Event) -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        Timer(0.2, stop.set).start()
        with pytest.raises(StoppedError):
            SummaryClient(client, patience=60, stop=stop).document("doc_1")


def test_an_upload_that_is_tried_again_is_whole(
    httpserver: HTTPServer, server: SummaryClient, tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"x" * 300_000)
    content = content_of(file)
    left = [503]

    def answer(request: Request) -> Response:
        assert request.get_data() == file.read_bytes()
        assert request.args["filename"] == "a.txt"
        if left:
            return Response(json.dumps({"error": ERROR}), left.pop())
        return Response(json.dumps({"id": "doc_1", "sha256": content}))

    httpserver.expect_request("/v1/documents", method="POST").respond_with_handler(answer)
    assert server.add(file, "a.txt", content)["id"] == "doc_1"
    with pytest.raises(FileChangedError):
        server.add(file, "a.txt", "another")
    httpserver.check_assertions()


def test_work_in_threads_comes_back_with_its_place_and_its_error() -> None:
    items = [SourceFile(Path(str(number)), str(number), Path(str(number))) for number in range(50)]
    done = dict(in_threads(lambda source: int(source.shown) ** 2, items, num_threads=4))
    assert done == {number: number**2 for number in range(50)}

    def fail(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(in_threads(fail, [1, 0, 1], num_threads=2))
