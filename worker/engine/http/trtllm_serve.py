"""`trtllm-serve`: TensorRT-LLM's OpenAI-compatible server, asked for token ids instead of text.

Source: TensorRT-LLM main of 2026 and 1.1, `/v1/completions` and `/prometheus/metrics`. It was never run here;
the tests speak to a stand-in that is written from the same sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from jobs.engines.capacity import Capacity
from jobs.errors import RetryableEngineError
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.deltas import TokenDelta
from worker.engine.engine import ServedModel
from worker.engine.exposition import scrape
from worker.engine.gauges import Gauges
from worker.engine.http.call import Event, HttpCall, HttpEnd
from worker.engine.http.capacity import capacity_of
from worker.engine.http.models import model_card
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

_PREFIX: Final = "trtllm_"
_HINT: Final = (
    "trtllm-serve's --max_batch_size and KV pool; only newer releases show them, with return_perf_metrics"
)
# The server looks for a cut stream once a second.
_CANCEL_BOUND: Final = timedelta(seconds=3)


class TrtllmServeEngine:
    """An `EngineServer` behind `trtllm-serve`."""

    def __init__(self, server: HttpServer, overrides: EngineSettings) -> None:
        """Args: overrides: of what the server reports of its capacity."""
        self._server = server
        self._overrides = overrides

    async def is_ready(self) -> bool:
        """Return True if the process is up."""
        return await self._server.is_answering("/health")

    async def model(self) -> ServedModel:
        """Read the model's name."""
        name = (await model_card(self._server, self._overrides)).name
        return ServedModel(
            kind="trtllm-serve",
            name=name,
            abilities=Abilities(takes_ids=True, gives_ids=True, ends_itself=True, cancel_bound=_CANCEL_BOUND),
            call=partial(HttpCall, self._server, dialect=partial(_Dialect, name)),
        )

    async def gauges(self) -> Gauges | None:
        """Read the engine's metrics. Returns None if it has none of blocks."""
        url = f"{self._server.url}/prometheus/metrics"
        samples = await scrape(url, _PREFIX, client=self._server.client)
        found = {each.name: int(each.value) for each in samples or ()}
        if "trtllm_kv_cache_max_blocks" not in found:
            return None
        return Gauges(
            active_requests=found.get("trtllm_num_requests_running", 0),
            waiting_requests=found.get("trtllm_num_requests_waiting", 0),
            max_requests=found.get("trtllm_max_batch_size_runtime", 0)
            or found.get("trtllm_max_batch_size_static", 0),
            max_blocks=found["trtllm_kv_cache_max_blocks"],
            used_blocks=found.get("trtllm_kv_cache_used_blocks", 0),
            tokens_per_block=found.get("trtllm_kv_cache_tokens_per_block", 0),
        )

    async def capacity(self, gauges: Gauges) -> Capacity:
        """Combine the settings and the metrics. The context length is the settings' alone."""
        return capacity_of(
            self._overrides,
            slots=gauges.max_requests,
            blocks=gauges.max_blocks,
            tokens_per_block=gauges.tokens_per_block,
            context=None,
            hint=_HINT,
        )

    async def close(self) -> None:
        """Do nothing: connections live as long as a read."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    model_name: str
    request: Request

    path = "/v1/completions"
    refuses_reliably = False  # nearly every exception of the server becomes a 400
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body. The server refuses every field that it does not know."""
        request, sampling = self.request, self.request.sampling
        body: dict[str, Any] = {
            "model": self.model_name,
            "prompt": request.ids.tolist(),
            "add_special_tokens": False,
            "detokenize": False,
            "max_tokens": request.max_tokens,
            "min_tokens": sampling.min_tokens,
            "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
            "stop": list(request.stops) or None,
            "stop_token_ids": [request.end_id] if request.end_id >= 0 else None,
            "ignore_eos": request.end_id < 0,
            "stream": True,
        }
        if sampling.is_greedy:
            body["top_k"] = 1
        else:
            body |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "seed": sampling.seed}
        return {name: value for name, value in body.items() if value is not None}

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the choice's token ids, which are new ones only, and its finish reason."""
        found: list[Event] = []
        for choice in event.get("choices") or ():
            if ids := choice.get("token_ids"):
                found.append(TokenDelta([int(each) for each in ids]))
            if reason := choice.get("finish_reason"):
                is_known = reason in {"stop", "length"}
                error = None if is_known else RetryableEngineError(said=f"finish_reason {reason}")
                found.append(HttpEnd(error, is_limit=reason == "length"))
        return found

    def stop(self) -> None:
        """Return None: the server ends a request when its stream is cut."""
