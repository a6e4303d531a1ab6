"""The kinds of HTTP engine that only stand-ins speak for here, and clients of these."""

from collections.abc import Sequence
from typing import Any

from jobs.settings import EngineSettings, TritonSettings
from stand_in_engine import Kind, StandIn
from worker.engine.client import EngineClient

ID_KINDS: Sequence[Kind] = ("vllm", "sglang", "trtllm-serve")
KINDS: Sequence[Kind] = (*ID_KINDS, "openai")
# What an engine that does not tell is said to have.
WHOLE = {"max_batch_size": 4, "max_blocks": 64, "tokens_per_block": 32}


def client_of(server: StandIn, **overrides: Any) -> EngineClient:  # noqa: ANN401  # settings
    if server.kind == "openai":
        overrides = {"kind": "openai"} | overrides
    settings = EngineSettings.model_validate({"url": server.url} | overrides)
    return EngineClient(TritonSettings(), settings, end_id=2)
