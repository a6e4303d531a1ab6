"""The engine as a worker finds it: whether it is ready, what it can hold, and whether it really answers."""

import queue
from dataclasses import dataclass
from typing import Final

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from jobs.engines.capacity import Capacity
from jobs.errors import EngineError, EngineUnavailableError
from jobs.ids import uuid7
from jobs.settings import EngineSettings, TritonSettings
from worker.engine import verdicts
from worker.engine.adapter import Adapter
from worker.engine.deltas import Piece
from worker.engine.metrics import Gauges, read_gauges
from worker.engine.model_config import ModelConfig, Offer, adapter_for, number, read_offer
from worker.engine.request import Request
from worker.engine.stream import Ended, Stream, open_channel

CANARY_SECONDS: Final = 15.0
_TIMEOUT_SECONDS: Final = 3.0
_CANARY: Final = "Say yes."  # to a model that takes text
_DEFAULT_TOKENS_PER_BLOCK: Final = 64  # TensorRT-LLM before 1.0; later engines tell it in their gauges


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What the live server says of its model.

    Attributes:
        capacity: slots, blocks and lengths, with the settings' overrides.
        adapter: how it is asked.
    """

    capacity: Capacity
    adapter: Adapter


class EngineClient:
    """Asks the server about itself, on a connection that carries no jobs. Used by one thread.

    Only `interrupt` may be called by another one.
    """

    def __init__(self, triton: TritonSettings, engine: EngineSettings, *, end_id: int) -> None:
        """Args: engine: overrides; end_id: the tokenizer's end token, the whole prompt of a test request."""
        self._end_id = end_id
        self._shown: Gauges | None = None
        self._triton = triton
        self._overrides = engine
        self._channel = open_channel(triton)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._gauged_name = triton.model_name
        self._canary: Stream | None = None
        self._is_interrupted = False

    def interrupt(self) -> None:
        """Nobody waits for the answer to a test request any more, now or later."""
        self._is_interrupted = True
        if (canary := self._canary) is not None:
            canary.cancel()

    def close(self) -> None:
        """The connection is gone."""
        self._channel.close()

    def is_ready(self) -> bool:
        """Whether the server says that it can serve the model."""
        asked = service_pb2.ModelReadyRequest(name=self._triton.model_name)
        try:
            return bool(self._stub.ModelReady(asked, timeout=_TIMEOUT_SECONDS).ready)
        except grpc.RpcError:
            return False

    def gauges(self) -> Gauges | None:
        """The engine's gauges; None: there are none to read."""
        return read_gauges(self._triton.metrics_url, self._gauged_name)

    def offer(self) -> Offer | None:
        """The configurations of the model and of those inside it; None: the server has no such model.

        Raises:
            EngineUnavailableError: the server cannot be reached.
        """
        return read_offer(self._triton.model_name, self.config)

    def describe(self) -> EngineModel:
        """What the model can hold and how it is asked.

        Raises:
            EngineUnavailableError: the server cannot be reached or has no such model yet.
            EngineError: the model is not one that this worker can feed; somebody must change it.
        """
        offer = self.offer()
        if offer is None:
            raise EngineUnavailableError(f"the server has no model {self._triton.model_name}")
        adapter = adapter_for(offer, self._triton)
        self._gauged_name = offer.engine.name
        return EngineModel(
            capacity=_capacity(offer, self._shown_gauges(adapter), self._overrides), adapter=adapter
        )

    def version(self) -> str:
        """Of the server.

        Raises:
            EngineUnavailableError: it cannot be reached.
        """
        try:
            found = self._stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise _unavailable(error) from error
        return str(found.version)

    def models(self) -> dict[str, bool]:
        """The names of all models, and whether each is ready.

        Raises:
            EngineUnavailableError: the server cannot be reached.
        """
        asked = service_pb2.RepositoryIndexRequest()
        try:
            found = self._stub.RepositoryIndex(asked, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise _unavailable(error) from error
        return {model.name: model.state == "READY" for model in found.models}

    def encode(self, model_name: str, text: str) -> list[int]:
        """What the model `preprocessing` makes of a text.

        Raises:
            EngineUnavailableError: it does not say; the message is the server's.
        """
        message = service_pb2.ModelInferRequest(model_name=model_name)
        message.inputs.add(name="QUERY", datatype="BYTES", shape=[1, 1])
        encoded = text.encode()
        message.raw_input_contents.append(len(encoded).to_bytes(4, "little") + encoded)
        message.inputs.add(name="REQUEST_OUTPUT_LEN", datatype="INT32", shape=[1, 1])
        message.raw_input_contents.append(np.array([1], dtype=np.int32).tobytes())
        message.outputs.add(name="INPUT_ID")
        try:
            found = self._stub.ModelInfer(message, timeout=CANARY_SECONDS)
        except grpc.RpcError as error:
            raise _unavailable(error) from error
        ids: list[int] = np.frombuffer(found.raw_output_contents[0], dtype=np.int32).tolist()
        return ids

    def config(self, model_name: str) -> ModelConfig | None:
        """A model's configuration; None: there is no such model."""
        asked = service_pb2.ModelConfigRequest(name=model_name)
        try:
            return self._stub.ModelConfig(asked, timeout=_TIMEOUT_SECONDS).config
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None
            raise _unavailable(error) from error

    def adapter(self) -> Adapter:
        """How the model is asked, whatever it can hold.

        Raises:
            EngineUnavailableError: the server cannot be reached or has no such model yet.
            EngineError: the model is not one that can be asked; somebody must change it.
        """
        offer = self.offer()
        if offer is None:
            raise EngineUnavailableError(f"the server has no model {self._triton.model_name}")
        return adapter_for(offer, self._triton)

    def _shown_gauges(self, adapter: Adapter) -> Gauges:
        """The gauges with the pool's size in them, or the last such ones; zeros where there never were any.

        A real engine fills them in at its first iteration, which a test request brings about.
        """
        gauges = self.gauges()
        if gauges is not None and gauges.max_blocks == 0 and self._needs_gauges():
            self.answers(adapter, timeout=CANARY_SECONDS)
            gauges = self.gauges()
        if gauges is not None and gauges.max_blocks:
            self._shown = gauges
        return self._shown or gauges or Gauges()

    def _needs_gauges(self) -> bool:
        return not (self._overrides.max_blocks and self._overrides.tokens_per_block)

    def answers(self, adapter: Adapter, *, timeout: float) -> bool:
        """Whether the engine generates a token for a prompt of one token: the truth behind its readiness.

        Args:
            adapter: of its model.
            timeout: seconds.
        """
        came: queue.SimpleQueue[Piece | Ended] = queue.SimpleQueue()
        request = Request(
            request_id=uuid7().hex,
            ids=np.array([self._end_id], dtype=np.int32),
            max_tokens=1,
            end_id=self._end_id,
            pad_id=self._end_id,
            text=_CANARY,
        )
        self._canary = stream = Stream(self._triton, request, adapter=adapter, put=came.put)
        if self._is_interrupted:
            stream.cancel()
        stream.start()
        try:
            while not isinstance(event := came.get(timeout=timeout), Ended):
                pass
        except queue.Empty:
            return False
        finally:
            self._canary = None
            stream.close()
        return event.error is None


def _unavailable(error: grpc.RpcError) -> EngineUnavailableError:
    said = verdicts.storable(str(error.details() if isinstance(error, grpc.Call) else error))
    return EngineUnavailableError(said=said)


def _capacity(offer: Offer, gauges: Gauges, overrides: EngineSettings) -> Capacity:
    """Settings first, then what the running engine shows, then what its configuration says."""
    config = offer.engine
    tokens_per_block = (
        overrides.tokens_per_block
        or gauges.tokens_per_block
        or number(config, "tokens_per_block")
        or _DEFAULT_TOKENS_PER_BLOCK
    )
    pool_tokens = number(config, "max_tokens_in_paged_kv_cache")
    max_blocks = overrides.max_blocks or gauges.max_blocks or pool_tokens // tokens_per_block
    if max_blocks < 1:
        raise EngineError(
            "the model does not say how large its KV cache is: set LONGBATCH_ENGINE__MAX_BLOCKS,"
            " or LONGBATCH_TRITON__METRICS_URL, or its parameter max_tokens_in_paged_kv_cache"
        )
    told = (offer.entry.max_batch_size, config.max_batch_size, gauges.max_requests)
    slots = [each for each in told if each > 0]
    return Capacity(
        max_batch_size=overrides.max_batch_size or min(slots, default=1),
        max_blocks=max_blocks,
        tokens_per_block=tokens_per_block,
        max_input_len=min(
            overrides.max_input_len, number(config, "max_input_len") or overrides.max_input_len
        ),
        max_seq_len=min(overrides.max_seq_len, number(config, "max_seq_len") or overrides.max_seq_len),
    )
