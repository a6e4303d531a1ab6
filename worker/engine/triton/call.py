"""One request to a model behind Triton, alone on a gRPC stream for as long as it lasts."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from jobs.engines.tensors import TensorRequest
from jobs.errors import EngineError, RetryableEngineError
from jobs.settings import TritonSettings
from worker.engine.deadlines import CONNECT_SECONDS
from worker.engine.deltas import EngineDelta, OutputDelta, TextDelta
from worker.engine.engine import NOT_SENT, StreamEnd
from worker.engine.request import Request
from worker.engine.storable import storable
from worker.engine.triton import errors
from worker.engine.triton.adapter import Adapter, Tensors, cached_in
from worker.engine.triton.channel import CUT, Channels, TritonConnection
from worker.engine.triton.errors import AdapterMissError

_END_SECONDS: Final = 2.0  # an engine ends a stopped request within an iteration
_DATATYPES: Final[Mapping[str, str]] = {
    "<i4": "INT32",
    "<f4": "FP32",
    "<f2": "FP16",
    "<u2": "BF16",  # its bits
    "<u8": "UINT64",
    "|b1": "BOOL",
    "|O": "BYTES",
}


class TritonCall:
    """A `EngineCall` on a `ModelStreamInfer` call."""

    def __init__(
        self,
        settings: TritonSettings,
        request: Request,
        *,
        adapter: Adapter,
        channels: Channels | None = None,
        is_batched: bool = True,
    ) -> None:
        """Build the request's message.

        Not when it is sent: a failure inside gRPC looks like a lost engine.

        Args:
            settings: of the server.
            request: what to generate.
            adapter: to the model.
            channels: connections to use; None: a new one, closed with the call.
            is_batched: the model's tensors have a dimension of batches before those that it declares.

        Raises:
            EngineError: a value of the request cannot be sent.
        """
        self._settings = settings
        self._channels = channels
        self._request_id = request.request_id
        self._adapter = adapter
        self._is_batched = is_batched
        self._wanted = frozenset(request.tensors.outputs)
        self._request = request
        try:
            self._written = self._message(adapter.model_name, adapter.tensors(request))
            _add_inputs(self._written, request.tensors, is_batched=is_batched)
        except (ArithmeticError, TypeError, ValueError, KeyError) as error:  # numpy's and protobuf's
            said = storable(f"{type(error).__name__}: {error}")
            raise EngineError("a value of the request cannot be sent to the engine", said=said) from error
        self._connection: TritonConnection | None = None
        self._call: Any = None
        self._stopping: list[asyncio.Task[None]] = []
        self._is_cancelled = False
        self._ended_well = False
        self._has_output = self._is_final = False
        self._error: EngineError | None = None
        self._has_ended = asyncio.Event()

    async def connect(self) -> None:
        """Connect, waiting a few seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await (await self._open()).channel.channel_ready()

    async def run(self, put: Callable[[EngineDelta], None], *, sent: Callable[[], None]) -> StreamEnd:
        """Send the request once the server is ready for its model, and follow it to its end."""
        try:
            connection = await self._open()
            if not await self._can_be_sent(connection):
                return NOT_SENT
            keeps = self._channels is not None and self._channels.marks_end(self._adapter.model_name)
            self._call = connection.stream()
            end = await self._follow(self._written, put, keeps=keeps, sent=sent)
            if isinstance(end.error, AdapterMissError):
                end = await self._send_with_weights(connection, put)
            self._ended_well = end.confirmed and end.error is None
            return end
        finally:
            self._has_ended.set()

    def stop(self) -> None:
        """Send a stop request, or cut the stream if the model takes none."""
        stop = self._adapter.stop()
        if self._call is None or self._connection is None or stop is None:
            self.cancel()
            return
        message = self._message(stop.model_name, stop.tensors)
        self._stopping.append(asyncio.create_task(self._send_stop(self._connection, message)))

    def cancel(self) -> None:
        """Cut the stream."""
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """Close the connection once all stop requests have ended, at the latest at their deadline.

        Triton 2.51 crashes, with everything running in it, if one is cancelled while it is being answered, or
        if the stream that it ends is cut while the last response is sent.
        """
        if self._stopping:
            await asyncio.gather(*self._stopping)
            await self._wait_for_end()
        connection, channels = self._connection, self._channels
        if connection is not None and channels is not None and self._ended_well and not self._is_cancelled:
            self._connection = None
            channels.note_ready(self._adapter.model_name)
            if not channels.marks_end(self._adapter.model_name) and self._adapter.abilities.keeps_stream:
                channels.note_marks_end(self._adapter.model_name)
            await channels.give_back(connection)
            return
        self.cancel()
        if connection is not None:
            await connection.close()
        await self._wait_for_end()

    async def _send_with_weights(
        self, connection: TritonConnection, put: Callable[[EngineDelta], None]
    ) -> StreamEnd:
        """Send the request again, with the weights of the adapter that the engine does not have."""
        try:
            weights = await asyncio.to_thread(self._adapter.weights, self._request)
        except EngineError as error:
            return StreamEnd(error, confirmed=True)
        if self._is_cancelled or self._stopping:
            return NOT_SENT
        tensors = self._adapter.tensors(self._request) | weights
        message = self._message(self._adapter.model_name, tensors)
        _add_inputs(message, self._request.tensors, is_batched=self._is_batched)
        self._call = connection.stream()
        return await self._follow(message, put, keeps=False)

    async def _send_stop(self, connection: TritonConnection, message: Any) -> None:  # noqa: ANN401  # generated code has no types
        with contextlib.suppress(*CUT, asyncio.CancelledError):
            async for _ in connection.infer(iter([message]), timeout=CONNECT_SECONDS):
                pass

    async def _wait_for_end(self) -> None:
        if self._call is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._has_ended.wait()

    async def _can_be_sent(self, connection: TritonConnection) -> bool:
        """Return True if the server is ready for this model. Until then nothing is sent."""
        if self._is_cancelled:
            return False
        name = self._adapter.model_name
        if self._channels is not None and self._channels.was_just_ready(name) and connection.is_open:
            return True
        asked = service_pb2.ModelReadyRequest(name=name)
        try:
            answer = await connection.ready(asked, timeout=CONNECT_SECONDS)
        except CUT:
            return False
        except asyncio.CancelledError:  # the channel was closed
            if not self._is_cancelled:
                raise
            return False
        return bool(answer.ready) and not self._is_cancelled

    async def _follow(
        self,
        message: Any,  # noqa: ANN401  # generated code has no types
        put: Callable[[EngineDelta], None],
        *,
        keeps: bool,
        sent: Callable[[], None] = lambda: None,
    ) -> StreamEnd:
        """Send the request, and read until the server has nothing left to send for it.

        Args:
            message: the request.
            put: receives its deltas.
            keeps: keep the stream for the next request if all goes well. Otherwise this one is read to its
                end, even past an error.
            sent: called once the request is written.
        """
        stream, self._error, self._is_final = self._call, None, False
        try:
            await stream.write(message)
            sent()
            if not keeps:
                await stream.done_writing()
            while (response := await stream.read()) is not grpc.aio.EOF:
                self._take(response, put)
                if keeps and (self._is_final or self._error is not None):
                    if self._connection is not None and self._error is None and not self._stopping:
                        self._connection.keep(stream)
                        self._call = None  # what is cut from now on is no longer this request's
                        break
                    await stream.done_writing()
                    keeps = False
        except (*CUT, asyncio.CancelledError) as broken:
            if isinstance(broken, asyncio.CancelledError) and not self._is_cancelled:
                raise
            # A failure after the final response loses nothing.
            error = self._error or (None if self._is_final else errors.call_error(broken))
            return StreamEnd(error, confirmed=self._is_final)
        if self._error is None and not self._is_final:
            error = RetryableEngineError(said="the stream ended without its final response")
            return StreamEnd(error, confirmed=False)
        # An error of a model around the engine proves nothing about the engine.
        is_certain = self._error is None or self._adapter.abilities.reports_own_end
        return StreamEnd(self._error, confirmed=is_certain)

    def _take(self, response: Any, put: Callable[[EngineDelta], None]) -> None:  # noqa: ANN401  # generated code has no types
        """Pass on what a response brings, and note whether it fails or ends the request."""
        if response.error_message:
            self._error = self._error or errors.stream_error(
                response.error_message, has_said=self._has_output
            )
            return
        if response.infer_response.id not in ("", self._request_id):
            self._error = self._error or RetryableEngineError(said="a response is for another request")
            return
        outputs = _outputs_of(response.infer_response)
        if (cached := cached_in(outputs)) is not None:
            put(cached)  # before the last tokens, at which a run may end
        if self._wanted:
            for each in self._wanted_of(response.infer_response):
                put(each)
        if (delta := self._adapter.delta(outputs)) is not None:
            self._has_output = True
            put(delta)
            self._error = self._error or self._given_up(delta)
        self._is_final = self._is_final or _is_final(response.infer_response)

    def _wanted_of(self, response: Any) -> Iterator[OutputDelta]:  # noqa: ANN401  # generated code has no types
        """Read those tensors of a response that the request asks for by name."""
        for output, data in zip(response.outputs, response.raw_output_contents, strict=False):
            if output.name in self._wanted:
                shape = tuple(output.shape[1:] if self._is_batched else output.shape)
                yield OutputDelta(output.name, output.datatype, shape, data)

    def _given_up(self, delta: EngineDelta) -> EngineError | None:
        """Return an error if the engine gave the answer up and no stop request asked for it."""
        if not isinstance(delta, TextDelta) or delta.given_up is None or self._stopping:
            return None
        return RetryableEngineError(said=f"the engine ended the answer early: {storable(delta.given_up)}")

    async def _open(self) -> TritonConnection:
        if self._connection is None:
            self._connection = (
                await self._channels.take() if self._channels else TritonConnection(self._settings)
            )
        return self._connection

    def _message(self, model_name: str, tensors: Tensors) -> Any:  # noqa: ANN401  # generated code has no types
        message = service_pb2.ModelInferRequest(model_name=model_name, id=self._request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, value in tensors.items():
            message.inputs.add(name=name, datatype=_DATATYPES[value.dtype.str], shape=value.shape)
            message.raw_input_contents.append(_raw(value))
        return message


def _add_inputs(message: Any, given: TensorRequest, *, is_batched: bool) -> None:  # noqa: ANN401  # generated code has no types
    """Add what the request's caller passes by name: one batch of it."""
    for name, tensor in given.inputs.items():
        shape = (1, *tensor.shape) if is_batched else tensor.shape
        message.inputs.add(name=name, datatype=tensor.datatype, shape=shape)
        message.raw_input_contents.append(tensor.data)


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
