"""A stand-in for HTTP engines that do not run here: vLLM, SGLang, trtllm-serve, a plain OpenAI endpoint.

Written from the formats that these servers' documentation and sources describe: paths, fields, stream events,
errors, metrics. What SGLang's own server sends is recorded, and checked (`standing_in.sglang`).

Its answer is always 1000, 1001, 1002 and so on, and "a b c " as text; a prompt of ids that ends with a part
of the answer is continued.
"""

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from cli.stack.ports import LOOPBACK
from support import eventually

Kind = Literal["vllm", "sglang", "trtllm-serve", "openai"]
_CANARY = "Say yes."  # what a worker's probe sends where a prompt is text
OWNERS: Mapping[Kind, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm-serve": "tensorrt_llm",
    "openai": "someone",
}
# What the strict server knows of a completion.
TRTLLM_FIELDS = frozenset(
    [
        "model",
        "prompt",
        "add_special_tokens",
        "detokenize",
        "max_tokens",
        "min_tokens",
        *("response_format", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_p"),
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "stream",
        "stream_options",
    ]  # a list of names
)
METRICS: dict[Kind, str] = {
    "vllm": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="101",engine="0",'
    'kv_cache_size_tokens="1616",kv_cache_max_concurrency="0.39453125",'  # of 4096 tokens, 256 blocks
    'enable_prefix_caching="%(caching)s"} 1\n'
    'vllm:num_requests_running{engine="0"} %(running)d\nvllm:num_requests_waiting{engine="0"} 0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.25\n',
    "sglang": 'sglang:num_running_reqs{tp_rank="0",dp_rank="0"} %(running)d\n'
    'sglang:num_running_reqs{tp_rank="1",dp_rank="0"} %(running)d\n'
    'sglang:max_total_num_tokens{tp_rank="0",dp_rank="0"} 640\n'
    'sglang:max_total_num_tokens{tp_rank="0",dp_rank="1"} 640\n'
    'sglang:num_used_tokens{tp_rank="0",dp_rank="0"} 33\nsglang:page_size{tp_rank="0",dp_rank="0"} 16\n'
    'sglang:page_size{tp_rank="0",dp_rank="1"} 16\n',
    "trtllm-serve": "trtllm_kv_cache_max_blocks 200\ntrtllm_kv_cache_used_blocks 7\n"
    "trtllm_kv_cache_tokens_per_block 32\ntrtllm_num_requests_running %(running)d\n"
    "trtllm_num_requests_waiting %(waiting)d\ntrtllm_max_batch_size_runtime 8\n",
    "openai": "",
}


@dataclass
class StandIn:
    """The server's state and conduct.

    Attributes:
        api_key: what it asks for; empty: nothing.
        forbids: an id that a filter in front of it lets through in no prompt.
        forbids_with: the filter's status.
        forbids_longer_than: tokens of the longest prompt that the filter lets through.
        refuses_every: every request for an answer of this number lacks the right key; 0: none.
        is_open: whoever has no key may read what it tells of itself; only requests for answers need one.
        repeats: SGLang sends all ids so far in each event, as without `--incremental-streaming-output`.
        limit: its own limit of tokens, at which it clamps without a word.
        says: the ids of its answer, at whose end it stops; empty: 1000, 1001 and so on.
        stops_after: tokens after which it has matched a stop string, which ids hold and text does not.
        fails_after: tokens after which an error event comes.
        has_metrics: it shows metrics.
        waits_at: tokens of the answer after which it says no more until its stream is cut; once.
        num_waiting: requests that wait inside, in the metrics.
        caches: it caches prefixes.
        pace: seconds between two tokens; a closed connection is noticed then.
        forgets_scores: it tells log probabilities of no token, whatever it is asked.
        embeds: its model embeds, and generates nothing.
        is_late: it answers no GET for now, as one that is busy with streams.
        num_late: GETs that it did not answer.
        is_reading: it reads the prompt until the request is stopped.
        bodies: what was asked, by path.
        tokenizes: returns the ids of a text at /tokenize; None: it has no such path.
        probes: requests of one id for one token, by which workers find out whether it answers.
        left: ids of requests that ended because their stream was cut or an abort came.
        models: the names of its models.
        root: the model behind them, as vLLM lists it; empty: it lists none.
        only_thinks: its answers to messages are thoughts alone.
        longest: of a prompt, in ids or characters.
    """

    kind: Kind
    api_key: str = ""
    forbids: int | None = None
    forbids_with: int = 403
    forbids_longer_than: int = 10**9
    refuses_every: int = 0
    is_open: bool = False
    repeats: bool = True
    limit: int = 10**6
    says: Sequence[int] = ()
    stops_after: int | None = None
    fails_after: int | None = None
    has_metrics: bool = True
    waits_at: int | None = None
    num_waiting: int = 0
    caches: bool = True
    pace: float = 0.0
    is_late: bool = False
    num_late: int = 0
    is_reading: bool = False
    embeds: bool = False
    forgets_scores: bool = False
    models: Sequence[str] = ("served",)
    root: str = ""
    only_thinks: bool = False
    longest: int = 131_072
    port: int = 0
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    tokenizes: Callable[[str], Sequence[int]] | None = None
    probes: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    num_asked: int = 0
    num_refused: int = 0
    running: int = 0
    _server: "_Server | None" = None

    def start(self) -> "StandIn":
        """Serve; from the second time on, on the same port."""
        self._server = server = _Server((LOOPBACK, self.port), partial(_Handler, self))
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def kill(self) -> None:
        """Cut all connections and stop to listen, as a process does that is killed."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        for connection in [*self._server.connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def asked(self) -> dict[str, Any]:
        """The body of the last request for an answer."""
        return next(body for path, body in reversed(self.bodies) if path != "/abort_request")

    def document(self, path: str) -> object:
        """What it tells of itself; None if it has no such path."""
        about: dict[str, object] = {"owned_by": OWNERS[self.kind]}
        if self.kind == "vllm":
            about["max_model_len"] = 4096
        if self.kind == "sglang":
            about |= {"max_model_len": 2048, "parent": None}
        if self.root:
            about["root"] = self.root
        cards = [{"id": name, **about} for name in self.models]
        found: dict[str, object] = {"/v1/models": {"object": "list", "data": cards}, "/health": {}}
        if self.kind == "sglang":
            found["/server_info"] = {
                "max_running_requests": None,
                "context_length": None,
                "page_size": 16,
                "max_total_num_tokens": 640,
                "max_req_input_len": 2042,
                "incremental_streaming_output": not self.repeats,
                "enable_deterministic_inference": False,
                "internal_states": [{"effective_max_running_requests_per_dp": 3}] * 2,
            }
            found["/model_info"] = {"is_generation": not self.embeds}
        return found.get(path)

    def metrics(self, path: str) -> str | None:
        wanted = "/prometheus/metrics" if self.kind == "trtllm-serve" else "/metrics"
        if path != wanted or not self.has_metrics or not METRICS[self.kind]:
            return None
        shown = {"running": self.running, "waiting": self.num_waiting, "caching": self.caches}
        return METRICS[self.kind] % shown

    def is_probe(self, body: Mapping[str, Any]) -> bool:
        prompt = prompt_of(body)
        is_short = len(prompt) == 1 or prompt == _CANARY
        return bool(is_short) and self.num_tokens(body) == 1

    def is_unlucky(self) -> bool:
        """Whether a load balancer leads this request to a replica with another key."""
        self.num_asked += 1
        return self.refuses_every > 0 and self.num_asked % self.refuses_every == 0

    def is_forbidden(self, body: Mapping[str, Any]) -> bool:
        prompt = [*(prompt_of(body))]
        return self.forbids in prompt or len(prompt) > self.forbids_longer_than

    def refusal(self, body: Mapping[str, Any]) -> object:
        """Why a request is wrong; None if it is not."""
        if self.kind == "trtllm-serve" and (unknown := set(body) - TRTLLM_FIELDS):
            return {"object": "error", "message": f"extra fields: {sorted(unknown)}", "code": 400}
        is_generate = "input_ids" in body
        return self._sglang_refusal(body) if is_generate else self._openai_refusal(body)

    def _openai_refusal(self, body: Mapping[str, Any]) -> object:
        prompt = prompt_of(body)
        if not prompt:
            return {"error": {"message": "Field required: prompt", "type": "BadRequestError"}}
        if len(prompt) > self.longest:
            return {"error": {"message": f"This model's maximum context length is {self.longest} tokens."}}
        if any(each > 10**6 for each in prompt if isinstance(each, int)):
            return {"error": {"message": "Token id is out of vocabulary", "type": "BadRequestError"}}
        if body.get("top_p", 1) > 1:
            return {"error": {"message": "top_p must be in (0, 1]", "type": "BadRequestError"}}
        return None

    def _sglang_refusal(self, body: Mapping[str, Any]) -> object:
        """Return the event with which SGLang refuses a request in its stream; None if it takes it."""
        prompt, top_p = body["input_ids"], body["sampling_params"].get("top_p", 1)
        message = ""
        if not prompt:
            message = "input_ids cannot be empty."
        elif top_p > 1:
            message = f"top_p must be in (0, 1], got {top_p}."
        elif len(prompt) >= self.longest:
            message = (
                f"The input ({len(prompt)} tokens) is longer than the model's context length"
                f" ({self.longest} tokens)."
            )
        elif len(prompt) >= self.longest - 6:
            message = (
                f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length"
                f" ({self.longest - 6} tokens). Use a shorter input or enable --allow-auto-truncate."
            )
            reason = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
            # It comes with the token of a forward pass over nothing.
            return self.sglang_event(body["rid"], [1000], reason=reason)
        if not message:
            return None
        return {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "code": 400,
                "retryable": False,
            }
        }

    def num_tokens(self, body: Mapping[str, Any]) -> int:
        asked = body.get("max_tokens", 16) or body["sampling_params"]["max_new_tokens"]
        if self.kind == "sglang":
            asked = body["sampling_params"]["max_new_tokens"]
        return min(int(asked), self.limit)

    def num_given(self, body: Mapping[str, Any]) -> int:
        """How many tokens of the answer the prompt ends with."""
        prompt = prompt_of(body)
        if self.says:
            sizes = range(len(self.says) - 1, 0, -1)
            return next((size for size in sizes if prompt[-size:] == [*self.says[:size]]), 0)
        given = prompt[-1] - 999 if isinstance(prompt[-1], int) else 0
        return given if 0 < given < len(prompt) and prompt[-given:] == [*range(1000, 1000 + given)] else 0

    def sglang_event(
        self,
        name: str,
        ids: Sequence[int],
        *,
        reason: Mapping[str, object] | None,
        num_prompt: int = 1,
    ) -> dict[str, Any]:
        """Build an event of SGLang's stream, without its times."""
        about: dict[str, object] = {
            "id": name,
            "finish_reason": reason,
            "prompt_tokens": num_prompt,
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if reason is not None:
            about["weight_versions"] = [{"version": "default", "start": 0, "end": len(ids)}]
        return {
            "text": "",
            "output_ids": list(ids if self.repeats else ids[-1:]),
            "meta_info": about,
        }

    def event(
        self,
        ids: Sequence[int],
        *,
        reason: str | None,
        name: str = "",
        num_prompt: int = 1,
        num_top: int | None = None,
        is_chat: bool = False,
    ) -> object:
        """One event, for all ids so far; vLLM counts a token that is not among the top besides them."""
        top = [(7, -0.5), (8, -0.75)]
        is_scored = num_top is not None and not self.forgets_scores
        if self.kind == "sglang":
            why = _sglang_reason(reason, ids)
            found = self.sglang_event(name, ids, reason=why, num_prompt=num_prompt)
            sent = found["output_ids"]
            if is_scored:
                found["meta_info"] |= {
                    "input_token_logprobs": [],
                    "output_token_logprobs": [[log_prob_of(each), each, None] for each in sent],
                    "output_token_logprobs_length": len(ids),
                    "input_top_logprobs": [],
                    "output_top_logprobs": [[[lp, each, None] for each, lp in top[:num_top]]] * len(sent),
                }
            return found
        choice: dict[str, object] = {"index": 0, "text": "", "finish_reason": reason}
        if self.kind == "openai":
            word = f"{chr(97 + (ids[-1] - 1000) % 26)} "
            if not is_chat:
                choice["text"] = word
            elif self.only_thinks:
                choice["delta"] = {"role": "assistant", "content": "", "reasoning": word}
            else:
                choice["delta"] = {"role": "assistant", "content": word}
        else:
            choice["token_ids"] = list(ids[-1:])
            if is_scored:
                told = {
                    f"token_id:{each}": lp for each, lp in [(ids[-1], log_prob_of(ids[-1])), *top[:num_top]]
                }
                choice["logprobs"] = {"token_logprobs": [log_prob_of(ids[-1])], "top_logprobs": [told]}
        return {"id": "cmpl-1", "choices": [choice]}


def _sglang_reason(reason: str | None, ids: Sequence[int]) -> Mapping[str, object] | None:
    """Build SGLang's words for the end of an answer."""
    match reason:
        case None:
            return None
        case "length":
            return {"type": "length", "length": len(ids)}
        case "stop":
            return {"type": "stop", "matched": ids[-1]}
        case _:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def prompt_of(body: Mapping[str, Any]) -> Any:  # noqa: ANN401  # ids or a text
    """What a request has for a prompt: of messages, the last one."""
    messages = body.get("messages")
    return body.get("input_ids") or body.get("prompt") or (messages[-1]["content"] if messages else [])


def log_prob_of(token_id: int) -> float:
    """How likely a token of the answer is, which tells its place."""
    return -1 - (token_id - 1000) / 256


class _Server(ThreadingHTTPServer):
    """Knows its connections."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401  # of the base
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # the base has it so
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  # the base has it so
        self.connections.discard(request)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """Answers as its stand-in says."""

    protocol_version = "HTTP/1.1"

    def __init__(self, stand_in: StandIn, *arguments: Any) -> None:  # noqa: ANN401  # of the base
        self.stand_in = stand_in
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if self.stand_in.is_late:
            self.stand_in.num_late += 1
            eventually(lambda: not self.stand_in.is_late)
            return
        if self.path != "/health" and not self.stand_in.is_open and self._is_refused():
            return
        metrics, document = self.stand_in.metrics(self.path), self.stand_in.document(self.path)
        if metrics is not None:
            self._answer(200, metrics.encode(), "text/plain")
        else:
            self._json(404 if document is None else 200, document or {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_refused():
            return
        if self.path == "/v1/embeddings":
            self._embed(body)
            return
        if self.stand_in.embeds:
            self._json(404, {"detail": "Not Found"})
            return
        if self.path == "/tokenize":
            self._tokenize(body)
            return
        if self.stand_in.is_probe(body):
            self.stand_in.probes.append(body)
        else:
            self.stand_in.bodies.append((self.path, body))
        if self.path == "/abort_request" and self.stand_in.kind == "sglang":
            self.stand_in.aborted.add(body["rid"])
            self._json(200, {})
        elif self.stand_in.is_unlucky():
            self._json(401, {"error": "Unauthorized"})
        elif self.stand_in.is_forbidden(body):
            self.stand_in.num_refused += 1
            self._json(self.stand_in.forbids_with, {"error": {"message": "Blocked by policy 7"}})
        elif refusal := self.stand_in.refusal(body):
            self._refuse(refusal)
        else:
            self._stream(body)

    def _refuse(self, refusal: object) -> None:
        """Refuse a request; SGLang's `/generate` does so in the stream."""
        if self.path != "/generate":
            self._json(400, refusal)
            return
        self._begin()
        self._event(refusal)
        self._chunk(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _tokenize(self, body: dict[str, Any]) -> None:
        if self.stand_in.tokenizes is None:
            self._json(404, {"detail": "Not Found"})
        else:
            self._json(200, {"tokens": [*self.stand_in.tokenizes(body["prompt"])]})

    def _embed(self, body: dict[str, Any]) -> None:
        if not self.stand_in.embeds:
            self._json(404, {"detail": "Not Found"})
        elif "input" not in body:
            self._json(400, {"error": {"message": "Field required: input", "type": "BadRequestError"}})
        else:
            self.stand_in.bodies.append((self.path, body))
            # SGLang writes numbers, whatever it is asked for.
            numbers: object = [0.5, -0.25, 0.75]
            if self.stand_in.kind != "sglang" and body["encoding_format"] == "base64":
                numbers = "AAAAPwAAgL4AAEA/"
            self._json(200, {"object": "list", "data": [{"index": 0, "embedding": numbers}]})

    def _stream(self, body: dict[str, Any]) -> None:
        name = str(body.get("rid", self.headers.get("X-Request-Id")))
        self._begin()
        self.stand_in.running += 1
        try:
            try:
                is_whole = self._tokens(body, name)
            finally:
                self.stand_in.running -= 1  # as in a server, before its client hears of the end
            if is_whole:
                self._chunk(b"[DONE]")
            if name not in self.stand_in.left or name in self.stand_in.aborted:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self._leave(name)

    def _begin(self) -> None:
        """Begin a stream of events."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _leave(self, name: str) -> None:
        """Note that a stream was cut."""
        self.stand_in.left.append(name)
        self.stand_in.waits_at = None

    def _tokens(self, body: dict[str, Any], name: str) -> bool:
        """Send the answer; return False if it ends early."""
        ids: list[int] = []
        num, num_given = self.stand_in.num_tokens(body), self.stand_in.num_given(body)
        while len(ids) < num:
            if name in self.stand_in.aborted:
                self.stand_in.left.append(name)
                self._event(self.stand_in.event(ids, reason="abort", name=name))
                return False
            if self.stand_in.pace and select.select([self.connection], [], [], self.stand_in.pace)[0]:
                self._leave(name)
                return False
            if self.stand_in.is_reading:
                continue
            if num_given + len(ids) == self.stand_in.waits_at:
                select.select([self.connection], [], [])
                self._leave(name)
                return False
            if len(ids) == self.stand_in.fails_after:
                error = {"message": "the engine broke", "type": "internal_error", "code": 500}
                self._event({"error": error})
                return False
            says, place = self.stand_in.says, num_given + len(ids)
            ids.append(says[place] if says else 1000 + place)
            is_stopped = len(ids) in (self.stand_in.stops_after, len(says) - num_given if says else None)
            reason = "stop" if is_stopped else "length" if len(ids) == num else None
            num_top = body.get("top_logprobs_num", body.get("logprobs"))
            is_chat = "messages" in body
            num_prompt = len(prompt_of(body))
            self._event(
                self.stand_in.event(
                    ids,
                    reason=reason,
                    name=name,
                    num_prompt=num_prompt,
                    num_top=num_top,
                    is_chat=is_chat,
                )
            )
            if is_stopped:
                break
        if self.stand_in.kind in ("vllm", "openai"):
            usage = {"prompt_tokens": 5, "completion_tokens": len(ids)}
            self._event({"id": "cmpl-1", "choices": [], "usage": usage})
        return True

    def _event(self, found: object) -> None:
        self._chunk(json.dumps(found).encode())

    def _chunk(self, data: bytes) -> None:
        event = b"data: %s\n\n" % data
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def _is_refused(self) -> bool:
        wanted = f"Bearer {self.stand_in.api_key}"
        if not self.stand_in.api_key or self.headers.get("Authorization") == wanted:
            return False
        self._json(401, {"error": "Unauthorized"})
        return True

    def _json(self, status: int, found: object) -> None:
        self._answer(status, json.dumps(found).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def standing_in(kind: Kind, **conduct: Any) -> Iterator[StandIn]:  # noqa: ANN401  # fields of StandIn
    stand_in = StandIn(kind, **conduct).start()
    try:
        yield stand_in
    finally:
        stand_in.kill()
