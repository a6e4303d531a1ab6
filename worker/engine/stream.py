"""One request to the engine, on its own stream to Triton."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from jobs import telemetry
from jobs.errors import EngineError, EngineUnavailableError, RetryableEngineError
from jobs.settings import TritonSettings
from worker.engine import verdicts
from worker.engine.adapter import Adapter
from worker.engine.deadlines import CONNECT_SECONDS
from worker.engine.deltas import EngineDelta
from worker.engine.request import Request, Tensors

# Triton drops a client that pings more often than every 300 s unless its flags allow more.
_SLOW_PING_MS: Final = 310_000
_JOIN_SECONDS: Final = 2.0
_STOPPED_SECONDS: Final = 2.0  # an engine ends a stopped request within an iteration
_SEND_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream; nothing follows it.

    Attributes:
        error: why the stream failed; None if the engine marked its last response as final.
        confirmed: the engine holds neither a slot nor blocks for the request.
    """

    error: EngineError | None
    confirmed: bool


_NOT_SENT: Final = StreamEnd(EngineUnavailableError(), confirmed=True)


def open_channel(settings: TritonSettings) -> grpc.Channel:
    """Open a separate connection: a shared one would lose all its streams at once."""
    pings = (10_000, 5_000) if settings.fast_keepalive else (_SLOW_PING_MS, 20_000)
    return grpc.insecure_channel(
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


class Stream:
    """One request, its connection and the thread that reads it.

    It passes events to `put`: any number of deltas, then one Ended. The owner never depends on this thread
    alone: if it is late, the owner calls `close` and continues.
    """

    def __init__(
        self,
        settings: TritonSettings,
        request: Request,
        *,
        adapter: Adapter,
        put: Callable[[EngineDelta | StreamEnd], None],
    ) -> None:
        """Build the request without sending it.

        Args:
            settings: the server's connection settings.
            request: the request to run.
            adapter: the model's adapter.
            put: receives every event.

        Raises:
            EngineError: a value of the request cannot be sent.
        """
        self._request = request
        self._adapter = adapter
        self._put = put
        self._written = self._write()
        self._channel = open_channel(settings)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._calls: list[Any] = []
        self._stop_calls: list[Any] = []
        self._sending = threading.Lock()  # a cancelled request is never sent
        self._is_cancelled = False
        self._has_output = False
        self._is_on_its_way = threading.Event()
        # Daemon: a reader that gRPC never wakes must not keep the process alive.
        self._thread = threading.Thread(target=self._read, name=f"read-{request.request_id[:8]}", daemon=True)

    def connect(self) -> None:
        """Connect, waiting a few seconds at most. For measuring a request without its connection."""
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=CONNECT_SECONDS)

    def start(self) -> None:
        """Send the request from the reading thread. Waits a moment for it to be on its way."""
        self._thread.start()
        self._is_on_its_way.wait(_SEND_SECONDS)

    def stop(self) -> None:
        """Ask the engine to end the request; the stream continues until it has ended.

        If a stop request cannot reach the engine, the stream is cut and its end stays unconfirmed.
        """
        stop = self._adapter.stop()
        if not self._was_sent() or stop is None:
            self.cancel()
            return
        message = self._message(stop.model_name, stop.tensors)
        with contextlib.suppress(ValueError, grpc.RpcError):  # ValueError: the channel was closed meanwhile
            self._stop_calls.append(self._stub.ModelStreamInfer(iter([message]), timeout=CONNECT_SECONDS))

    def cancel(self) -> None:
        """Cut the stream. The server ends the request when it notices."""
        self._was_sent()
        for call in list(self._calls):
            call.cancel()

    def close(self) -> bool:
        """Close the connection. Returns True if the reading thread has ended too."""
        self._end_stop_calls()
        if self._stop_calls:
            # As with stop calls: cutting the stream while its last response is sent can crash the server.
            self._thread.join(_STOPPED_SECONDS)
        self.cancel()
        self._channel.close()
        self._thread.join(_JOIN_SECONDS)
        return not self._thread.is_alive()

    def _end_stop_calls(self) -> None:
        """Wait until all stop requests have ended, at the latest at their deadline.

        Triton 2.51 crashes, with everything running in it, if one is cancelled while it is being answered.
        """
        for call in self._stop_calls:
            with contextlib.suppress(grpc.RpcError):
                deque(call, maxlen=0)

    def _was_sent(self) -> bool:
        """Mark the request as cancelled. Returns True if it was sent; if not, it never will be."""
        with self._sending:
            self._is_cancelled = True
            return bool(self._calls)

    def _read(self) -> None:
        call = self._send() if self._can_be_sent() else None
        self._is_on_its_way.set()
        if call is None:
            self._put(_NOT_SENT)
            return
        try:
            ended = self._follow(call)
        except Exception as error:  # noqa: BLE001  # the thread's entry point: its owner must learn of the end
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="stream")
            ended = StreamEnd(RetryableEngineError(said=verdicts.storable(repr(error))), confirmed=False)
        self._put(ended)

    def _send(self) -> Any | None:  # noqa: ANN401  # a call of generated code
        """Send the request and return its call. Returns None if it is cancelled or the channel closed."""
        with self._sending:
            if self._is_cancelled:
                return None
            try:
                call = self._stub.ModelStreamInfer(iter([self._written]))
            except (grpc.RpcError, ValueError):  # ValueError: the channel was closed meanwhile
                return None
            self._calls.append(call)
            return call

    def _can_be_sent(self) -> bool:
        """Return True if the server is ready for this model. Until then nothing is sent."""
        asked = service_pb2.ModelReadyRequest(name=self._adapter.model_name)
        try:
            answer = self._stub.ModelReady(asked, timeout=CONNECT_SECONDS)
        except (grpc.RpcError, ValueError):  # ValueError: the channel was closed meanwhile
            return False
        return bool(answer.ready)

    def _follow(self, call: Any) -> StreamEnd:  # noqa: ANN401  # see _send
        """Read to the end of the stream, even past an error: the server must have nothing left to send."""
        error: EngineError | None = None
        is_final = False
        try:
            for response in call:
                if response.error_message:
                    error = error or verdicts.stream_error(response.error_message, has_said=self._has_output)
                    continue
                delta = self._adapter.delta(_outputs_of(response.infer_response))
                if delta is not None:
                    self._has_output = True
                    self._put(delta)
                is_final = is_final or _is_final(response.infer_response)
        except (grpc.RpcError, ValueError) as broken:
            # A failure after the final response loses nothing.
            return StreamEnd(error or (None if is_final else verdicts.call_error(broken)), confirmed=is_final)
        if error is None and not is_final:
            error = RetryableEngineError(said="the stream ended without its final response")
            return StreamEnd(error, confirmed=False)
        # An error of a model around the engine proves nothing about the engine.
        return StreamEnd(error, confirmed=error is None or self._adapter.is_engine)

    def _write(self) -> Any:  # noqa: ANN401  # generated code has no types
        """Build the request's message.

        Not when it is sent: a failure inside gRPC looks like a lost engine.
        """
        try:
            return self._message(self._adapter.model_name, self._adapter.tensors(self._request))
        except (ArithmeticError, TypeError, ValueError, KeyError) as error:  # numpy's and protobuf's
            said = verdicts.storable(f"{type(error).__name__}: {error}")
            raise EngineError("a value of the request cannot be sent to the engine", said=said) from error

    def _message(self, model_name: str, tensors: Tensors) -> Any:  # noqa: ANN401  # generated code has no types
        message = service_pb2.ModelInferRequest(model_name=model_name, id=self._request.request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, value in tensors.items():
            message.inputs.add(name=name, datatype=_DATATYPES[value.dtype.str], shape=value.shape)
            message.raw_input_contents.append(_raw(value))
        return message


_DATATYPES: Final = {"<i4": "INT32", "<f4": "FP32", "<u8": "UINT64", "|b1": "BOOL", "|O": "BYTES"}


def _raw(value: npt.NDArray[Any]) -> bytes:
    """Serialize a tensor. Each element of BYTES is preceded by its length."""
    if value.dtype != np.object_:
        return value.tobytes()
    return b"".join(len(each).to_bytes(4, "little") + each for each in value.ravel())


def _outputs_of(response: Any) -> dict[str, bytes]:  # noqa: ANN401  # generated code has no types
    """Return the raw bytes of the response's tensors, by name."""
    names = (output.name for output in response.outputs)
    return dict(zip(names, response.raw_output_contents, strict=False))


def _is_final(response: Any) -> bool:  # noqa: ANN401  # generated code has no types
    return bool(response.parameters["triton_final_response"].bool_param) if response.parameters else False
