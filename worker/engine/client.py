"""The client of an engine: readiness, capacity, and whether it really answers."""

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
from worker.engine.deltas import EngineDelta
from worker.engine.metrics import Gauges, read_gauges
from worker.engine.model_config import ModelConfig, Offer, adapter_for, number, read_offer
from worker.engine.request import Request
from worker.engine.stream import Stream, StreamEnd, open_channel

CANARY_SECONDS: Final = 15.0
_TIMEOUT_SECONDS: Final = 3.0
_CANARY: Final = "Say yes."  # for a model that takes text
_DEFAULT_TOKENS_PER_BLOCK: Final = 64  # TensorRT-LLM before 1.0; later engines report it in their gauges


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model as the live server describes it.

    Attributes:
        capacity: slots, blocks and lengths, with the settings' overrides.
        adapter: builds its requests and reads its responses.
    """

    capacity: Capacity
    adapter: Adapter


class EngineClient:
    """A client that queries the server on a connection without jobs. Used by one thread.

    Other threads may call only `interrupt`.
    """

    def __init__(self, triton: TritonSettings, engine: EngineSettings, *, end_id: int) -> None:
        """Args: engine: overrides; end_id: the tokenizer's end token, the whole prompt of a probe."""
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
        """Stop waiting for the answer to a probe, now and in the future."""
        self._is_interrupted = True
        if (canary := self._canary) is not None:
            canary.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def is_ready(self) -> bool:
        """Return True if the server reports that it can serve the model."""
        asked = service_pb2.ModelReadyRequest(name=self._triton.model_name)
        try:
            return bool(self._stub.ModelReady(asked, timeout=_TIMEOUT_SECONDS).ready)
        except grpc.RpcError:
            return False

    def gauges(self) -> Gauges | None:
        """Read the engine's gauges. Returns None if there are none."""
        return read_gauges(self._triton.metrics_url, self._gauged_name)

    def offer(self) -> Offer | None:
        """Read the configurations of the model and its inner models, None if there is no such model.

        Raises:
            EngineUnavailableError: the server cannot be reached; try again later.
        """
        return read_offer(self._triton.model_name, self.config)

    def describe(self) -> EngineModel:
        """Read the model's capacity and choose its adapter.

        Raises:
            EngineUnavailableError: the server cannot be reached or has no such model yet; try again later.
            EngineError: this worker cannot feed the model; an operator must change it.
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
        """Read the server's version.

        Raises:
            EngineUnavailableError: the server cannot be reached; try again later.
        """
        try:
            found = self._stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise _unavailable(error) from error
        return str(found.version)

    def models(self) -> dict[str, bool]:
        """Read the names of all models; True means ready.

        Raises:
            EngineUnavailableError: the server cannot be reached; try again later.
        """
        asked = service_pb2.RepositoryIndexRequest()
        try:
            found = self._stub.RepositoryIndex(asked, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise _unavailable(error) from error
        return {model.name: model.state == "READY" for model in found.models}

    def encode(self, model_name: str, text: str) -> list[int]:
        """Encode a text with the server's model `preprocessing`.

        Raises:
            EngineUnavailableError: the model does not answer; `said` is the server's message.
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
        """Read a model's configuration. Returns None if there is no such model."""
        asked = service_pb2.ModelConfigRequest(name=model_name)
        try:
            return self._stub.ModelConfig(asked, timeout=_TIMEOUT_SECONDS).config
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None
            raise _unavailable(error) from error

    def adapter(self) -> Adapter:
        """Choose the model's adapter, whatever its capacity.

        Raises:
            EngineUnavailableError: the server cannot be reached or has no such model yet; try again later.
            EngineError: no adapter fits the model; an operator must change it.
        """
        offer = self.offer()
        if offer is None:
            raise EngineUnavailableError(f"the server has no model {self._triton.model_name}")
        return adapter_for(offer, self._triton)

    def _shown_gauges(self, adapter: Adapter) -> Gauges:
        """Read gauges that show the pool's size, or return the last such ones, or zeros.

        A real engine fills them in at its first iteration, which a probe triggers.
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
        """Return True if the engine really generates a token for a one-token prompt.

        Args:
            adapter: the model's adapter.
            timeout: the longest wait for each event, in seconds.
        """
        events: queue.SimpleQueue[EngineDelta | StreamEnd] = queue.SimpleQueue()
        request = Request(
            request_id=uuid7().hex,
            ids=np.array([self._end_id], dtype=np.int32),
            max_tokens=1,
            end_id=self._end_id,
            pad_id=self._end_id,
            text=_CANARY,
        )
        self._canary = stream = Stream(self._triton, request, adapter=adapter, put=events.put)
        if self._is_interrupted:
            stream.cancel()
        stream.start()
        try:
            while not isinstance(event := events.get(timeout=timeout), StreamEnd):
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
    """Combine the settings, then the running engine's gauges, then its configuration."""
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
            "the model does not report the size of its KV cache: set LONGBATCH_ENGINE__MAX_BLOCKS,"
            " or LONGBATCH_TRITON__METRICS_URL, or its parameter max_tokens_in_paged_kv_cache"
        )
    sizes = (offer.entry.max_batch_size, config.max_batch_size, gauges.max_requests)
    slots = [each for each in sizes if each > 0]
    return Capacity(
        max_batch_size=overrides.max_batch_size or min(slots, default=1),
        max_blocks=max_blocks,
        tokens_per_block=tokens_per_block,
        max_input_len=min(
            overrides.max_input_len, number(config, "max_input_len") or overrides.max_input_len
        ),
        max_seq_len=min(overrides.max_seq_len, number(config, "max_seq_len") or overrides.max_seq_len),
    )
