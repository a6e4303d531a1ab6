"""llama.cpp's HTTP server: token ids in and out, slots that can be read.

Source: llama.cpp's server of October 2026, `/completion`, `/props` and `/slots`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jobs.engines.capacity import Capacity
from jobs.errors import EngineError, EngineUnavailableError, RetryableEngineError
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.deltas import TokenDelta
from worker.engine.engine import ServedModel
from worker.engine.gauges import Gauges
from worker.engine.http.call import Event, HttpCall, HttpEnd
from worker.engine.http.capacity import capacity_of
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

# The server counts single tokens; blocks only keep our numbers in the range of other engines.
_TOKENS_PER_BLOCK: Final = 32
_HINT: Final = (
    "with several slots the server does not tell whether they share its context; its -c in tokens is the pool"
)
# Of the last event, which otherwise repeats the whole prompt as text.
_FIELDS: Final = ("tokens", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "truncated")


class LlamaCppEngine:
    """An `EngineServer` behind llama.cpp's server."""

    def __init__(self, server: HttpServer, overrides: EngineSettings) -> None:
        """Args: overrides: of what the server reports of its capacity."""
        self._server = server
        self._overrides = overrides
        self._tokens_per_block = overrides.tokens_per_block or _TOKENS_PER_BLOCK

    async def is_ready(self) -> bool:
        """Return True if the model is loaded."""
        return await self._server.is_answering("/health")

    async def model(self) -> ServedModel:
        """Read the model's name."""
        path = str((await self._props()).get("model_path") or "")
        # A cut stream is noticed when something is written to it: for its progress events, that is after each
        # batch of the prefill.
        abilities = Abilities(takes_ids=True, gives_ids=True, ends_itself=True)
        return ServedModel(
            kind="llama.cpp",
            name=self._overrides.served_model or path.rpartition("/")[2],
            abilities=abilities,
            call=partial(HttpCall, self._server, dialect=_Dialect),
        )

    async def gauges(self) -> Gauges | None:
        """Read the slots. Returns None if the server does not show them."""
        try:
            slots = await self._server.read("/slots")
        except EngineUnavailableError:
            return None
        if not isinstance(slots, list):
            return None
        busy = [each for each in slots if each.get("is_processing")]
        return Gauges(
            active_requests=len(busy),
            max_requests=len(slots),
            max_blocks=self._overrides.max_blocks or 0,
            used_blocks=sum(-(-_tokens_of(slot) // self._tokens_per_block) for slot in busy),
            tokens_per_block=self._tokens_per_block,
        )

    async def capacity(self, gauges: Gauges) -> Capacity:  # noqa: ARG002  # it shows no pool
        """Combine the settings with the slots. A single slot has the whole context."""
        props = await self._props()
        num_slots = int(props.get("total_slots") or 0)
        context = int(props["default_generation_settings"]["n_ctx"])
        return capacity_of(
            self._overrides,
            slots=num_slots,
            blocks=context // self._tokens_per_block if num_slots == 1 else None,
            tokens_per_block=self._tokens_per_block,
            context=context,
            hint=_HINT,
        )

    async def close(self) -> None:
        """Do nothing: connections live as long as a read."""

    async def _props(self) -> Mapping[str, Any]:
        props = await self._server.read("/props")
        if not isinstance(props, dict) or "default_generation_settings" not in props:
            raise EngineUnavailableError("the server has no /props as llama.cpp's")
        return props


@dataclass(frozen=True, slots=True)
class _Dialect:
    request: Request

    path = "/completion"
    refuses_reliably = True
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body. Every default of the server's that changes the sampling is overridden."""
        request, sampling = self.request, self.request.sampling
        if sampling.min_tokens:
            raise EngineError("llama.cpp has no minimum of tokens: leave min_tokens out")
        picking: dict[str, Any] = {"temperature": 0.0}
        if not sampling.is_greedy:
            picking = {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k or 0,
                "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
                "min_p": 0.0,
            }
            if sampling.seed is not None:
                picking["seed"] = sampling.seed % (2**32 - 1)  # the largest one means a random seed
        return {
            "prompt": request.ids.tolist(),
            "n_predict": request.max_tokens,
            "stop": list(request.stops),
            "ignore_eos": request.end_id < 0,
            "cache_prompt": True,
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "response_fields": list(_FIELDS),
            **picking,
        }

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the new token ids and the end. A progress event has a token that is none."""
        if "prompt_progress" in event:
            return []
        found: list[Event] = []
        if ids := event.get("tokens"):
            found.append(TokenDelta([int(each) for each in ids]))
        if event.get("stop"):
            found.append(_end(event))
        return found

    def stop(self) -> None:
        """Return None: the server ends a request when its stream is cut."""


def _end(event: Mapping[str, Any]) -> HttpEnd:
    stop_type = event.get("stop_type")
    if stop_type in {"eos", "word", "limit"}:
        return HttpEnd(is_limit=stop_type == "limit")
    return HttpEnd(RetryableEngineError(said=f"stop_type {stop_type}"))


def _tokens_of(slot: Mapping[str, Any]) -> int:
    """Count the tokens that a busy slot holds."""
    decoded = sum(int(each.get("n_decoded") or 0) for each in slot.get("next_token") or ())
    return int(slot.get("n_prompt_tokens") or 0) + decoded
