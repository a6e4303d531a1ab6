"""The kinds of engines: which one a worker is told to use, or finds."""

from collections.abc import Mapping
from typing import Final

from jobs.settings import EngineSettings, TritonSettings
from worker.engine.engine import EngineServer
from worker.engine.http.chat import OPENAI_CHAT
from worker.engine.http.engine import HttpEngine, HttpKind
from worker.engine.http.llama_cpp import LLAMA_CPP
from worker.engine.http.openai import OPENAI
from worker.engine.http.server import HttpServer
from worker.engine.http.sglang import SGLANG
from worker.engine.http.trtllm_serve import TRTLLM_SERVE
from worker.engine.http.vllm import VLLM
from worker.engine.triton.engine import TritonEngine

HTTP_KINDS: Final[Mapping[str, HttpKind]] = {
    kind.name: kind for kind in (VLLM, LLAMA_CPP, SGLANG, TRTLLM_SERVE, OPENAI, OPENAI_CHAT)
}


def connect(triton: TritonSettings, engine: EngineSettings) -> EngineServer:
    """Prepare the connection to the engine that the settings name. Nothing is sent yet."""
    if is_triton(engine):
        return TritonEngine(triton_of(triton, engine), engine)
    server = HttpServer((engine.url or "").rstrip("/"), engine.api_key)
    return HttpEngine(server, engine, kinds=HTTP_KINDS)


def is_triton(engine: EngineSettings) -> bool:
    """Return True if the engine is a Triton server, which speaks gRPC."""
    return engine.url is None or engine.url.startswith("grpc://")


def triton_of(triton: TritonSettings, engine: EngineSettings) -> TritonSettings:
    """Return the settings of the Triton server, which `LONGBATCH_ENGINE__URL` may name too."""
    if engine.url is None:
        return triton
    return triton.model_copy(update={"url": engine.url.removeprefix("grpc://").rstrip("/")})
