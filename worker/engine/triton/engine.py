"""The engine behind a Triton server: readiness, model and capacity."""

from collections.abc import Awaitable
from functools import partial
from typing import Final, TypeVar

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from jobs.engines.capacity import Capacity
from jobs.errors import EngineError, EngineUnavailableError
from jobs.settings import EngineSettings, TritonSettings
from worker.engine.engine import ServedModel
from worker.engine.gauges import Gauges
from worker.engine.triton import errors
from worker.engine.triton.call import TritonCall
from worker.engine.triton.channel import Channels, open_channel
from worker.engine.triton.declared import declared_tensors, is_batched
from worker.engine.triton.metrics import read_gauges
from worker.engine.triton.model_config import ModelConfig, Offer, adapter_for, kind_of, number, read_offer

T = TypeVar("T")
_TIMEOUT_SECONDS: Final = 3.0
_ENCODE_SECONDS: Final = 15.0
_DEFAULT_TOKENS_PER_BLOCK: Final = 64  # TensorRT-LLM before 1.0; later engines report it in their gauges
_LLMAPI_TOKENS_PER_BLOCK: Final = 32  # the LLM API's default, and nothing reports another
_NO_POOL: Final = (
    "the model does not report the size of its KV cache: set LONGBATCH_ENGINE__MAX_BLOCKS,"
    " or LONGBATCH_TRITON__METRICS_URL, or its parameter max_tokens_in_paged_kv_cache"
)
_NO_LLMAPI_POOL: Final = (
    "the model llmapi reports nothing of its capacity, and its model.yaml cannot be asked: set"
    " LONGBATCH_ENGINE__MAX_BLOCKS (kv_cache_config.max_tokens divided by tokens_per_block),"
    " LONGBATCH_ENGINE__TOKENS_PER_BLOCK (kv_cache_config.tokens_per_block, 32 by default),"
    " LONGBATCH_ENGINE__MAX_BATCH_SIZE (max_batch_size) and LONGBATCH_ENGINE__MAX_SEQ_LEN (max_seq_len)"
)


class TritonEngine:
    """An `EngineServer` that queries the server on a connection without jobs."""

    def __init__(
        self, triton: TritonSettings, overrides: EngineSettings, *, channels: Channels | None = None
    ) -> None:
        """Prepare it without connecting.

        Args:
            triton: where the server is.
            overrides: of what the server reports of its capacity.
            channels: connections for requests; None: its own.
        """
        self._triton = triton
        self._overrides = overrides
        self._gauged_name = triton.model_name
        self._channel: grpc.aio.Channel | None = None
        self._calls: service_pb2_grpc.GRPCInferenceServiceStub | None = None
        self._channels = channels or Channels(triton)

    async def close(self) -> None:
        """Close the connection."""
        await self._channels.close()
        if self._channel is not None:
            await self._channel.close()

    async def is_ready(self) -> bool:
        """Return True if the server reports that it can serve the model."""
        asked = service_pb2.ModelReadyRequest(name=self._triton.model_name)
        try:
            answer = await self._stub().ModelReady(asked, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError:
            return False
        if answer.ready:
            self._channels.note_ready(self._triton.model_name)
        return bool(answer.ready)

    async def gauges(self) -> Gauges | None:
        """Read the engine's gauges. Returns None if there are none."""
        return await read_gauges(self._triton.metrics_url, self._gauged_name)

    async def offer(self) -> Offer | None:
        """Read the configurations of the model and its inner models, None if there is no such model.

        Raises:
            EngineUnavailableError: the server cannot be reached; try again later.
        """
        return await read_offer(self._triton.model_name, self.config)

    async def model(self) -> ServedModel:
        """Choose the model's adapter, and open a connection ahead of its first request."""
        offer = await self._served()
        adapter = adapter_for(offer, self._triton)
        self._gauged_name = offer.engine.name
        prepare = partial(
            TritonCall,
            self._triton,
            adapter=adapter,
            channels=self._channels,
            is_batched=is_batched(offer),
        )
        await self._channels.open_ahead()
        return ServedModel(
            kind=adapter.kind,
            name=adapter.model_name,
            abilities=adapter.abilities,
            prepare=prepare,
            tensors=declared_tensors(offer),
            root=str(offer.engine.name),
        )

    async def capacity(self, gauges: Gauges) -> Capacity:
        """Combine the settings, then the gauges, then the model's configuration."""
        return _capacity(await self._served(), gauges, self._overrides)

    async def version(self) -> str:
        """Read the server's version.

        Raises:
            EngineUnavailableError: the server cannot be reached; try again later.
        """
        asked = service_pb2.ServerMetadataRequest()
        return str((await _answer(self._stub().ServerMetadata(asked, timeout=_TIMEOUT_SECONDS))).version)

    async def models(self) -> dict[str, bool]:
        """Read the names of all models; True means ready.

        Raises:
            EngineUnavailableError: the server cannot be reached; try again later.
        """
        asked = service_pb2.RepositoryIndexRequest()
        found = await _answer(self._stub().RepositoryIndex(asked, timeout=_TIMEOUT_SECONDS))
        return {model.name: model.state == "READY" for model in found.models}

    async def encode(self, model_name: str, text: str) -> list[int]:
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
        found = await _answer(self._stub().ModelInfer(message, timeout=_ENCODE_SECONDS))
        ids: list[int] = np.frombuffer(found.raw_output_contents[0], dtype=np.int32).tolist()
        return ids

    async def config(self, model_name: str) -> ModelConfig | None:
        """Read a model's configuration. Returns None if there is no such model."""
        asked = service_pb2.ModelConfigRequest(name=model_name)
        try:
            return (await self._stub().ModelConfig(asked, timeout=_TIMEOUT_SECONDS)).config
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
            if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None
            raise _unavailable(error) from error

    async def _served(self) -> Offer:
        offer = await self.offer()
        if offer is None:
            raise EngineUnavailableError(f"the server has no model {self._triton.model_name}")
        return offer

    def _stub(self) -> service_pb2_grpc.GRPCInferenceServiceStub:
        if (
            self._calls is None
        ):  # made on the engine loop, which uses it; building it takes longer than a call
            self._channel = open_channel(self._triton)
            self._calls = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._calls


async def _answer(call: Awaitable[T]) -> T:
    """Return the server's answer; raise EngineUnavailableError if there is none."""
    try:
        return await call
    except grpc.RpcError as error:
        raise _unavailable(error) from error


def _unavailable(error: grpc.RpcError) -> EngineUnavailableError:
    return EngineUnavailableError(said=errors.said_by(error))


def _capacity(offer: Offer, gauges: Gauges, overrides: EngineSettings) -> Capacity:
    """Combine the settings, then the running engine's gauges, then its configuration."""
    config = offer.engine
    is_llmapi = kind_of(offer) == "llmapi"
    tokens_per_block = (
        overrides.tokens_per_block
        or gauges.tokens_per_block
        or number(config, "tokens_per_block")
        or (_LLMAPI_TOKENS_PER_BLOCK if is_llmapi else _DEFAULT_TOKENS_PER_BLOCK)
    )
    pool_tokens = number(config, "max_tokens_in_paged_kv_cache")
    max_blocks = overrides.max_blocks or gauges.max_blocks or pool_tokens // tokens_per_block
    if max_blocks < 1:
        raise EngineError(_NO_LLMAPI_POOL if is_llmapi else _NO_POOL)
    sizes = (offer.entry.max_batch_size, config.max_batch_size, gauges.max_requests)
    slots = [each for each in sizes if each > 0]
    max_batch_size = overrides.max_batch_size or min(slots, default=1)
    return Capacity(
        max_batch_size=max_batch_size,
        max_blocks=max_blocks,
        tokens_per_block=tokens_per_block,
        max_input_len=min(
            overrides.max_input_len, number(config, "max_input_len") or overrides.max_input_len
        ),
        max_seq_len=min(overrides.max_seq_len, number(config, "max_seq_len") or overrides.max_seq_len),
        blocks_per_sequence=overrides.blocks_per_sequence or 0,
        waiting_room=overrides.waiting_room or 0,
    )
