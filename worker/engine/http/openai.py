"""Any other server with OpenAI's `/v1/completions`: text in, text out, and a capacity that is told.

Source: OpenAI's API reference for completions, and what compatible servers keep of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jobs.engines.capacity import Capacity
from jobs.errors import RetryableEngineError
from jobs.settings import EngineSettings
from jobs.states import FinishReason
from worker.engine.abilities import Abilities
from worker.engine.deltas import TextDelta
from worker.engine.engine import ServedModel
from worker.engine.gauges import Gauges
from worker.engine.http.call import Event, HttpCall, HttpEnd
from worker.engine.http.capacity import capacity_of
from worker.engine.http.models import model_card
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

_HINT: Final = "an endpoint of this kind tells nothing of its capacity"
_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class OpenAIEngine:
    """An `EngineServer` behind an OpenAI-compatible endpoint of an unknown kind."""

    def __init__(self, server: HttpServer, overrides: EngineSettings) -> None:
        """Args: overrides: the whole capacity."""
        self._server = server
        self._overrides = overrides

    async def is_ready(self) -> bool:
        """Return True if the endpoint lists its models."""
        return await self._server.is_answering("/v1/models")

    async def model(self) -> ServedModel:
        """Read the model's name."""
        name = (await model_card(self._server, self._overrides)).name
        return ServedModel(
            kind="openai",
            name=name,
            # Whether it notices a cut stream is unknown; its blocks stay reserved as if it did not.
            abilities=Abilities(
                takes_ids=False,
                gives_ids=False,
                adds_bos=True,
                notices_cut=False,
                reports_own_end=False,
                cancel_bound=None,
            ),
            call=partial(HttpCall, self._server, dialect=partial(_Dialect, name)),
        )

    async def gauges(self) -> Gauges | None:
        """Return None: the endpoint shows none."""
        return None

    async def capacity(self, gauges: Gauges) -> Capacity:  # noqa: ARG002  # it shows none
        """Read the settings."""
        context = (await model_card(self._server, self._overrides)).context
        return capacity_of(
            self._overrides, slots=None, blocks=None, tokens_per_block=None, context=context, hint=_HINT
        )

    async def close(self) -> None:
        """Do nothing: connections live as long as a read."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    model_name: str
    request: Request

    path = "/v1/completions"
    refuses_reliably = True
    reports_own_end = False  # a proxy may have written the error

    def body(self) -> Mapping[str, Any]:
        """Build the body from fields that every compatible server knows."""
        request, sampling = self.request, self.request.sampling
        body: dict[str, Any] = {
            "model": self.model_name,
            "prompt": request.text,
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
            "stop": list(request.stops)[:4] or None,  # at most four; we match all of them ourselves
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not sampling.is_greedy:
            body |= {"top_p": sampling.top_p, "seed": sampling.seed}
        return {name: value for name, value in body.items() if value is not None}

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the choice's text and finish reason; the usage of the whole answer comes last, by itself."""
        found: list[Event] = []
        for choice in event.get("choices") or ():
            reason = choice.get("finish_reason")
            if choice.get("text") or reason in _REASONS:
                found.append(TextDelta(choice.get("text") or "", reason=_REASONS.get(reason)))
            if reason:
                known = reason in _REASONS
                error = None if known else RetryableEngineError(said=f"finish_reason {reason}")
                found.append(HttpEnd(error, confirmed=known))
        if not event.get("choices") and (num_tokens := (event.get("usage") or {}).get("completion_tokens")):
            found.append(TextDelta("", num_tokens=int(num_tokens)))
        return found

    def stop(self) -> None:
        """Return None: only cutting the stream may end the request."""
