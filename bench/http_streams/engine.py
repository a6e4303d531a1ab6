"""`python -m bench.http_streams.engine`: a stand-in for vLLM, fast enough for its default of 1,024 slots.

It sends what `vllm serve` sends, each event as an HTTP chunk of its own. A step takes a fixed time and gives
each running request one token; prompts take no time. A request holds the blocks of its tokens, and gets one
more as its answer grows; if none is free, the request that began last waits again, as in vLLM.

Answers consist of words and end where the mark in their prompt says, as with `bench/gpu/vllm/patch.py`.

Source: `CompletionStreamResponse` and `completion_stream_generator` in vLLM's
`entrypoints/openai/completion`, and its `/metrics`.
"""

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import uvloop

from bench.gpu.vllm.clients import SERVED_MODEL
from bench.gpu.vllm.marks import Marks, find_marks
from bench.stand.documents import Author
from cli.stack.ports import LOOPBACK
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

TOKENS_PER_BLOCK: Final = 16
CONTEXT: Final = 131_072  # Llama 3.1's
_BACKLOG: Final = 4096
_BEGINNING: Final = 64  # tokens of a prompt, fewer than any of a list's
_MAX_BODY: Final = 2**24
_EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Script:
    """The answers: words of the prompts' vocabulary, as many as a prompt's mark says."""

    def __init__(self, marks: Marks, tokenizer: Tokenizer) -> None:
        self._marks = marks
        self.ids = marks.allowed
        self.texts = [tokenizer.decode([each]) for each in self.ids]
        self.end_id = marks.end
        self.choices = [choice(text, [token_id]) for text, token_id in zip(self.texts, self.ids, strict=True)]

    def length(self, prompt: Sequence[int]) -> int | None:
        """Return the tokens that a prompt and its answer have together, the end token included.

        Returns:
            None if no mark sets it.
        """
        marks = self._marks
        for place in range(len(prompt) - 4, -1, -1):
            if prompt[place] == marks.head[0] and prompt[place : place + 3] == marks.head:
                text, at = "", place + 3
                while prompt[at] != marks.close:
                    text, at = text + marks.digits[prompt[at]], at + 1
                return at + 1 + marks.suffix + int(text) + 1
        return None


@dataclass(slots=True, eq=False)
class Running:
    """One request.

    Attributes:
        prompt: its ids.
        ends_at: tokens of prompt and answer at which the answer ends; None for no end of its own.
        first_word: of the answer; it depends on the prompt's beginning, so that a continued answer goes on.
        num_tokens: of the answer so far.
        blocks: that it holds.
        head: how each of its events begins.
    """

    transport: asyncio.Transport
    prompt: list[int]
    max_tokens: int
    ends_at: int | None
    first_word: int
    is_stream: bool
    head: bytes
    num_tokens: int = 0
    blocks: int = 0

    @property
    def length(self) -> int:
        """Count the tokens of prompt and answer."""
        return len(self.prompt) + self.num_tokens


class Engine:
    """Slots, blocks and steps.

    Attributes:
        steps: taken so far.
        late_s: seconds by which steps took longer than they should, all together.
    """

    def __init__(self, script: Script, *, slots: int, step_s: float, blocks: int) -> None:
        self._script = script
        self._slots = slots
        self._step_s = step_s
        self._num_blocks = blocks
        self._used = 0
        self._running: dict[Running, None] = {}
        self._waiting: deque[Running] = deque()
        self._arrived = asyncio.Event()
        self._gauges = (0, 0, 0.0)
        self._preempted = 0
        self._prompt_tokens = 0
        self._generated = 0
        self._began = int(time.time())
        self._num_requests = 0
        self.steps = 0
        self.late_s = 0.0

    def ask(self, transport: asyncio.Transport, body: Mapping[str, Any]) -> Running:
        """Add a request to the queue."""
        prompt: list[int] = body["prompt"]
        self._num_requests += 1
        about = {"id": f"cmpl-{self._num_requests:032x}", "object": "text_completion"}
        head = _json({**about, "created": self._began, "model": SERVED_MODEL})
        request = Running(
            transport,
            prompt,
            int(body.get("max_tokens", 16)),
            self._script.length(prompt),
            first_word=sum(prompt[:_BEGINNING]),
            is_stream=bool(body.get("stream")),
            head=head[:-1] + b',"choices":[',
        )
        if request.is_stream:
            transport.write(_head(200, _EVENT_STREAM, None))
        self._waiting.append(request)
        self._arrived.set()
        return request

    def drop(self, request: Running) -> None:
        """Forget a request whose connection was closed."""
        if request in self._running:
            self._free(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def metrics(self) -> str:
        """Write the gauges of the step under way, and the counters."""
        blocks = self._num_blocks + 1  # one is never given to a request
        tokens = blocks * TOKENS_PER_BLOCK
        config = {
            "block_size": TOKENS_PER_BLOCK,
            "num_gpu_blocks": blocks,
            "enable_prefix_caching": "True",
            "sliding_window": "None",
            "kv_cache_size_tokens": tokens,
            "kv_cache_max_concurrency": tokens / CONTEXT,
            "engine": 0,
        }
        labels = ",".join(f'{name}="{value}"' for name, value in config.items())
        running, waiting, usage = self._gauges
        values = {
            "num_requests_running": running,
            "num_requests_waiting": waiting,
            "kv_cache_usage_perc": usage,
            "num_preemptions_total": self._preempted,
            "prompt_tokens_total": self._prompt_tokens,
            "generation_tokens_total": self._generated,
        }
        of_engine = f'{{engine="0",model_name="{SERVED_MODEL}"}}'
        lines = [f"vllm:{name}{of_engine} {value}" for name, value in values.items()]
        return "\n".join([f"vllm:cache_config_info{{{labels}}} 1.0", *lines, ""])

    async def run(self) -> None:
        """Take steps while there are requests."""
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            if not self._running and not self._waiting:
                self._gauges = (0, 0, 0.0)
                self._arrived.clear()
                await self._arrived.wait()
                next_at = loop.time()
            self._schedule()
            next_at += self._step_s
            if (late_s := loop.time() - next_at) > 0:
                self.late_s += late_s
                next_at += late_s
            await asyncio.sleep(next_at - loop.time())
            self.steps += 1
            for each in list(self._running):
                self._advance(each)

    def _schedule(self) -> None:
        """Give running requests the blocks of their next tokens, and begin others if all have theirs."""
        preempted = self._preempted
        for each in list(self._running):
            while each in self._running and each.blocks < _blocks_of(each):
                if self._used == self._num_blocks:
                    self._preempt()
                else:
                    self._hold(each, 1)
        while self._waiting and preempted == self._preempted and len(self._running) < self._slots:
            first = self._waiting[0]
            if self._used + _blocks_of(first) > self._num_blocks:
                break
            self._running[self._waiting.popleft()] = None
            self._hold(first, _blocks_of(first))
            self._prompt_tokens += first.length
        self._gauges = (len(self._running), len(self._waiting), self._used / self._num_blocks)

    def _hold(self, request: Running, blocks: int) -> None:
        request.blocks += blocks
        self._used += blocks

    def _free(self, request: Running) -> None:
        del self._running[request]
        self._hold(request, -request.blocks)

    def _preempt(self) -> None:
        last = next(reversed(self._running))
        self._free(last)
        self._waiting.appendleft(last)
        self._preempted += 1

    def _advance(self, request: Running) -> None:
        """Generate one token, and send it if the request streams."""
        request.num_tokens += 1
        self._generated += 1
        if request.length == request.ends_at:
            self._end(request, choice("", [self._script.end_id], reason="stop", stop=self._script.end_id))
            return
        place = (request.first_word + request.length) % len(self._script.ids)
        is_limit = request.num_tokens == request.max_tokens
        if request.is_stream and not is_limit and request.num_tokens > 1:
            request.transport.write(_event(request.head, self._script.choices[place]))
            return
        text, ids = self._script.texts[place], [self._script.ids[place]]
        reason = "length" if is_limit else None
        prompt = request.prompt if request.num_tokens == 1 else None
        if is_limit:
            self._end(request, choice(text, ids, reason=reason, prompt=prompt))
        elif request.is_stream:
            request.transport.write(_event(request.head, choice(text, ids, prompt=prompt)))

    def _end(self, request: Running, last: bytes) -> None:
        """Send what ends an answer; a whole answer without its text if the request does not stream."""
        self._free(request)
        transport = request.transport
        head = request.head.removesuffix(b"[")
        usage = b',"usage":' + _json(_usage(request))
        if request.is_stream:
            counted = b"data: " + head + b"[]" + usage + b"}\n\n"
            ends = _event(request.head, last) + _chunk(counted) + _chunk(b"data: [DONE]\n\n")
            transport.write(ends + _LAST_CHUNK)
        else:
            body = head + b"[" + last + b"]" + usage + b"}"
            transport.write(_head(200, _JSON, len(body)) + body)
        transport.close()


class Connection(asyncio.Protocol):
    """One request over HTTP/1.1; its answer closes the connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._came = b""
        self._is_answered = False
        self._request: Running | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        """Answer once the whole request is there."""
        self._came += data
        head, is_whole, body = self._came.partition(b"\r\n\r\n")
        if not is_whole or self._is_answered:
            return
        line, *fields = head.decode("latin-1").split("\r\n")
        named = dict(field.lower().split(":", 1) for field in fields)
        length = int(named.get("content-length", 0))
        if length > _MAX_BODY:
            self._transport.abort()
        elif len(body) >= length:
            self._is_answered = True
            method, path, _ = line.split(" ")
            self._answer(method, path, body)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # of the base
        """End the request."""
        if self._request is not None:
            self._engine.drop(self._request)

    def _answer(self, method: str, path: str, body: bytes) -> None:
        match method, path:
            case "POST", "/v1/completions":
                self._complete(json.loads(body))
            case "GET", "/v1/models":
                named = {"id": SERVED_MODEL, "object": "model", "owned_by": "vllm", "root": SERVED_MODEL}
                card = {**named, "parent": None, "max_model_len": CONTEXT}
                self._send(200, _json({"object": "list", "data": [card]}))
            case "GET", "/metrics":
                self._send(200, self._engine.metrics().encode(), _TEXT)
            case "GET", "/steps":  # of the stand-in alone
                self._send(200, _json({"steps": self._engine.steps, "late_s": self._engine.late_s}))
            case "GET", "/health":
                self._send(200, b"")
            case _:
                self._send(404, _json({"detail": "Not Found"}))

    def _complete(self, body: Mapping[str, Any]) -> None:
        wrong = ""
        if not body.get("prompt"):
            wrong = "Either prompt or prompt_embeds must be provided and non-empty."
        elif isinstance(body["prompt"], str) or (body.get("stream") and not body.get("return_token_ids")):
            wrong = "This stand-in takes token ids, and streams only with return_token_ids."
        if wrong:
            error = {"message": wrong, "type": "BadRequestError", "param": "prompt", "code": 400}
            self._send(400, _json({"error": error}))
        else:
            self._request = self._engine.ask(self._transport, body)

    def _send(self, status: int, body: bytes, kind: str = _JSON) -> None:
        self._transport.write(_head(status, kind, len(body)) + body)
        self._transport.close()


def choice(
    text: str,
    ids: Sequence[int],
    *,
    reason: str | None = None,
    stop: int | None = None,
    prompt: Sequence[int] | None = None,
) -> bytes:
    """Write the choice of one event.

    Args:
        text: of the new tokens.
        ids: of the new tokens.
        reason: why the answer ends with them; None if it goes on.
        stop: the token that ended it.
        prompt: its ids, which the first event alone has.
    """
    fields = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": stop}
    return _json({**fields, "prompt_token_ids": prompt, "token_ids": ids})


def _blocks_of(request: Running) -> int:
    """Return the blocks of the request with its next token."""
    return -(-(request.length + 1) // TOKENS_PER_BLOCK)


def _usage(request: Running) -> Mapping[str, int]:
    return {
        "prompt_tokens": len(request.prompt),
        "total_tokens": request.length,
        "completion_tokens": request.num_tokens,
    }


def _event(head: bytes, only: bytes) -> bytes:
    return _chunk(b"data: " + head + only + b"]}\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(status: int, kind: str, length: int | None) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    words = f"HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\n{framing}\r\nconnection: close\r\n\r\n"
    return words.encode()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def serve(engine: Engine) -> None:
    """Print the address, and serve until the process is stopped."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), LOOPBACK, 0, backlog=_BACKLOG)
    print(f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201  # for who started it
    await engine.run()


def main() -> None:
    """Serve on a free port of this machine."""
    parser = argparse.ArgumentParser(prog="python -m bench.http_streams.engine", description=__doc__)
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--step", type=float, default=0.05, help="seconds")
    parser.add_argument("--blocks", type=int, default=57_488, help=f"of {TOKENS_PER_BLOCK} tokens")
    asked = parser.parse_args()
    tokenizer = Tokenizer.load(str(tokenizer_directory(None)))
    script = Script(find_marks(Author(tokenizer)), tokenizer)

    async def run() -> None:
        await serve(Engine(script, slots=asked.slots, step_s=asked.step, blocks=asked.blocks))

    uvloop.run(run())


if __name__ == "__main__":
    main()
