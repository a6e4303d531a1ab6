"""One request on its own stream: what the engine's words and silences mean."""

import queue
from collections.abc import Callable
from typing import Any

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
    """Connections that count how often they ask the server whether it is ready."""

    def __init__(self, settings: TritonSettings, clock: Callable[[], float]) -> None:
        super().__init__(settings, clock=clock)
        self.num_asked = 0
        self._noted: set[TritonConnection] = set()

    async def take(self) -> TritonConnection:
        connection = await super().take()
        if connection not in self._noted:
            self._noted.add(connection)
            ask = connection.ready

            def noted(*given: Any, **named: Any) -> Any:  # noqa: ANN401  # as gRPC takes and returns them
                self.num_asked += 1
                return ask(*given, **named)

            connection.ready = noted
        return connection


def test_a_server_that_answered_a_probe_in_the_last_two_seconds_is_not_asked_before_a_request(
    synthetic: RunningEngine,
) -> None:
    now = 0.0
    settings = TritonSettings(url=f"{LOOPBACK}:{synthetic.launch.grpc_port}")
    channels = NotedChannels(settings, lambda: now)
    engine = TritonEngine(settings, EngineSettings(), channels=channels)

    async def send() -> int:
        """Send a request; how often the server has been asked by then."""
        request = Request(uuid7().hex, np.full(20, 1000, dtype=np.int32), 2, END_OF_TURN, END_OF_TURN)
        adapter = IdsAdapter("tensorrt_llm", INPUTS)
        call = TritonCall(settings, request, adapter=adapter, channels=channels)
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
