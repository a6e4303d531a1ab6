"""The kinds of engines: which one a worker is told to use, or finds."""

from collections.abc import Callable, Mapping
from typing import Final

from jobs.engines.capacity import Capacity
from jobs.errors import EngineError
from jobs.settings import EngineSettings, TritonSettings
from worker.engine.engine import EngineServer, ServedModel
from worker.engine.gauges import Gauges
from worker.engine.http.llama_cpp import LlamaCppEngine
from worker.engine.http.models import model_card
from worker.engine.http.openai import OpenAIEngine
from worker.engine.http.server import HttpServer
from worker.engine.http.sglang import SglangEngine
from worker.engine.http.trtllm_serve import TrtllmServeEngine
from worker.engine.http.vllm import VllmEngine
from worker.engine.triton.engine import TritonEngine

HTTP_KINDS: Final[Mapping[str, Callable[[HttpServer, EngineSettings], EngineServer]]] = {
    "vllm": VllmEngine,
    "llama.cpp": LlamaCppEngine,
    "sglang": SglangEngine,
    "trtllm-serve": TrtllmServeEngine,
    "openai": OpenAIEngine,
}
# What each kind writes as the owner of its models.
_OWNERS: Final = {
    "vllm": "vllm",
    "llamacpp": "llama.cpp",
    "sglang": "sglang",
    "tensorrt_llm": "trtllm-serve",
}


def connect(triton: TritonSettings, engine: EngineSettings) -> EngineServer:
    """Prepare the connection to the engine that the settings name. Nothing is sent yet."""
    if is_triton(engine):
        return TritonEngine(triton_of(triton, engine), engine)
    server = HttpServer((engine.url or "").rstrip("/"), engine.api_key)
    if engine.kind == "auto":
        return _FoundEngine(server, engine)
    return HTTP_KINDS[engine.kind](server, engine)


def is_triton(engine: EngineSettings) -> bool:
    """Return True if the engine is a Triton server, which speaks gRPC."""
    return engine.url is None or engine.url.startswith("grpc://")


def triton_of(triton: TritonSettings, engine: EngineSettings) -> TritonSettings:
    """Return the settings of the Triton server, which `LONGBATCH_ENGINE__URL` may name too."""
    if engine.url is None:
        return triton
    return triton.model_copy(update={"url": engine.url.removeprefix("grpc://").rstrip("/")})


class _FoundEngine:
    """An engine whose kind its server tells when it first answers."""

    def __init__(self, server: HttpServer, settings: EngineSettings) -> None:
        self._server = server
        self._settings = settings
        self._found: EngineServer | None = None

    async def is_ready(self) -> bool:
        """Return True if the server can serve the model; one that lists no models is not ready."""
        if self._found is None:
            return await self._server.is_answering("/v1/models")
        return await self._found.is_ready()

    async def model(self) -> ServedModel:
        """Find the kind and read what the server offers."""
        return await (await self._engine()).model()

    async def gauges(self) -> Gauges | None:
        """Read the engine's gauges. Returns None if there are none."""
        return await self._found.gauges() if self._found is not None else None

    async def capacity(self, gauges: Gauges) -> Capacity:
        """Combine the settings with what the server reports."""
        return await (await self._engine()).capacity(gauges)

    async def close(self) -> None:
        """Close the connection."""
        if self._found is not None:
            await self._found.close()

    async def _engine(self) -> EngineServer:
        if self._found is None:
            owner = (await model_card(self._server, self._settings)).owner
            if owner not in _OWNERS:
                raise EngineError(
                    f"the server does not tell its kind (its model is owned by {owner!r}): set"
                    " LONGBATCH_ENGINE__KIND to openai, and the capacity"
                )
            self._found = HTTP_KINDS[_OWNERS[owner]](self._server, self._settings)
        return self._found
