"""A request that is stopped early is never sent; a worker ends although its engine does not answer."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from cli.stack.servers.triton_server import LOOPBACK
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.ids import uuid7
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings, TritonSettings
from local_engine import END_OF_TURN, RunningEngine
from support import PATIENCE, eventually
from worker.engine.deltas import EngineDelta
from worker.engine.engine import StreamEnd
from worker.engine.request import Request
from worker.engine.stream import Stream
from worker.engine.triton.call import TritonCall
from worker.engine.triton.ids import IdsAdapter
from worker_support import Queue, running_worker, settings_for

INPUTS = frozenset(
    {"input_ids", "input_lengths", "request_output_len", "streaming", "end_id", "pad_id", "stop"}
)
# On this engine, about a minute; four of them fill its blocks.
LONG = 30_000


def long_stream(engine: RunningEngine, came: "queue.SimpleQueue[EngineDelta | StreamEnd]") -> Stream:
    ids = np.full(20, 1000, dtype=np.int32)
    request = Request(uuid7().hex, ids, LONG, END_OF_TURN, END_OF_TURN)
    settings = TritonSettings(url=f"{LOOPBACK}:{engine.launch.grpc_port}")
    call = TritonCall(settings, request, adapter=IdsAdapter("tensorrt_llm", INPUTS))
    return Stream(call, put=came.put)


@pytest.mark.parametrize("verb", ["stop", "cancel"])
def test_a_request_that_is_stopped_before_it_was_sent_is_never_sent(
    synthetic: RunningEngine, verb: str
) -> None:
    came: queue.SimpleQueue[EngineDelta | StreamEnd] = queue.SimpleQueue()
    stream = long_stream(synthetic, came)
    getattr(stream, verb)()
    stream.start()
    end = came.get(timeout=PATIENCE)
    assert isinstance(end, StreamEnd)
    assert end.confirmed
    assert stream.close()


def test_a_worker_ends_in_time_although_the_engine_leaves_its_canary_waiting(
    queue: Queue,
    synthetic: RunningEngine,
    tokenizer: Tokenizer,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic, drain_seconds=0.5)
    blind = settings.model_copy(update={"triton": settings.triton.model_copy(update={"metrics_url": None})})
    with running_worker(blind, tokenizer) as worker, occupied(synthetic):
        queue.add_draining()
        eventually(lambda: synthetic.gauges()["queued"] == 1)
        worker.stop()
        assert synthetic.gauges()["active"] == 4, "it ended before the canary had its turn"


@contextmanager
def occupied(engine: RunningEngine) -> Iterator[None]:
    """Streams are in all slots."""
    streams = [long_stream(engine, queue.SimpleQueue()) for _ in range(4)]
    for stream in streams:
        stream.start()
    try:
        eventually(lambda: engine.gauges()["active"] == 4)
        yield
    finally:
        for stream in streams:
            stream.close()
