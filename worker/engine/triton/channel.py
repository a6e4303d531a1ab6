"""gRPC connections to Triton, and the stream that each keeps open from one request to the next."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2_grpc

from jobs.settings import TritonSettings

_MAX_IDLE: Final = 256  # as many as large deployments have slots
# Triton drops a client that pings more often than every 300 s unless its flags allow more.
_SLOW_PING_MS: Final = 310_000
# A server that answered a probe or ended a stream well so recently is ready for the next one; asking takes as
# long as sending. A little longer than the time between two probes.
_READY_SECONDS: Final = 2.0
# A server that shuts down waits for open streams: one that no request uses is closed after this time.
_IDLE_SECONDS: Final = 1.0
# A server that has just answered is given so long for a connection that no request waits for yet.
_AHEAD_SECONDS: Final = 1.0
# What a call raises once it is cut or its channel is closed.
CUT: Final = (grpc.RpcError, grpc.aio.UsageError)


def open_channel(settings: TritonSettings) -> grpc.aio.Channel:
    """Open a separate connection: a shared one would lose all its streams at once.

    Call it on the event loop that uses it.
    """
    pings = (10_000, 5_000) if settings.fast_keepalive else (_SLOW_PING_MS, 20_000)
    return grpc.aio.insecure_channel(
        settings.url,
        options=[
            ("grpc.use_local_subchannel_pool", 1),  # otherwise channels with equal options share one
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", pings[0]),
            ("grpc.keepalive_timeout_ms", pings[1]),
            ("grpc.http2.ping_timeout_ms", pings[1]),  # without it, a frozen server goes unnoticed for 70 s
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.enable_retries", 0),  # a request sent twice would run twice
            ("grpc.enable_http_proxy", 0),
        ],
    )


class TritonConnection:
    """A gRPC connection for one request at a time. Used on the engine loop alone.

    Attributes:
        infer: the call `ModelStreamInfer`.
        ready: the call `ModelReady`.
    """

    def __init__(self, settings: TritonSettings) -> None:
        """Open it; its calls are built once, which takes as long as some of them."""
        self.channel = open_channel(settings)
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.infer: Any = stub.ModelStreamInfer
        self.ready: Any = stub.ModelReady
        self._kept: Any = None
        self._closing: asyncio.TimerHandle | None = None
        self._closed: asyncio.Task[None] | None = None  # keeps it alive

    @property
    def is_open(self) -> bool:
        """True if the server has not closed the connection."""
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    def stream(self) -> Any:  # noqa: ANN401  # generated code has no types
        """Return the stream that was kept, or open one."""
        kept, self._kept = self._kept, None
        if self._closing is not None:
            self._closing.cancel()
        return self.infer() if kept is None or kept.done() else kept

    def keep(self, stream: Any) -> None:  # noqa: ANN401  # generated code has no types
        """Keep a stream on which the server has nothing left to send, for the next request."""
        self._kept = stream
        self._closing = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._close_idle)

    async def close(self) -> None:
        """Close it, with what is open on it."""
        if self._closing is not None:
            self._closing.cancel()
        await self.channel.close()

    def _close_idle(self) -> None:
        if self._kept is not None:
            self._closed = asyncio.create_task(_end(self._kept))
            self._kept = None


async def _end(stream: Any) -> None:  # noqa: ANN401  # generated code has no types
    """Send the end of a stream, and await the server's."""
    with contextlib.suppress(*CUT, asyncio.CancelledError):
        await stream.done_writing()
        await stream.read()


class Channels:
    """Connections that serve one request at a time. Used on the engine loop alone.

    One loss never ends two requests. A connection whose request ended well serves a later one, on the same
    stream: a new one of either costs more than a short request.
    """

    def __init__(self, settings: TritonSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: seconds, by which a server was ready a moment ago."""
        self._settings = settings
        self._clock = clock
        self._idle: list[TritonConnection] = []
        self._is_closed = False
        self._ready_at: dict[str, float] = {}
        self._marking: set[str] = set()

    def note_marks_end(self, model_name: str) -> None:
        """Record that the server marks the last response of this model's requests."""
        self._marking.add(model_name)

    def marks_end(self, model_name: str) -> bool:
        """Return True if the end of a request to this model is certain without the end of its stream."""
        return model_name in self._marking

    def note_ready(self, model_name: str) -> None:
        """Record that the server has just shown that it serves this model."""
        self._ready_at[model_name] = self._clock()

    def was_just_ready(self, model_name: str) -> bool:
        """Return True if the server served this model a moment ago."""
        return self._clock() - self._ready_at.get(model_name, float("-inf")) < _READY_SECONDS

    async def take(self) -> TritonConnection:
        """Return a connection that no request uses."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            await connection.close()
        return TritonConnection(self._settings)

    async def open_ahead(self) -> None:
        """Open a connection, unless one is idle, so that the next request need not wait for it."""
        if any(each.is_open for each in self._idle):
            return
        connection = TritonConnection(self._settings)
        try:
            async with asyncio.timeout(_AHEAD_SECONDS):
                await connection.channel.channel_ready()
        except BaseException as error:
            await connection.close()
            if not isinstance(error, TimeoutError):
                raise
        else:
            await self.give_back(connection)

    async def give_back(self, connection: TritonConnection) -> None:
        """Keep a connection that is new, or whose request ended well."""
        if self._is_closed or len(self._idle) >= _MAX_IDLE:
            await connection.close()
        else:
            self._idle.append(connection)

    async def close(self) -> None:
        """Close the connections that no request uses, and those given back later."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().close()
