"""One request on its own stream: what the engine's words and silences mean."""

import queue

import numpy as np
import pytest

from cli.stack.servers.triton_server import LOOPBACK
from jobs.errors import EngineError, EngineLostError, EngineUnavailableError
from jobs.ids import uuid7
from jobs.settings import TritonSettings
from local_engine import END_OF_TURN, RunningEngine, free_ports
from support import PATIENCE, eventually
from worker.engine.deltas import EngineDelta, TokenDelta
from worker.engine.engine import StreamEnd
from worker.engine.request import Request
from worker.engine.stream import Stream
from worker.engine.triton.call import TritonCall
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
