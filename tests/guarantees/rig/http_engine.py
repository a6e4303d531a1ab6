"""Scripted engines over HTTP: vLLM, llama.cpp and SGLang, as far as token ids, streams and metrics go."""

import json
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from rig.engines import DiedError, RefusedError, Request, ScriptedEngine

CONTEXT: Final = 4096


@dataclass(frozen=True)
class Asked:
    """What a body asks for."""

    ids: list[int]
    max_tokens: int
    name: str | None = None


class Dialect(Protocol):
    """How one kind of server speaks."""

    path: str
    kind: str

    def document(self, path: str, engine: ScriptedEngine) -> object:
        """Return what a GET of this path answers: JSON, text, or None if there is no such path."""

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request for an answer."""

    def event(self, ids: list[int], new: list[int], reason: str | None) -> object:
        """Write an event: all ids so far, those of them that are new, and the reason of the end."""

    def last(self, ids: list[int]) -> list[object]:
        """Write what follows the last token."""


class VLLM:
    """Source: vLLM 0.32.0, `/v1/completions` with `return_token_ids`."""

    path = "/v1/completions"
    kind = "vllm"

    def document(self, path: str, engine: ScriptedEngine) -> object:
        card = {"id": "served", "owned_by": "vllm", "max_model_len": CONTEXT}
        metrics = (
            f'vllm:cache_config_info{{block_size="{engine.tokens_per_block}",'
            f'num_gpu_blocks="{engine.blocks + 1}",engine="0",enable_prefix_caching="False"}} 1\n'
            f'vllm:num_requests_running{{engine="0"}} {len(engine.running)}\n'
            'vllm:num_requests_waiting{engine="0"} 0\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {min(1.0, engine.used_blocks / engine.blocks)}\n'
        )
        found = {"/v1/models": {"object": "list", "data": [card]}, "/health": {}, "/metrics": metrics}
        return found.get(path)

    def asked(self, body: Mapping[str, Any]) -> Asked:
        assert body["stream"]
        assert body.get("return_token_ids")
        return Asked(body["prompt"], body["max_tokens"])

    def event(self, ids: list[int], new: list[int], reason: str | None) -> object:  # noqa: ARG002  # of the protocol
        choice = {"index": 0, "text": "", "token_ids": new, "finish_reason": reason}
        return {"id": "cmpl-1", "choices": [choice]}

    def last(self, ids: list[int]) -> list[object]:
        return [{"id": "cmpl-1", "choices": [], "usage": {"completion_tokens": len(ids)}}]


class LlamaCpp:
    """Source: llama.cpp's server of October 2026, `/completion`, `/props` and `/slots`."""

    path = "/completion"
    kind = "llama.cpp"

    def document(self, path: str, engine: ScriptedEngine) -> object:
        running = engine.running
        slots = [
            {
                "id": place,
                "n_ctx": CONTEXT,
                "is_processing": place < len(running),
                "n_prompt_tokens": running[place].prompt_tokens if place < len(running) else 0,
                "next_token": [{"n_decoded": running[place].num_sent if place < len(running) else 0}],
            }
            for place in range(engine.slots)
        ]
        props = {
            "model_path": "/models/served.gguf",
            "total_slots": engine.slots,
            "default_generation_settings": {"n_ctx": CONTEXT},
        }
        card = {"id": "served.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": CONTEXT}}
        found = {"/v1/models": {"data": [card]}, "/health": {}, "/props": props, "/slots": slots}
        return found.get(path)

    def asked(self, body: Mapping[str, Any]) -> Asked:
        assert body["return_tokens"]
        return Asked(body["prompt"], body["n_predict"])

    def event(self, ids: list[int], new: list[int], reason: str | None) -> object:
        return {"tokens": new, "content": "", "stop": False, "tokens_predicted": len(ids)} | (
            {} if reason is None else {"stop": True, "stop_type": "eos" if reason == "stop" else "limit"}
        )

    def last(self, ids: list[int]) -> list[object]:  # noqa: ARG002  # of the protocol
        return []


class SGLang:
    """Source: SGLang 0.5.23, `/generate` and `/abort_request`; ids repeat in each event."""

    path = "/generate"
    kind = "sglang"

    def document(self, path: str, engine: ScriptedEngine) -> object:
        size = engine.blocks * engine.tokens_per_block
        used = engine.used_blocks * engine.tokens_per_block
        metrics = (
            f'sglang:num_running_reqs{{tp_rank="0",dp_rank="0"}} {len(engine.running)}\n'
            f'sglang:max_total_num_tokens{{tp_rank="0",dp_rank="0"}} {size}\n'
            f'sglang:num_used_tokens{{tp_rank="0",dp_rank="0"}} {used}\n'
            f'sglang:page_size{{tp_rank="0",dp_rank="0"}} {engine.tokens_per_block}\n'
        )
        info = {
            "max_req_input_len": CONTEXT - 6,
            "max_total_num_tokens": size,
            "page_size": engine.tokens_per_block,
            "internal_states": [{"effective_max_running_requests_per_dp": engine.slots}],
        }
        found: dict[str, object] = {
            "/v1/models": {"data": [{"id": "served", "owned_by": "sglang"}]},
            "/health": {},
            "/metrics": metrics,
            "/server_info": info,
            "/model_info": {"is_generation": True},
        }
        return found.get(path)

    def asked(self, body: Mapping[str, Any]) -> Asked:
        return Asked(body["input_ids"], body["sampling_params"]["max_new_tokens"], body["rid"])

    def event(self, ids: list[int], new: list[int], reason: str | None) -> object:  # noqa: ARG002  # of the protocol
        ended = {"type": reason} if reason else None
        return {"output_ids": ids, "meta_info": {"completion_tokens": len(ids), "finish_reason": ended}}

    def last(self, ids: list[int]) -> list[object]:  # noqa: ARG002  # of the protocol
        return []


DIALECTS: Final[Mapping[str, Dialect]] = {each.kind: each for each in (VLLM(), LlamaCpp(), SGLang())}


@contextmanager
def serving(engine: ScriptedEngine, kind: str) -> Iterator[dict[str, str]]:
    """Serve the engine in this dialect; yields the settings of workers that feed it."""
    server = _Server(engine, DIALECTS[kind])
    engine.on_death = server.cut
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield {
            "LONGBATCH_ENGINE__URL": f"http://127.0.0.1:{server.server_port}",
            "LONGBATCH_ENGINE__KIND": kind,
        }
    finally:
        server.shutdown()
        server.cut()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, engine: ScriptedEngine, dialect: Dialect) -> None:
        self.engine = engine
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), partial(_Handler, engine, dialect))

    def cut(self) -> None:
        """Cut all connections."""
        for each in [*self.connections]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, ARG002  # of the base
        return not self.engine.is_down

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # of the base
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  # of the base
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # of the base
        """Write nothing: connections are cut on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, engine: ScriptedEngine, dialect: Dialect, *arguments: Any) -> None:  # noqa: ANN401  # of the base
        self.engine, self.dialect = engine, dialect
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        found = self.dialect.document(self.path, self.engine)
        if isinstance(found, str):
            self._answer(200, found.encode(), "text/plain")
        else:
            self._json(404 if found is None else 200, {"detail": "Not Found"} if found is None else found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/abort_request" and self.dialect.kind == "sglang":
            self.engine.abort(body["rid"])
            self._json(200, {})
        elif self.path != self.dialect.path or self.engine.is_down:
            self._json(404, {"detail": "Not Found"})
        else:
            self._generate(self.dialect.asked(body))

    def _generate(self, asked: Asked) -> None:
        name = asked.name or self.headers.get("X-Request-Id") or ""
        self.close_connection = True
        try:
            request = self.engine.begin(asked.ids, max_tokens=asked.max_tokens, name=name)
        except RefusedError as error:
            self._refuse(error.status)
            return
        except DiedError:
            return
        try:
            self._head()
            self._stream(request)
        except (OSError, DiedError):
            pass
        finally:
            if request is not None:
                self.engine.end(request)

    def _refuse(self, status: int) -> None:
        """Refuse a request; SGLang does so in the stream."""
        error = {"message": "refused", "type": "BadRequestError", "code": status}
        if self.dialect.kind != "sglang":
            self._json(status, {"error": error})
            return
        self._head()
        self._event({"error": error})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _stream(self, request: Request | None) -> None:
        """Stream the tokens; a probe gets one."""
        ids: list[int] = []
        found: Iterator[tuple[int | None, str | None]] = iter([(64, "length")])
        if request is not None:
            found = self.engine.tokens(request, is_gone=self._is_gone)
        reason = None
        for token, reason in found:
            new = [] if token is None else [token]
            ids += new
            self._event(self.dialect.event(ids, new, reason))
        if reason is None and request is not None and request.is_aborted:
            self._event(self.dialect.event(ids, [], "abort"))
        if reason is not None:
            for each in self.dialect.last(ids):
                self._event(each)
        if reason is not None or (request is not None and request.is_aborted):
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    def _is_gone(self) -> bool:
        """Return True if the caller has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable)

    def _head(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, found: object) -> None:
        self._chunk(b"data: " + json.dumps(found).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, status: int, found: object) -> None:
        self._answer(status, json.dumps(found).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
