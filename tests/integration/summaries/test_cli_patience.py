import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Timer

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cli.stack.ports import free_port
from longbatch.cli.output import notes
from longbatch.cli.progress import progress
from longbatch.client import Client, in_threads
from longbatch.documents.run import DocumentFailure, DocumentRun
from longbatch.documents.sources import SourceFile
from longbatch.documents.trees import Trees, content_of
from longbatch.errors import ApiError, FileChangedError, ServerUnreachableError, StoppedError
from longbatch.flows import Retries

ERROR = {"message": "not now", "code": "unavailable", "param": None, "type": "server_error"}
FIVE_SECONDS = Retries(away_seconds=5, full_seconds=3600, max_faults=4)


@pytest.fixture
def stop() -> Event:
    return Event()


@pytest.fixture
def client(httpserver: HTTPServer) -> Iterator[Client]:
    with Client(httpserver.url_for("")) as made:
        yield made


def refuses(httpserver: HTTPServer, *statuses: int, headers: dict[str, str] | None = None) -> None:
    """A document that is there after so many refusals."""
    left = list(statuses)

    def answer(_request: Request) -> Response:
        if left:
            return Response(json.dumps({"error": ERROR}), left.pop(0), headers)
        return Response(json.dumps({"id": "doc_1"}))

    httpserver.expect_request("/v1/documents/doc_1").respond_with_handler(answer)


def test_a_server_that_is_busy_or_restarted_is_asked_again(httpserver: HTTPServer, client: Client) -> None:
    refuses(httpserver, 503, 502)
    assert client.run(Trees(retries=FIVE_SECONDS).document("doc_1"))["id"] == "doc_1"
    assert len(httpserver.log) == 3


def test_a_full_queue_is_waited_out(httpserver: HTTPServer, client: Client) -> None:
    refuses(httpserver, *[429] * 3, headers={"Retry-After": "1"})
    trees = Trees(retries=Retries(away_seconds=0.1, full_seconds=60))
    assert client.run(trees.document("doc_1"))["id"] == "doc_1"


def test_a_limit_that_no_wait_would_help_is_reported_at_once(httpserver: HTTPServer, client: Client) -> None:
    refuses(httpserver, *[429] * 10, headers={"Retry-After": "1", "x-should-retry": "false"})
    with pytest.raises(ApiError):
        client.run(Trees(retries=FIVE_SECONDS).document("doc_1"))
    assert len(httpserver.log) == 1


def test_a_limit_that_stays_reached_is_reported_after_a_while(httpserver: HTTPServer, client: Client) -> None:
    refuses(httpserver, *[429] * 1000)
    with pytest.raises(ApiError) as raised:
        client.run(Trees(retries=Retries(away_seconds=0.1, full_seconds=0.6)).document("doc_1"))
    assert raised.value.status == 429
    assert len(httpserver.log) > 1


@pytest.mark.parametrize("is_final", [False, True])
def test_a_limit_that_stays_reached_ends_the_run_and_one_that_a_file_exceeds_its_own(
    httpserver: HTTPServer, client: Client, tmp_path: Path, *, is_final: bool
) -> None:
    headers = {"x-should-retry": "false"} if is_final else {}
    refused = Response(json.dumps({"error": ERROR}), 429, headers)
    httpserver.expect_request("/v1/documents", method="POST").respond_with_response(refused)
    file = tmp_path / "a.txt"
    file.write_text("a")
    with progress(notes, total=None, live=False) as shown:
        trees = Trees(retries=Retries(away_seconds=0.1, full_seconds=0.3))
        run = DocumentRun(trees, {}, model="m", observer=shown)
        failure = client.run(run.add(SourceFile(file, "a.txt", Path("a.txt"))))
    assert isinstance(failure, DocumentFailure)
    assert (failure.is_final, run.fatal_error is None) == (is_final, is_final)


def test_a_refusal_is_reported_at_once(httpserver: HTTPServer, client: Client) -> None:
    refuses(httpserver, 404)
    with pytest.raises(ApiError):
        client.run(Trees(retries=FIVE_SECONDS).document("doc_1"))
    assert len(httpserver.log) == 1


def test_a_fault_that_stays_is_reported(httpserver: HTTPServer, client: Client) -> None:
    refuses(httpserver, *[500] * 10)
    with pytest.raises(ApiError):
        client.run(Trees(retries=FIVE_SECONDS).document("doc_1"))
    assert len(httpserver.log) == 4


def test_a_missing_server_is_reported_after_a_while() -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(ServerUnreachableError):
        client.run(Trees(retries=Retries(away_seconds=0.6)).document("doc_1"))


def test_whoever_stops_waits_for_nothing(stop: Event) -> None:
    with Client(f"http://127.0.0.1:{free_port()}") as client:
        Timer(0.2, stop.set).start()
        with pytest.raises(StoppedError):
            client.run(Trees(retries=Retries(away_seconds=60)).document("doc_1"), stop=stop)


def test_an_upload_that_is_tried_again_is_whole(
    httpserver: HTTPServer, client: Client, tmp_path: Path
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
    trees = Trees(retries=FIVE_SECONDS)
    assert client.run(trees.add(file, content, name="a.txt"))["id"] == "doc_1"
    with pytest.raises(FileChangedError):
        client.run(trees.add(file, "another", name="a.txt"))
    httpserver.check_assertions()


def test_work_in_threads_comes_back_with_its_place_and_its_error() -> None:
    items = [SourceFile(Path(str(number)), str(number), Path(str(number))) for number in range(50)]
    done = dict(in_threads(lambda source: int(source.shown) ** 2, items, num_threads=4))
    assert done == {number: number**2 for number in range(50)}

    def fail(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(in_threads(fail, [1, 0, 1], num_threads=2))
