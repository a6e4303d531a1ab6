"""One request over HTTP: what the words, the silences and the faults of a server mean for a job.

The server of these tests is a socket that sends prepared bytes, in vLLM's format where nothing else is said.
"""

import asyncio
import json
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import ThreadedResolver
from aiohttp.abc import ResolveResult
from pydantic import SecretStr

from cli.stack.ports import LOOPBACK
from hostile.servers import (
    Conduct,
    Server,
    answering,
    forever,
    half_closing,
    make_certificate,
    resetting,
    serving,
    serving_as,
    silent,
)
from jobs.errors import (
    EngineBusyError,
    EngineError,
    EngineForbidsError,
    EngineLostError,
    EngineMisconfiguredError,
    EngineUnavailableError,
    RetryableEngineError,
)
from jobs.settings import EngineSettings, TritonSettings
from local_engine import free_ports
from support import PATIENCE, eventually
from worker.engine import loop, sessions
from worker.engine.client import EngineClient
from worker.engine.deltas import CachedPrompt, EngineDelta, TextDelta, TokenDelta
from worker.engine.engine import NOT_SENT, StreamEnd
from worker.engine.exposition import parse
from worker.engine.http import call
from worker.engine.http.call import Dialect, HttpCall
from worker.engine.http.server import HttpServer
from worker.engine.kinds import HTTP_KINDS
from worker.engine.request import Request
from worker.engine.stream import Stream

DialectOf = Callable[[Request], Dialect]
VLLM, SGLANG, OPENAI, TRTLLM_SERVE = (
    partial(HTTP_KINDS[name].dialect, "served") for name in ("vllm", "sglang", "openai", "trtllm-serve")
)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(*ids: int, reason: str | None = None) -> bytes:
    """Of vLLM's stream."""
    return data({"choices": [{"index": 0, "token_ids": list(ids), "finish_reason": reason}]})


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def data(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def refusing(status: str, body: bytes = b"", *, headers: bytes = b"") -> Conduct:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n%s\r\n"
    return answering(head % (status.encode(), headers), body)


class Opened:
    """A request and what has come of it."""

    def __init__(
        self,
        url: str,
        *,
        dialect: DialectOf = VLLM,
        max_tokens: int = 3,
        key: str = "",
        text: str = "five six",
    ) -> None:
        self.came: queue.SimpleQueue[EngineDelta | StreamEnd] = queue.SimpleQueue()
        request = Request("request-1", np.array([5, 6], dtype=np.int32), max_tokens, 2, 2, text=text)
        server = HttpServer(url, SecretStr(key) if key else None)
        self.stream = Stream(HttpCall(server, request, dialect=dialect), put=self.came.put)

    def start(self) -> "Opened":
        self.stream.start()
        return self

    def next(self) -> EngineDelta | StreamEnd:
        return self.came.get(timeout=PATIENCE)

    def end(self) -> tuple[list[int], StreamEnd]:
        """All ids and the end; nothing follows it."""
        ids: list[int] = []
        while not isinstance(found := self.next(), StreamEnd):
            ids += found.ids if isinstance(found, TokenDelta) else []
        assert self.stream.close()
        assert self.came.empty()
        return ids, found


@contextmanager
def engine(conduct: Conduct) -> Iterator[tuple[Server, str]]:
    with serving(conduct) as server:
        yield server, f"http://{LOOPBACK}:{server.port}"


def asked(conduct: Conduct, *, dialect: DialectOf = VLLM, max_tokens: int = 3) -> tuple[list[int], StreamEnd]:
    with engine(conduct) as (_, url):
        return Opened(url, dialect=dialect, max_tokens=max_tokens).start().end()


def is_lost(end: StreamEnd) -> bool:
    return isinstance(end.error, EngineLostError) and not end.confirmed


def test_a_whole_answer_is_confirmed_and_carries_key_and_request_id() -> None:
    with engine(answering(STREAM, event(7), event(8, 9, reason="length"), DONE)) as (server, url):
        assert Opened(url, key="secret-key").start().end() == ([7, 8, 9], StreamEnd(None, confirmed=True))
    head = server.requests[0].lower()
    assert b"authorization: bearer secret-key" in head
    assert b"x-request-id: request-1" in head


def test_tokens_that_come_together_are_one_delta() -> None:
    together = event(7) + event(8, 9, reason="length") + DONE
    with engine(answering(STREAM, together)) as (_, url):
        opened = Opened(url).start()
        assert opened.next() == TokenDelta([7, 8, 9])
        assert opened.end() == ([], StreamEnd(None, confirmed=True))


def test_a_connection_that_breaks_while_its_stream_is_not_read_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "_MANY_STREAMS", 0)
    ids, end = asked(answering(STREAM, event(7)))
    assert ids == [7]
    assert not end.confirmed


def test_all_chunks_that_arrive_during_a_pause_are_one_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_MANY_STREAMS", 0)
    monkeypatch.setattr(call, "_PAUSE_SECONDS", 1.0)  # longer than these sends take on a busy machine

    def conduct(connected: socket.socket) -> None:
        """Send each event as a chunk of its own, as vLLM does."""
        connected.sendall(CHUNKED + chunk(event(1)))
        is_paused.wait(PATIENCE)
        for token_id in range(2, 20):
            connected.sendall(chunk(event(token_id)))
        connected.sendall(chunk(event(20, reason="length")) + chunk(DONE))

    is_paused = threading.Event()
    with engine(conduct) as (_, url):
        opened = Opened(url, max_tokens=20).start()
        assert opened.next() == TokenDelta([1])
        is_paused.set()
        assert opened.next() == TokenDelta(list(range(2, 21)))
        assert opened.end() == ([], StreamEnd(None, confirmed=True))


def test_a_chunk_that_cannot_be_parsed_breaks_a_stream_that_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_MANY_STREAMS", 0)

    def conduct(connected: socket.socket) -> None:
        connected.sendall(CHUNKED + chunk(event(7)))
        is_paused.wait(PATIENCE)
        connected.sendall(chunk(event(8)) + b"no chunk\r\n")
        connected.recv(1)  # until the other side closes

    is_paused = threading.Event()
    with engine(conduct) as (_, url):
        opened = Opened(url).start()
        assert opened.next() == TokenDelta([7])
        is_paused.set()
        ids, end = opened.end()
    assert ids in ([], [8])
    assert is_lost(end)


def test_an_end_that_arrives_during_a_pause_is_read_through_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(call, "_MANY_STREAMS", 0)
    certificate = make_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(certificate))
    trusted.check_hostname = False
    monkeypatch.setattr(sessions, "trusted", lambda: trusted)

    def conduct(connected: socket.socket) -> None:
        connected.sendall(CHUNKED + chunk(event(1)))
        is_paused.wait(PATIENCE)
        connected.sendall(chunk(event(2, reason="length")) + chunk(DONE) + chunk(b""))

    is_paused = threading.Event()
    with serving(conduct, tls=serving_as(certificate)) as server:
        opened = Opened(f"https://{LOOPBACK}:{server.port}", max_tokens=2).start()
        assert opened.next() == TokenDelta([1])
        is_paused.set()
        assert opened.end() == ([2], StreamEnd(None, confirmed=True))


def test_an_event_longer_than_a_read_is_read_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang repeats all ids in each event; a pause for each part of it could not keep up."""
    monkeypatch.setattr(call, "_MANY_STREAMS", 0)
    monkeypatch.setattr(call, "_PAUSE_SECONDS", 2 * PATIENCE)
    ids = list(range(2**18))
    with engine(answering(STREAM, event(*ids, reason="length"), DONE)) as (_, url):
        opened = Opened(url, max_tokens=len(ids)).start()
        assert opened.end() == (ids, StreamEnd(None, confirmed=True))


def test_the_usage_after_an_answer_says_what_the_engine_had_of_its_prompt() -> None:
    usage = {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 512}}
    last = data({"choices": [], "usage": usage})
    with engine(answering(STREAM, event(7, reason="stop"), last, event(8), DONE)) as (server, url):
        opened = Opened(url).start()
        assert [opened.next() for _ in range(3)] == [
            TokenDelta([7]),
            CachedPrompt(512),
            StreamEnd(None, confirmed=True),
        ]
        assert opened.stream.close()
    assert b'"stream_options": {"include_usage": true}' in server.requests[0]


def test_nobody_listening_means_that_nothing_was_sent() -> None:
    (port,) = free_ports(1)
    assert Opened(f"http://{LOOPBACK}:{port}").start().end() == ([], NOT_SENT)


def test_a_connection_that_breaks_after_the_request_leaves_the_engine_in_doubt() -> None:
    for conduct in (
        resetting,
        half_closing,
        answering(b"HTTP/1.1 200 OK\r\n"),
        answering(b"no HTTP\r\n\r\n"),
    ):
        ids, end = asked(conduct)
        assert not ids
        assert is_lost(end)


def test_a_stream_cut_between_and_inside_events_keeps_the_whole_ones() -> None:
    one = chunk(event(7))
    for rest in (b"", b"ff\r\ndata: {", one[:-4]):
        ids, end = asked(answering(CHUNKED, one, rest))
        assert ids == [7]
        assert is_lost(end)


@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
def test_a_body_that_is_not_chunked_as_it_says_breaks_at_once(status: str) -> None:
    head = b"HTTP/1.1 %s\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    one = event(7)

    def conduct(connected: socket.socket) -> None:
        connected.sendall(head % status.encode() + b"%x\r\n%s\r\n" % (len(one), one))
        read.wait(PATIENCE)
        connected.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        connected.recv(1)  # until the other side closes

    read = threading.Event()
    with engine(conduct) as (_, url):
        opened = Opened(url).start()
        first = [opened.next()] if status == "200 OK" else []
        read.set()
        end = opened.end()[1]
    assert first in ([], [TokenDelta([7])])
    assert end.error is not None
    assert not end.confirmed


def test_comments_and_empty_events_are_no_part_of_an_answer() -> None:
    last = event(8, reason="stop").replace(b', "token_ids"', b',\n: a comment\ndata: "token_ids"')
    events = (b": a comment\n\n", b"data:\n\n", b"data\n\n", event(7), b": a comment\r\n\r\n", last, DONE)
    assert last.count(b"data:") == 2
    assert asked(answering(STREAM, *events)) == ([7, 8], StreamEnd(None, confirmed=True))


def test_a_stream_that_ends_without_a_reason_is_an_error_nobody_confirms() -> None:
    for last in (DONE, b"", b"data: \n\n", b": ping\n\n"):
        ids, end = asked(answering(STREAM, event(7), last))
        assert ids == [7]
        assert type(end.error) is RetryableEngineError
        assert not end.confirmed


@pytest.mark.parametrize(
    "broken", [b'data: {"choices": [\n\n', b"data: []\n\n", data({"choices": [{"token_ids": ["x"]}]})]
)
def test_an_event_that_cannot_be_read_ends_the_answer_there(broken: bytes) -> None:
    """Ids after a hole would be saved as if nothing were missing."""
    ids, end = asked(answering(STREAM, event(7), broken, event(9, reason="stop"), DONE))
    assert ids == [7]
    assert isinstance(end.error, RetryableEngineError)
    assert not end.confirmed


def test_text_without_its_token_ids_is_no_answer() -> None:
    """Older releases do not know the field that asks for them: the text would be lost in silence."""
    ids, end = asked(answering(STREAM, data({"choices": [{"text": "hello", "finish_reason": "stop"}]}), DONE))
    assert not ids
    assert isinstance(end.error, RetryableEngineError)
    assert "token_ids" in end.error.said


def test_nested_json_without_end_cannot_break_the_reader() -> None:
    ids, end = asked(answering(STREAM, event(7), b"data: " + b"[" * 200_000 + b"\n\n"))
    assert ids == [7]
    assert end.error is not None
    assert end.error.message == "the engine's answer cannot be read"


def test_an_error_event_under_status_200_fails_the_attempt() -> None:
    error = data({"error": {"code": 500, "message": "Context size has been exceeded."}})
    ids, end = asked(answering(STREAM, event(7), error, event(8), DONE))
    assert ids == [7]
    assert type(end.error) is RetryableEngineError
    assert end.error.said == "Context size has been exceeded."
    assert end.confirmed


def aborted(ids: list[int], *, status: int | None, total: int = 1) -> bytes:
    """SGLang's abort, which has the id of a forward pass over nothing if it refuses a request."""
    reason = {"type": "abort", "message": "Input length exceeds", "status_code": status}
    return sglang_event(ids, total, reason)


@pytest.mark.parametrize("status", [400, 422])
def test_a_refusal_in_the_stream_before_any_output_is_the_request_s_fault(status: int) -> None:
    error = data({"error": {"code": status, "message": "top_p must be in (0, 1]", "retryable": False}})
    for dialect, refusal in ((VLLM, error), (SGLANG, error), (SGLANG, aborted([5], status=status))):
        ids, end = asked(answering(STREAM, refusal, DONE), dialect=dialect)
        assert not ids
        assert type(end.error) is EngineError
        assert end.error.message in {"top_p must be in (0, 1]", "Input length exceeds"}
        assert end.confirmed


def test_a_refusal_in_the_stream_is_no_proof_after_output_or_from_a_kind_that_calls_all_errors_so() -> None:
    error = data({"error": {"code": 400, "message": "lost"}})
    late = aborted([7, 5], status=400, total=2)
    for dialect, sent in (
        (VLLM, [event(7), error]),
        (TRTLLM_SERVE, [error]),
        (SGLANG, [sglang_event([7], 1), error]),
        (SGLANG, [sglang_event([7], 1), late]),
    ):
        _, end = asked(answering(STREAM, *sent, DONE), dialect=dialect)
        assert type(end.error) is RetryableEngineError
        assert end.confirmed


def test_an_engine_whose_queue_is_full_is_busy() -> None:
    full = aborted([], status=503, total=0)
    ids, end = asked(answering(STREAM, full, DONE), dialect=SGLANG)
    assert not ids
    assert type(end.error) is EngineBusyError


def test_an_abort_that_repeats_the_last_token_adds_none() -> None:
    """SGLang does so with `--incremental-streaming-output` if it preempted the request before."""
    sent = [sglang_event([7], 1), sglang_event([8], 2), aborted([8], status=None, total=2)]
    ids, end = asked(answering(STREAM, *sent, DONE), dialect=SGLANG)
    assert ids == [7, 8]
    assert type(end.error) is RetryableEngineError


def test_an_error_that_a_proxy_may_have_written_confirms_nothing() -> None:
    ids, end = asked(answering(STREAM, data({"error": "upstream closed"})), dialect=OPENAI)
    assert not ids
    assert isinstance(end.error, RetryableEngineError)
    assert not end.confirmed


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_finish_reason_that_is_no_success_fails_the_attempt(reason: str) -> None:
    _, end = asked(answering(STREAM, event(7, reason=reason), DONE))
    assert type(end.error) is RetryableEngineError
    assert end.error.said == f"finish_reason {reason}"


def test_an_answer_that_vllm_ends_for_its_repetition_is_whole() -> None:
    assert asked(answering(STREAM, event(7, reason="repetition"), DONE)) == (
        [7],
        StreamEnd(None, confirmed=True),
    )


@pytest.mark.parametrize("dialect", [VLLM, OPENAI])
def test_an_unknown_finish_reason_is_never_tried_again(dialect: DialectOf) -> None:
    _, end = asked(answering(STREAM, event(7, reason="content_filter"), DONE), dialect=dialect)
    assert type(end.error) is EngineError
    assert not end.error.retryable
    assert "finish reason 'content_filter'" in end.error.message


def test_an_answer_cut_at_the_engine_s_own_limit_names_the_setting() -> None:
    ids, end = asked(answering(STREAM, event(7), event(8, reason="length"), DONE))
    assert ids == [7, 8]
    assert type(end.error) is EngineError
    assert "LONGBATCH_ENGINE__MAX_SEQ_LEN" in end.error.message


def test_a_stream_held_open_after_its_end_is_whole_and_confirmed() -> None:
    conduct = forever(b": ping\n\n", first=STREAM + event(7, reason="stop"), pause=0.2)
    assert asked(conduct) == ([7], StreamEnd(None, confirmed=True))


def test_events_after_the_end_do_not_keep_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_END_SECONDS", 0.3)
    conduct = forever(data({"choices": []}), first=STREAM + event(7, reason="stop"), pause=0.1)
    assert asked(conduct) == ([7], StreamEnd(None, confirmed=True))


def test_a_stream_cut_by_us_after_its_end_is_confirmed() -> None:
    conduct = forever(b": ping\n\n", first=STREAM + event(7, reason="stop"), pause=0.2)
    with engine(conduct) as (_, url):
        opened = Opened(url).start()
        assert opened.next() == TokenDelta([7])
        opened.stream.cancel()
        assert opened.end() == ([], StreamEnd(None, confirmed=True))


def test_a_server_that_does_not_stream_is_understood() -> None:
    body = json.dumps({"choices": [{"token_ids": [7, 8], "finish_reason": "stop"}]}).encode()
    assert asked(refusing("200 OK", body)) == ([7, 8], StreamEnd(None, confirmed=True))


def test_an_event_without_end_does_not_fill_the_memory() -> None:
    ids, end = asked(forever(b"x" * 2**16, first=STREAM + event(7) + b"data: "))
    assert ids == [7]
    assert is_lost(end)


def test_an_error_body_without_end_is_read_no_further_than_a_message() -> None:
    head = b"HTTP/1.1 500 Oops\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    _, end = asked(forever(b"no " * 1000, first=head))
    assert isinstance(end.error, RetryableEngineError)
    assert end.error.said.startswith("no no")
    assert not end.confirmed


@pytest.mark.parametrize("status", ["400 Bad Request", "413 Too Large", "422 Unprocessable"])
def test_a_wrong_request_fails_for_good(status: str) -> None:
    _, end = asked(refusing(status, b'{"error":{"message":"too long","type":"BadRequestError"}}'))
    assert type(end.error) is EngineError
    assert end.error.message == "too long"
    assert end.confirmed


def test_a_400_of_a_server_that_sends_it_for_everything_is_worth_another_try() -> None:
    conduct = refusing("400 Bad Request", b'{"object":"error","message":"boom","code":400}')
    _, end = asked(conduct, dialect=TRTLLM_SERVE)
    assert type(end.error) is RetryableEngineError
    assert end.error.said == "boom"


@pytest.mark.parametrize(
    "status",
    ["401 No", "403 No", "404 No", "405 No", "408 No", "429 No", "503 Busy", "307 Moved", "301 Moved"],
)
def test_a_server_that_accepts_nothing_costs_no_attempt(status: str) -> None:
    _, end = asked(refusing(status, headers=b"Location: http://elsewhere.test/\r\n"))
    assert isinstance(end.error, EngineUnavailableError)
    assert end.confirmed
    will_pass = status.startswith(("408", "429", "503"))
    assert isinstance(end.error, EngineMisconfiguredError) != will_pass
    assert isinstance(end.error, EngineBusyError) == will_pass
    assert status[:3] in end.error.message
    assert isinstance(end.error, EngineForbidsError) == status.startswith("403"), (
        "only that can be about a prompt"
    )
    assert ("LONGBATCH_ENGINE__API_KEY" in end.error.message) == status.startswith(("401", "403"))


@pytest.mark.parametrize("status", ["500 Oops", "502 Bad Gateway", "504 Timeout"])
def test_a_server_error_is_worth_another_try_and_confirms_nothing(status: str) -> None:
    _, end = asked(refusing(status, b'{"detail":"CUDA error"}'))
    assert type(end.error) is RetryableEngineError
    assert end.error.said == "CUDA error"
    assert not end.confirmed


def test_a_refusal_that_quotes_the_prompt_is_told_without_it() -> None:
    detail = [{"type": "int", "loc": ["body", "prompt"], "msg": "not an integer", "input": "my secret plan"}]
    _, end = asked(refusing("422 Unprocessable", json.dumps({"detail": detail}).encode()))
    assert end.error is not None
    assert end.error.said == "body.prompt: not an integer"
    assert "secret" not in end.error.message


def test_cutting_before_headers_leaves_the_engine_in_doubt() -> None:
    with engine(silent) as (server, url):
        opened = Opened(url).start()
        eventually(lambda: server.requests)
        opened.stream.cancel()
        assert is_lost(opened.end()[1])


def test_a_request_stopped_before_it_is_sent_never_is() -> None:
    for act in (Stream.stop, Stream.cancel, Stream.close):
        with engine(answering(STREAM, event(7, reason="stop"))) as (server, url):
            opened = Opened(url, dialect=SGLANG)
            act(opened.stream)
            opened.start()
            assert opened.end() == ([], NOT_SENT)
            assert not server.num_connections


def test_a_request_stopped_while_it_connects_is_cut() -> None:
    """A stop that overtakes its request ends nothing: the request would run to its last token."""
    greeted = threading.Event()

    def conduct(connected: socket.socket) -> None:
        """Never answer the client's first word, without which it sends no request."""
        connected.recv(1)
        greeted.set()
        while connected.recv(65536):
            pass

    with serving(conduct, reads=False) as server:
        opened = Opened(f"https://{LOOPBACK}:{server.port}", dialect=SGLANG).start()
        assert greeted.wait(PATIENCE)
        opened.stream.stop()
        assert opened.end() == ([], NOT_SENT)


def test_a_name_that_is_not_resolved_in_time_means_that_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait(*_: object, **__: object) -> list[ResolveResult]:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(ThreadedResolver, "resolve", wait)
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 0.1)
    assert Opened("http://engine.test:8000").start().end() == ([], NOT_SENT)


@pytest.mark.parametrize("act", [Stream.stop, Stream.cancel, Stream.close])
def test_a_request_cut_while_it_is_written_never_arrives(act: Callable[[Stream], object]) -> None:
    """Nor do its last bytes follow once the server reads again."""
    is_cut = threading.Event()
    left: list[int] = []

    def conduct(connected: socket.socket) -> None:
        """Read the head, and the rest when the client has gone."""
        head, _, body = read_until(connected, b"\r\n\r\n").partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        is_read.set()
        is_cut.wait(PATIENCE)
        left.append(length - len(body))
        while received := connected.recv(2**20):
            left[0] -= len(received)

    is_read = threading.Event()
    with serving(conduct, reads=False) as server:
        opened = Opened(f"http://{LOOPBACK}:{server.port}", dialect=OPENAI, text="x" * 2**25).start()
        assert is_read.wait(PATIENCE)
        act(opened.stream)
        assert opened.end() == ([], NOT_SENT)
        is_cut.set()
    assert left[0] > 0


def read_until(connected: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        received += connected.recv(65536)
    return received


@contextmanager
def asked_to_stop(conduct: Conduct) -> Iterator[Opened]:
    """A request that streams, and whose stop request was received and is answered as `conduct` says."""
    streaming: list[socket.socket] = []

    def serve(connected: socket.socket) -> None:
        if streaming:
            conduct(connected)
            return
        streaming.append(connected.dup())
        connected.sendall(STREAM + data({"output_ids": [7], "meta_info": {"completion_tokens": 1}}))

    with engine(serve) as (server, url):
        opened = Opened(url, dialect=SGLANG, max_tokens=99).start()
        assert opened.next() == TokenDelta([7])
        opened.stream.stop()
        eventually(lambda: len(server.requests) == 2)
        assert b"/abort_request" in server.requests[1]
        yield opened
    for each in streaming:
        each.close()


@pytest.mark.parametrize("status", ["302 Found", "500 Oops"])
def test_a_stop_request_that_is_refused_cuts_the_stream(status: str) -> None:
    with asked_to_stop(refusing(status)) as opened:
        assert is_lost(opened.end()[1])


def test_a_stop_request_whose_answer_never_ends_keeps_no_connection() -> None:
    endless = forever(b"x", first=b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", pause=0.1)
    with asked_to_stop(endless) as opened:
        assert opened.stream.close()
        assert is_lost(opened.end()[1])


def sglang_event(ids: list[int], total: int | None, reason: Mapping[str, Any] | None = None) -> bytes:
    about: dict[str, object] = {"finish_reason": reason}
    return data(
        {"output_ids": ids, "meta_info": about | ({"completion_tokens": total} if total is not None else {})}
    )


@pytest.mark.parametrize(
    "events", [[([5], 1), ([5], 2), ([5], 3)], [([5], 1), ([5, 5], 2), ([5, 5, 5], 3)], [([5, 5, 5], 3)]]
)
def test_the_same_token_again_is_not_taken_for_a_repeated_answer(events: list[tuple[list[int], int]]) -> None:
    sent = [sglang_event(*each) for each in events]
    end = sglang_event(events[-1][0] if len(events[-1][0]) > 1 else [], 3, {"type": "length", "length": 3})
    assert asked(answering(STREAM, *sent, end, DONE), dialect=SGLANG) == (
        [5] * 3,
        StreamEnd(None, confirmed=True),
    )


def test_ids_that_do_not_add_up_are_an_error() -> None:
    ids, end = asked(answering(STREAM, sglang_event([5], 1), sglang_event([7], 5)), dialect=SGLANG)
    assert ids == [5]
    assert not end.confirmed


def test_the_usage_after_a_text_is_its_number_of_tokens() -> None:
    text = data({"choices": [{"text": "hello", "finish_reason": "length"}]})
    usage = data({"choices": [], "usage": {"completion_tokens": 3}})
    with engine(answering(STREAM, text, usage, DONE)) as (_, url):
        opened = Opened(url, dialect=OPENAI).start()
        assert isinstance(opened.next(), TextDelta)
        assert opened.next() == TextDelta("", num_tokens=3)
        assert opened.next() == StreamEnd(None, confirmed=True)
        assert opened.stream.close()


def test_a_server_that_trickles_is_not_waited_for() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    with engine(forever(b" ", first=head, pause=0.5)) as (_, url):
        server = HttpServer(url)
        assert not loop.run(server.is_answering("/health"), timeout=PATIENCE)
        with pytest.raises(EngineUnavailableError):
            loop.run(server.read("/v1/models"), timeout=PATIENCE)


@pytest.mark.parametrize(
    "told", [b"[1]", b'{"default_generation_settings": null}', b'{"data": [{"id": []}]}']
)
@pytest.mark.parametrize("kind", HTTP_KINDS)
def test_a_server_that_tells_nonsense_of_itself_is_unavailable(kind: str, told: bytes) -> None:
    with engine(refusing("200 OK", told)) as (_, url):
        client = EngineClient(TritonSettings(), EngineSettings(url=url, kind=kind), end_id=2)
        with pytest.raises(EngineUnavailableError):
            client.describe()
        assert client.gauges() is None
        client.close()


def test_a_gauge_that_is_no_number_is_left_out() -> None:
    assert [each.name for each in parse("a:x NaN\na:y 1\na:z +Inf\nb:v 1\n", "a:")] == ["a:y"]
