"""A server with OpenAI's `/v1/chat/completions`: messages in, text out, wrapped by its own template.

Source: OpenAI's API reference for chat completions, and what compatible servers keep of it: Ollama's
`openai/openai.go` and hosted endpoints. Longbatch ran it against llama.cpp's server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jobs.errors import EngineError
from jobs.prompts.abilities import ABILITIES
from jobs.prompts.estimates import Turn
from worker.engine.abilities import Abilities
from worker.engine.deltas import TextDelta, cached_prompt
from worker.engine.http import finish_reasons
from worker.engine.http.call import Event, HttpEnd
from worker.engine.http.engine import HttpKind
from worker.engine.request import Request

_TAKEN: Final = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty"})
# How servers name what a model thinks, apart from its answer.
_THOUGHTS: Final = ("reasoning_content", "reasoning")
_ONLY_THOUGHT: Final = (
    "the model only thought: max_tokens ended its answer before any visible text; allow more, or turn its"
    " thinking off"
)


@dataclass(slots=True)
class Chat:
    """The dialect of one request.

    Attributes:
        model_name: what the request calls the model.
        request: the request.
    """

    model_name: str
    request: Request
    _has_text: bool = field(default=False, init=False)
    _has_thoughts: bool = field(default=False, init=False)

    path = "/v1/chat/completions"
    refuses_reliably = True
    reports_own_end = False  # a proxy may have written an error

    def body(self) -> Mapping[str, Any]:
        """Build the body with fields that every compatible server knows."""
        request, sampling = self.request, self.request.sampling
        turns = request.turns or (Turn("user", request.text),)
        body: dict[str, Any] = {
            "model": self.model_name,
            "messages": [{"role": each.role, "content": each.content} for each in turns],
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
            "stop": list(request.stops)[:4] or None,  # at most four; we match all of them ourselves
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not sampling.is_greedy:
            seed = None if sampling.seed is None else sampling.seed % 2**63  # they take 63 bits
            body |= {"top_p": sampling.top_p, "seed": seed}
        penalties = sampling.penalties
        body |= {name: penalties.get(name) for name in ("frequency_penalty", "presence_penalty")}
        return {name: value for name, value in body.items() if value is not None}

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the choice's new text and its finish reason, and a usage: the engine's own count."""
        choices = event.get("choices") or ()
        found = [each for choice in choices for each in self._read(choice)]
        usage = event.get("usage") or {}
        if num_tokens := usage.get("completion_tokens"):
            found.insert(0, TextDelta("", num_tokens=int(num_tokens)))
        return found + cached_prompt(usage.get("prompt_tokens_details"), "cached_tokens")

    def stop(self) -> None:
        """Return None: only cutting the stream ends the request."""

    def _read(self, choice: Mapping[str, Any]) -> list[Event]:
        # A server that does not stream answers with a whole message.
        part = choice.get("delta") or choice.get("message") or {}
        text, reason = part.get("content") or "", choice.get("finish_reason") or ""
        self._has_text |= bool(text)
        self._has_thoughts |= any(part.get(name) for name in _THOUGHTS)
        found: list[Event] = []
        if text or reason in finish_reasons.WHOLE:
            found.append(TextDelta(text, reason=finish_reasons.WHOLE.get(reason)))
        if reason:
            found.append(self._end(reason))
        return found

    def _end(self, reason: str) -> HttpEnd:
        is_whole = reason in finish_reasons.WHOLE
        error = finish_reasons.error_of(reason)
        if is_whole and self._has_thoughts and not self._has_text:
            error = EngineError(_ONLY_THOUGHT)
        return HttpEnd(error, is_limit=reason == "length", confirmed=is_whole)


OPENAI_CHAT: Final = HttpKind(
    name="openai-chat",
    owner="",
    words="messages in, text out: token counts are estimates, jobs start over after a fault, nothing shows"
    " its load, and jobs with top_k or tools are refused",
    # Whether it notices a cut stream is unknown; its blocks stay reserved as if it did not.
    abilities=Abilities(
        takes_ids=False,
        gives_ids=False,
        notices_cut=False,
        reports_own_end=False,
        # Not OpenAI's, or left out by some servers: they ignore it, or answer with a 400.
        lacks=ABILITIES - _TAKEN,
        credits_reuse=False,
        keeps_state_in_slot=False,
    ),
    dialect=Chat,
    hint="an endpoint of this kind tells nothing of its capacity",
    ready_path="/v1/models",
)
