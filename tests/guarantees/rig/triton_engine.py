"""A scripted TensorRT-LLM engine behind Triton: streams of token ids over gRPC, gauges over HTTP."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from rig.engines import DiedError, RefusedError, Request, ScriptedEngine

MODEL: Final = "tensorrt_llm"
_NUM_THREADS: Final = 128  # one for each open stream
_REFUSAL: Final = "[request id: {}] Encountered error in enqueue: Prompt length exceeds maximum input length"
# The tensors of TensorRT-LLM 1.0's `tensorrt_llm/config.pbtxt` that a request for an answer needs.
_CONFIG: Final = """
name: "tensorrt_llm"
backend: "tensorrtllm"
max_batch_size: %(slots)d
model_transaction_policy { decoupled: true }
input { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] }
input { name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }
input { name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
input { name: "pad_id" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
input { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
input { name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }
input { name: "stop" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
input { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }
parameters { key: "max_tokens_in_paged_kv_cache" value { string_value: "%(tokens)d" } }
parameters { key: "tokens_per_block" value { string_value: "%(tokens_per_block)d" } }
parameters { key: "enable_chunked_context" value { string_value: "true" } }
parameters { key: "enable_kv_cache_reuse" value { string_value: "false" } }
"""
_GAUGES: Final = """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} %(running)d
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 0
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} %(slots)d
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} %(blocks)d
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} %(used)d
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} %(per)d
"""


@contextmanager
def serving(engine: ScriptedEngine) -> Iterator[dict[str, str]]:
    """Serve the engine; yields the settings of workers that feed it."""
    gauges = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Gauges, engine))
    threading.Thread(target=gauges.serve_forever, args=(0.02,), daemon=True).start()
    triton = _Triton(engine)
    engine.on_death = triton.restart
    try:
        yield {
            "LONGBATCH_TRITON__URL": f"127.0.0.1:{triton.port}",
            "LONGBATCH_TRITON__MODEL_NAME": MODEL,
            "LONGBATCH_TRITON__METRICS_URL": f"http://127.0.0.1:{gauges.server_port}/metrics",
        }
    finally:
        triton.stop()
        gauges.shutdown()
        gauges.server_close()


class _Triton:
    """A gRPC server that can die: all its streams end, and it serves again on the same port."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self.port = 0
        self._server = self._start()

    def restart(self) -> None:
        """Cut every stream, as a killed process does, and serve again."""
        self._server.stop(None).wait()
        self._server = self._start()

    def stop(self) -> None:
        """End it."""
        self._server.stop(None).wait()

    def _start(self) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(_NUM_THREADS), options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(self._engine), server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        return server


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated code has no types
    """The calls of Triton's protocol that a worker makes.

    Source: grpc_service.proto of Triton 2.60; tritonclient carries the code that is generated from it.
    """

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    def ServerMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401, ARG002, N802
        return service_pb2.ServerMetadataResponse(name="triton", version="2.60.0")

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401, ARG002, N802
        found = service_pb2.RepositoryIndexResponse()
        found.models.add(name=MODEL, version="1", state="READY")
        return found

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802
        if self._engine.is_down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
        return service_pb2.ModelReadyResponse(ready=request.name == MODEL)

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401, N802
        if request.name != MODEL:
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found"
            )
        engine = self._engine
        numbers = {
            "slots": engine.slots,
            "tokens": engine.blocks * engine.tokens_per_block,
            "tokens_per_block": engine.tokens_per_block,
        }
        config = text_format.Parse(_CONFIG % numbers, model_config_pb2.ModelConfig())
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStreamInfer(self, request_iterator: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: ANN401, N802
        """Answer the stream's requests one after the other: a worker sends the next one after the end."""
        with suppress(grpc.RpcError, DiedError):
            for message in request_iterator:
                yield from self._answer(message, context)

    def _answer(self, message: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: ANN401
        tensors = _tensors(message)
        if tensors.get("stop", [False])[0]:
            self._engine.abort(message.id)
            yield _response(message.id, [], is_final=True)
            return
        if self._engine.is_down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
        ids, max_tokens = tensors["input_ids"].tolist(), int(tensors["request_output_len"][0])
        try:
            request = self._engine.begin(ids, max_tokens=max_tokens, name=message.id)
        except RefusedError:
            yield service_pb2.ModelStreamInferResponse(error_message=_REFUSAL.format(message.id))
            return
        if request is None:  # a probe
            yield _response(message.id, [64], is_final=False)
            yield _response(message.id, [], is_final=True)
            return
        yield from self._stream(request, message.id, context)

    def _stream(self, request: Request, name: str, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            has_ended = False
            for token, reason in self._engine.tokens(request, is_gone=lambda: not context.is_active()):
                has_ended = reason is not None
                if token is not None:
                    yield _response(name, [token], is_final=False)
            if has_ended or request.is_aborted:
                yield _response(name, [], is_final=True)
        finally:
            self._engine.end(request)


def _tensors(message: Any) -> dict[str, Any]:  # noqa: ANN401
    """Read the tensors of a request, flat, by name."""
    types = {"INT32": np.int32, "BOOL": np.bool_}
    return {
        each.name: np.frombuffer(data, dtype=types[each.datatype])
        for each, data in zip(message.inputs, message.raw_input_contents, strict=True)
        if each.datatype in types
    }


def _response(name: str, ids: Sequence[int], *, is_final: bool) -> Any:  # noqa: ANN401
    """Write a response with new tokens; the last one of a request has none."""
    found = service_pb2.ModelStreamInferResponse()
    inner = found.infer_response
    inner.model_name, inner.model_version, inner.id = MODEL, "1", name
    inner.parameters["triton_final_response"].bool_param = is_final
    if ids:
        for tensor, value, shape in (
            ("output_ids", ids, [1, 1, len(ids)]),
            ("sequence_length", [len(ids)], [1, 1]),
        ):
            inner.outputs.add(name=tensor, datatype="INT32", shape=shape)
            inner.raw_output_contents.append(np.array(value, dtype=np.int32).tobytes())
    return found


class _Gauges(BaseHTTPRequestHandler):
    """Triton's metrics, as far as the backend of TensorRT-LLM adds to them."""

    def __init__(self, engine: ScriptedEngine, *arguments: Any) -> None:  # noqa: ANN401  # of the base
        self.engine = engine
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        numbers = {
            "running": len(self.engine.running),
            "slots": self.engine.slots,
            "blocks": self.engine.blocks,
            "used": min(self.engine.used_blocks, self.engine.blocks),
            "per": self.engine.tokens_per_block,
        }
        body = (_GAUGES % numbers).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
