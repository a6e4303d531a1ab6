"""The discovery of an engine by its URL: its kind, model and capacity, before any worker feeds it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from jobs.diagnostics import Finding
from jobs.engines.capacity import Capacity
from jobs.errors import EngineError, EngineUnavailableError
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, EngineSide
from worker.engine.engine import EngineServer
from worker.engine.gauges import Gauges
from worker.engine.http.capacity import CapacityUnknownError
from worker.engine.http.chat import OPENAI_CHAT
from worker.engine.http.models import PATH, ModelCard, base_cards
from worker.engine.http.openai import OPENAI
from worker.engine.http.probe import compare_tokenizer
from worker.engine.http.server import HttpServer
from worker.engine.kinds import HTTP_KINDS, connect, is_triton
from worker.engine.sessions import BROKEN, is_success, reason_of

__all__ = [
    "CapacityUnknownError",
    "DiscoveredEngine",
    "KeyRefusedError",
    "NoServerError",
    "NotAnEngineError",
    "SeveralModelsError",
    "StillLoadingError",
    "compare",
    "discover",
]

_CONNECT_SECONDS: Final = 2.0
_PORTS: Final = {"http": 80, "https": 443, "grpc": 8001}
# Models on Triton without gauges, and where an operator finds what no server reports.
_WITHOUT_GAUGES: Final = {
    "llmapi": "its model.yaml has them as max_batch_size and kv_cache_config.max_tokens",
    "vllm": "its model.json has the slots as max_num_seqs, and the server's log the size of its KV cache",
}
# Of a server that does not report the size of its blocks; only their product with the number counts.
_TOKENS_PER_BLOCK: Final = 32
_REFUSALS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class NoServerError(EngineUnavailableError):
    """Nothing answers at the address; the message is the operating system's reason."""


class NotAnEngineError(EngineError):
    """A server answers that is no engine; the message says how it answered."""


class KeyRefusedError(EngineError):
    """The engine needs a key, or refuses the one it got."""


class StillLoadingError(EngineUnavailableError):
    """The engine answers that it is not ready yet."""


class SeveralModelsError(EngineError):
    """The server does not have the model, or has several and none was chosen.

    Attributes:
        names: the models that it has.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(", ".join(names))
        self.names = names


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredEngine:
    """An engine that answers.

    Attributes:
        kind: what LONGBATCH_ENGINE__KIND calls it; `triton` for Triton.
        model: the name that it serves.
        model_files: paths and Hugging Face names under which the model's files may be on this machine.
        settings: those given, with the kind and the capacity that the server does not report.
        capacity: None if only a first request shows it.
        context: most tokens of one sequence, as the server lists it; None: it does not.
    """

    kind: str
    model: str
    model_files: tuple[str, ...]
    settings: EngineSettings
    capacity: Capacity | None
    context: int | None = None

    def by_chat(self) -> "DiscoveredEngine":
        """Return it as an engine that gets messages, whose tokens only the engine can count.

        A plain endpoint's context is unknown, and Ollama cuts a longer prompt without a word: each slot gets
        its share of the KV cache.
        """
        settings = self.settings.model_copy(update={"kind": OPENAI_CHAT.name})
        capacity = self.capacity
        if capacity is not None and self.context is None:
            share = capacity.max_blocks // capacity.max_batch_size * capacity.tokens_per_block
            longest = max(2, min(capacity.max_seq_len, share))
            shorter = min(capacity.max_input_len, longest - 1)
            capacity = replace(capacity, max_seq_len=longest, max_input_len=shorter)
        return replace(self, kind=OPENAI_CHAT.name, settings=settings, capacity=capacity)


async def discover(side: EngineSide, *, kv_tokens: int | None) -> DiscoveredEngine:
    """Read what serves the URL of the settings.

    Args:
        side: the URL, and overrides of what the server reports.
        kv_tokens: the size of the KV pool; None: as the server reports it.

    Raises:
        EngineError: one of the errors above, or the server cannot be used as it is.
        EngineUnavailableError: it cannot be used yet.
    """
    await _reach(side.engine.url or "")
    if is_triton(side.engine):
        return await _discover_triton(side, kv_tokens=kv_tokens)
    server = HttpServer((side.engine.url or "").rstrip("/"), side.engine.api_key)
    card = await _choose_card(server, side.engine.served_model)
    status, _ = await server.refusal_of("/v1/completions", {})
    if status in _REFUSALS:  # some list their models to everybody
        raise KeyRefusedError(f"status {status}")
    kind = side.engine.kind if side.engine.kind != "auto" else _kind_of(card)
    settings = side.engine.model_copy(update={"kind": kind})
    engine = connect(side.triton, settings)
    served = await engine.model()
    gauges = await engine.gauges()
    settings = _with_pool(settings, kv_tokens, reported=gauges)
    try:
        capacity = await connect(side.triton, settings).capacity(gauges or Gauges())
    except CapacityUnknownError:
        # TensorRT-LLM fills in its gauges at the first iteration.
        if kind != "trtllm-serve" or gauges is None:
            raise
        capacity = None
    return DiscoveredEngine(
        kind=kind,
        model=served.name,
        model_files=await _model_files(server, kind, card),
        settings=settings,
        capacity=capacity,
        context=card.context,
    )


async def compare(found: DiscoveredEngine, tokenizer: Tokenizer) -> Finding:
    """Compare the tokenizer with the engine's; `unknown` if the engine does not show how it encodes text."""
    if found.kind not in HTTP_KINDS:
        return Finding("tokenizer", "unknown", "Triton does not show how it encodes text")
    server = HttpServer((found.settings.url or "").rstrip("/"), found.settings.api_key)
    return await compare_tokenizer(server, found.kind, tokenizer)


async def _reach(url: str) -> None:
    """Open a connection and close it."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORTS[parts.scheme])
    except TimeoutError as error:
        raise NoServerError("no answer") from error
    except OSError as error:
        raise NoServerError(_reason(error)) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _reason(error: OSError) -> str:
    """Name what the operating system reports. An error of several addresses has no number of its own."""
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "connection refused"
    return (error.strerror or str(error)).lower()


async def _choose_card(server: HttpServer, wanted: str | None) -> ModelCard:
    """Read the list of models and return the chosen one, or the only one."""
    try:
        status, said = await server.get(PATH)
    except TimeoutError as error:
        raise NoServerError(f"no answer to GET {PATH}") from error
    except BROKEN as error:
        raise NotAnEngineError(f"GET {PATH}: {reason_of(error)}") from error
    if status in _REFUSALS:
        raise KeyRefusedError(f"status {status}")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise StillLoadingError(f"status {status}")
    try:
        cards = base_cards(json.loads(said))
    except (ValueError, RecursionError):
        cards = []
    if not is_success(status) or not cards:
        if await server.is_answering("/v2/health/live"):
            raise NotAnEngineError("this is Triton's HTTP port; give its gRPC port, grpc://host:8001")
        raise NotAnEngineError(f"GET {PATH}: {'no models' if is_success(status) else status}")
    chosen = [each for each in cards if wanted in (None, each.name)]
    if len(chosen) != 1:
        raise SeveralModelsError(tuple(each.name for each in cards))
    return chosen[0]


def _kind_of(card: ModelCard) -> str:
    """Return the kind that the owner of a model tells; any other server counts as OpenAI-compatible."""
    return next(
        (each.name for each in HTTP_KINDS.values() if each.owner and each.owner == card.owner), OPENAI.name
    )


def _with_pool(settings: EngineSettings, kv_tokens: int | None, *, reported: Gauges | None) -> EngineSettings:
    """Set the number of blocks for a pool of this many tokens."""
    if kv_tokens is None:
        return settings
    size = settings.tokens_per_block or (reported and reported.tokens_per_block) or _TOKENS_PER_BLOCK
    return settings.model_copy(update={"max_blocks": max(1, kv_tokens // size), "tokens_per_block": size})


async def _model_files(server: HttpServer, kind: str, card: ModelCard) -> tuple[str, ...]:
    """List where the model's files may be, the places that the server reports first."""
    reported: list[object] = []
    if kind == "llama.cpp":
        reported = [(await server.read("/props") or {}).get("model_path")]
    if kind == "sglang":
        info = await server.read("/model_info") or await server.read("/get_model_info") or {}
        reported = [info.get("tokenizer_path"), info.get("model_path")]
    return tuple(dict.fromkeys(str(each) for each in (*reported, card.root, card.name) if each))


async def _discover_triton(side: EngineSide, *, kv_tokens: int | None) -> DiscoveredEngine:
    async with _connected(side, side.engine) as engine:
        served = await engine.model()
        gauges = await engine.gauges()
    settings = _with_pool(side.engine, kv_tokens, reported=gauges)
    told = {"MAX_BATCH_SIZE": settings.max_batch_size, "MAX_BLOCKS": settings.max_blocks}
    missing = [name for name, value in told.items() if not value]
    if missing and (hint := _WITHOUT_GAUGES.get(served.kind)):
        raise CapacityUnknownError(missing, hint=hint)
    async with _connected(side, settings) as engine:
        try:
            capacity = await engine.capacity(gauges or Gauges())
        except EngineUnavailableError:
            raise
        except EngineError:  # its gauges may show it after a first request
            capacity = None
    return DiscoveredEngine(
        kind="triton", model=served.name, model_files=(), settings=settings, capacity=capacity
    )


@asynccontextmanager
async def _connected(side: EngineSide, settings: EngineSettings) -> AsyncIterator[EngineServer]:
    engine = connect(side.triton, settings)
    try:
        yield engine
    finally:
        await engine.close()
