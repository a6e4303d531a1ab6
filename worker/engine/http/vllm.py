"""vLLM's own HTTP server: token ids in and out, blocks and requests in its metrics.

Source: vLLM 0.32.0, `/v1/completions` and `/metrics`.
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

_PREFIX: Final = "vllm:"
_HINT: Final = "vLLM's --max-num-seqs is in no metric"
# A cut stream was seen to leave the engine within 0.05 s.
_CANCEL_BOUND: Final = timedelta(seconds=2)


class VllmEngine:
    """An `EngineServer` behind vLLM's HTTP server."""

    def __init__(self, server: HttpServer, overrides: EngineSettings) -> None:
        """Args: overrides: of what the server reports of its capacity."""
        self._server = server
        self._overrides = overrides

    async def is_ready(self) -> bool:
        """Return True if the server and its engine are up."""
        return await self._server.is_answering("/health")

    async def model(self) -> ServedModel:
        """Read the model's name."""
        name = (await model_card(self._server, self._overrides)).name
        return ServedModel(
            kind="vllm",
            name=name,
            abilities=Abilities(takes_ids=True, gives_ids=True, ends_itself=True, cancel_bound=_CANCEL_BOUND),
            call=partial(HttpCall, self._server, dialect=partial(_Dialect, name)),
        )

    async def gauges(self) -> Gauges | None:
        """Read the engine's metrics. Returns None if it shows none."""
        samples = await scrape(f"{self._server.url}/metrics", _PREFIX, client=self._server.client)
        if not samples:
            return None
        sums = {sample.name: 0.0 for sample in samples}
        for sample in samples:
            sums[sample.name] += sample.value
        config = next((each.labels for each in samples if each.name == "vllm:cache_config_info"), {})
        # One block is never given to a request.
        max_blocks = max(0, _number(config, "num_gpu_blocks") - 1)
        return Gauges(
            active_requests=int(sums.get("vllm:num_requests_running", 0)),
            waiting_requests=int(sums.get("vllm:num_requests_waiting", 0)),
            max_blocks=max_blocks,
            used_blocks=round(sums.get("vllm:kv_cache_usage_perc", 0) * max_blocks),
            tokens_per_block=_number(config, "block_size"),
        )

    async def capacity(self, gauges: Gauges) -> Capacity:
        """Combine the settings, the metrics and the model's context length."""
        return capacity_of(
            self._overrides,
            slots=None,
            blocks=gauges.max_blocks,
            tokens_per_block=gauges.tokens_per_block,
            context=(await model_card(self._server, self._overrides)).context,
            hint=_HINT,
        )

    async def close(self) -> None:
        """Do nothing: connections live as long as a read."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    model_name: str
    request: Request

    path = "/v1/completions"
    refuses_reliably = True
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body. Every default of vLLM's that matters is sent: `max_tokens` would be 16."""
        request, sampling = self.request, self.request.sampling
        body: dict[str, Any] = {
            "model": self.model_name,
            "prompt": request.ids.tolist(),
            "max_tokens": request.max_tokens,
            "min_tokens": sampling.min_tokens,
            "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
            "stop": list(request.stops) or None,
            "stop_token_ids": [request.end_id] if request.end_id >= 0 else None,
            "ignore_eos": request.end_id < 0,
            "stream": True,
            "return_token_ids": True,
        }
        if not sampling.is_greedy:
            body |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "seed": _seed(sampling.seed)}
        return {name: value for name, value in body.items() if value is not None}

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the choice's token ids, which are new ones only, and its finish reason."""
        found: list[Event] = []
        for choice in event.get("choices") or ():
            if ids := choice.get("token_ids"):
                found.append(TokenDelta([int(each) for each in ids]))
            if reason := choice.get("finish_reason"):
                found.append(_end(reason))
        return found

    def stop(self) -> None:
        """Return None: vLLM ends a request when its stream is cut."""


def _end(reason: str) -> HttpEnd:
    if reason in {"stop", "length"}:
        return HttpEnd(is_limit=reason == "length")
    return HttpEnd(RetryableEngineError(said=f"finish_reason {reason}"))


def _seed(seed: int | None) -> int | None:
    """Fit a seed into the 63 bits that vLLM takes."""
    return None if seed is None else seed % 2**63


def _number(labels: Mapping[str, str], name: str) -> int:
    """Read a number among the labels; 0 if it is absent or `None`."""
    text = labels.get(name, "")
    return int(text) if text.isdigit() else 0
