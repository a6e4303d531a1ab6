"""One request on its own stream: what the engine's words and silences mean."""

import asyncio
import queue
import socket
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from cli.stack.servers.triton_server import LOOPBACK
from jobs.errors import EngineError, EngineLostError, EngineUnavailableError
from jobs.ids import uuid7
from jobs.settings import EngineSettings, TritonSettings
from local_engine import END_OF_TURN, RunningEngine, free_ports
from support import PATIENCE, eventually
from worker.engine import loop
from worker.engine.deltas import EngineDelta, TokenDelta
from worker.engine.engine import StreamEnd
from worker.engine.request import Request
from worker.engine.stream import Stream
from worker.engine.triton.call import TritonCall
from worker.engine.triton.channel import Channels, TritonConnection
from worker.engine.triton.engine import TritonEngine
from worker.engine.triton.ids import IdsAdapter

INPUTS = frozenset(
    {"input_ids", "input_lengths", "request_output_len", "streaming", "end_id", "pad_id", "stop"}
)


class Opened:
    """A stream and what has come on it."""

    def __init__(
        self, port: int, *, max_tokens: int, num_prompt: int = 20, inputs: frozenset[str] = INPUTS
    ) -> None:
        self.came: queue.SimpleQueue[EngineDelta | StreamEnd] = queue.SimpleQueue()
        ids = np.full(num_prompt, 1000, dtype=np.int32)
        request = Request(uuid7().hex, ids, max_tokens, END_OF_TURN, END_OF_TURN)
        settings = TritonSettings(url=f"{LOOPBACK}:{port}")
        call = TritonCall(settings, request, adapter=IdsAdapter("tensorrt_llm", inputs))
        self.stream = Stream(call, put=self.came.put)
        self.stream.start()

    def tokens(self) -> list[int]:
        event = self.came.get(timeout=PATIENCE)
        assert isinstance(event, TokenDelta)
        return event.ids

    def end(self) -> StreamEnd:
        while not isinstance(event := self.came.get(timeout=PATIENCE), StreamEnd):
            pass
        assert self.stream.close()
        return event


def test_a_whole_answer_ends_with_the_engines_word(synthetic: RunningEngine) -> None:
    opened = Opened(synthetic.launch.grpc_port, max_tokens=5)
    assert opened.tokens()
    assert opened.end() == StreamEnd(None, confirmed=True)


def test_leaving_right_after_asking_to_stop_harms_no_server(synthetic: RunningEngine) -> None:
    for _ in range(60):  # it took eleven to crash one
        opened = Opened(synthetic.launch.grpc_port, max_tokens=100_000)
        opened.tokens()
        opened.stream.stop()
        assert opened.stream.close()
    assert synthetic.process.poll() is None


def test_without_the_stop_input_the_stream_is_cut_and_the_engine_notices(synthetic: RunningEngine) -> None:
    opened = Opened(synthetic.launch.grpc_port, max_tokens=100_000, inputs=INPUTS - {"stop"})
    opened.tokens()
    opened.stream.stop()
    end = opened.end()
    assert isinstance(end.error, EngineLostError)
    assert not end.confirmed
    eventually(lambda: synthetic.gauges()["active"] == 0)


def test_closing_a_stream_in_prefill_frees_the_engine(synthetic: RunningEngine) -> None:
    opened = Opened(synthetic.launch.grpc_port, max_tokens=100, num_prompt=90_000)
    eventually(lambda: synthetic.gauges()["context"] == 1)
    assert opened.stream.close()
    eventually(lambda: synthetic.gauges()["used"] == 0)


@pytest.mark.parametrize(
    ("max_tokens", "num_prompt", "inputs"),
    [(0, 20, INPUTS), (5, 140_000, INPUTS), (5, 20, INPUTS - {"request_output_len"})],
)
def test_a_request_that_is_wrong_is_not_worth_another_try(
    synthetic: RunningEngine, max_tokens: int, num_prompt: int, inputs: frozenset[str]
) -> None:
    end = Opened(
        synthetic.launch.grpc_port, max_tokens=max_tokens, num_prompt=num_prompt, inputs=inputs
    ).end()
    assert type(end.error) is EngineError
    assert end.confirmed


def test_an_engine_that_is_not_there_has_got_nothing() -> None:
    (port,) = free_ports(1)
    end = Opened(port, max_tokens=5).end()
    assert isinstance(end.error, EngineUnavailableError)
    assert end.confirmed


class NotedChannels(Channels):
    """Connections that note what they open, and how often they ask the server whether it is ready."""

    def __init__(self, settings: TritonSettings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, clock=clock)
        self.settings = settings
        self.num_asked = 0
        self.streams: list[Any] = []
        self.opened: set[TritonConnection] = set()

    async def take(self) -> TritonConnection:
        connection = await super().take()
        if connection not in self.opened:
            self.opened.add(connection)
            ask, infer = connection.ready, connection.infer

            def note_question(*given: Any, **named: Any) -> Any:  # noqa: ANN401  # as gRPC takes and returns them
                self.num_asked += 1
                return ask(*given, **named)

            def note_stream(*given: Any, **named: Any) -> Any:  # noqa: ANN401  # as gRPC takes and returns them
                self.streams.append(infer(*given, **named))
                return self.streams[-1]

            connection.ready, connection.infer = note_question, note_stream
        return connection


def ask(channels: NotedChannels, *, max_tokens: int = 2) -> TritonCall:
    request = Request(uuid7().hex, np.full(20, 1000, dtype=np.int32), max_tokens, END_OF_TURN, END_OF_TURN)
    adapter = IdsAdapter("tensorrt_llm", INPUTS)
    return TritonCall(channels.settings, request, adapter=adapter, channels=channels)


def test_a_server_that_answered_a_probe_in_the_last_two_seconds_is_not_asked_before_a_request(
    synthetic: RunningEngine,
) -> None:
    now = 0.0
    settings = TritonSettings(url=f"{LOOPBACK}:{synthetic.launch.grpc_port}")
    channels = NotedChannels(settings, lambda: now)
    engine = TritonEngine(settings, EngineSettings(), channels=channels)

    async def send() -> int:
        """Send a request; how often the server has been asked by then."""
        call = ask(channels)
        end = await call.run(lambda _: None, sent=lambda: None)
        assert end == StreamEnd(None, confirmed=True)
        await call.close()
        return channels.num_asked

    async def course() -> list[int]:
        nonlocal now
        found = [await send()]  # on a new connection
        for seconds, probes in ((1.9, False), (1.9, False), (2.1, False), (60, True), (60, False)):
            now += seconds
            if probes:
                assert await engine.is_ready()
            found.append(await send())
        await engine.close()
        return found

    #  new, after 1.9 s and 1.9 s more, 2.1 s, right after a probe, a minute later
    assert loop.run(course(), timeout=PATIENCE) == [1, 1, 1, 2, 2, 3]


@pytest.fixture
def counted(synthetic: RunningEngine) -> NotedChannels:
    return NotedChannels(TritonSettings(url=f"{LOOPBACK}:{synthetic.launch.grpc_port}"))


async def answered(call: TritonCall) -> int:
    """The number of tokens of a whole answer."""
    came = list[EngineDelta]()
    assert await call.run(came.append, sent=lambda: None) == StreamEnd(None, confirmed=True)
    await call.close()
    return sum(len(each.ids) for each in came if isinstance(each, TokenDelta))


def test_the_first_request_to_a_model_finds_a_connection_open(counted: NotedChannels) -> None:
    engine = TritonEngine(counted.settings, EngineSettings(), channels=counted)

    async def course() -> bool:
        for _ in range(2):  # as often as it is described
            await engine.model()
        connection = await counted.take()
        was_open = connection.is_open
        await counted.give_back(connection)
        await answered(ask(counted))
        await engine.close()
        return was_open

    assert loop.run(course(), timeout=PATIENCE)
    assert len(counted.opened) == 1


def test_a_connection_that_does_not_open_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[TritonConnection]()
    close = TritonConnection.close

    async def note_closed(connection: TritonConnection) -> None:
        closed.append(connection)
        await close(connection)

    monkeypatch.setattr(TritonConnection, "close", note_closed)

    async def course() -> int:
        channels = Channels(TritonSettings(url=f"{LOOPBACK}:{silent.getsockname()[1]}"))
        await channels.open_ahead()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):  # interrupts it where it waits
                await channels.open_ahead()
        num_closed = len(closed)
        await channels.close()
        return num_closed

    with socket.create_server((LOOPBACK, 0)) as silent:  # it accepts and says nothing
        assert loop.run(course(), timeout=PATIENCE) == 2
    assert len(closed) == 2, "none was left to be closed"


def test_a_request_is_on_its_way_once_it_is_written(counted: NotedChannels) -> None:
    happened = list[str]()

    async def course() -> None:
        call, connection = ask(counted), await counted.take()
        infer = connection.infer

        def note_written(*given: Any, **named: Any) -> Any:  # noqa: ANN401  # as gRPC takes and returns them
            stream = infer(*given, **named)
            write = stream.write

            async def write_and_note(message: Any) -> None:  # noqa: ANN401  # generated code has no types
                await write(message)
                happened.append("written")

            stream.write = write_and_note
            return stream

        connection.infer = note_written
        await counted.give_back(connection)
        async with asyncio.timeout(PATIENCE):
            await connection.channel.channel_ready()
            await call.run(lambda _: happened.append("answered"), sent=lambda: happened.append("sent"))
        await call.close()
        await counted.close()

    loop.run(course(), timeout=PATIENCE)
    assert happened[:3] == ["written", "sent", "answered"]


def test_one_stream_serves_one_request_after_another(counted: NotedChannels) -> None:
    async def course() -> list[int]:
        found = [await answered(ask(counted, max_tokens=each)) for each in (3, 5, 2, 4)]
        await counted.close()
        return found

    assert loop.run(course(), timeout=PATIENCE) == [3, 5, 2, 4]
    # The first one's end shows that the model marks it; the second one opens the stream that is kept.
    assert len(counted.streams) == 2


def test_a_stream_that_no_request_uses_is_closed_soon(counted: NotedChannels) -> None:
    async def course() -> int:
        for _ in range(2):
            await answered(ask(counted))
        assert not counted.streams[-1].done()
        async with asyncio.timeout(PATIENCE):
            assert await counted.streams[-1].code() is grpc.StatusCode.OK
        found = await answered(ask(counted))
        await counted.close()
        return found

    assert loop.run(course(), timeout=PATIENCE) == 2
    assert len(counted.opened) == 1, "its connection goes on"


def test_a_request_that_fails_or_is_stopped_leaves_no_stream(counted: NotedChannels) -> None:
    async def course() -> list[StreamEnd]:
        for _ in range(2):
            await answered(ask(counted))
        wrong = ask(counted, max_tokens=0)
        ends = [await wrong.run(lambda _: None, sent=lambda: None)]
        await wrong.close()
        assert await answered(ask(counted)) == 2
        long = ask(counted, max_tokens=100_000)
        running = asyncio.create_task(long.run(lambda _: long.stop(), sent=lambda: None))
        ends.append(await running)
        await long.close()
        assert counted.streams[-2].done(), "the last one carried the request to stop"
        assert await answered(ask(counted)) == 2
        await counted.close()
        return ends

    failed, stopped = loop.run(course(), timeout=PATIENCE)
    assert isinstance(failed.error, EngineError)
    assert stopped == StreamEnd(None, confirmed=True)


def test_what_is_cut_after_its_end_harms_no_later_request(counted: NotedChannels) -> None:
    async def course() -> int:
        for _ in range(2):
            await answered(ask(counted))
        early = ask(counted)
        await answered(early)
        late = ask(counted, max_tokens=200)
        came, has_begun = list[EngineDelta](), asyncio.Event()

        def put(delta: EngineDelta) -> None:
            came.append(delta)
            has_begun.set()

        running = asyncio.create_task(late.run(put, sent=lambda: None))
        async with asyncio.timeout(PATIENCE):
            await has_begun.wait()
        early.cancel()
        assert await running == StreamEnd(None, confirmed=True)
        await late.close()
        found = sum(len(each.ids) for each in came if isinstance(each, TokenDelta))
        await counted.close()
        return found

    assert loop.run(course(), timeout=PATIENCE) == 200
