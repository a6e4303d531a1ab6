"""OpenAI's `/v1/completions`, as vLLM, trtllm-serve and compatible servers take and answer it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobs.answers.log_probs import Score
from worker.engine.deltas import TextDelta, TokenDelta, cached_prompt
from worker.engine.http import finish_reasons
from worker.engine.http.call import Event, HttpEnd
from worker.engine.request import Request

# How vLLM names a token by its id.
_ID_NAME: Final = "token_id:"


@dataclass(frozen=True, slots=True)
class Completions:
    """The dialect of one request, with the fields that a kind has besides.

    Attributes:
        model_name: what the request calls the model.
        request: the request.
        fields: builds the kind's own fields; they override the common ones, and None leaves one out.
        has_ids: token ids in and out; otherwise text.
        refuses_reliably: see `Dialect`.
        reports_own_end: see `Dialect`.
    """

    model_name: str
    request: Request
    fields: Callable[[Request], Mapping[str, Any]]
    has_ids: bool = True
    refuses_reliably: bool = True
    reports_own_end: bool = True

    path = "/v1/completions"

    def body(self) -> Mapping[str, Any]:
        """Build the body. Every default that matters is sent: that of `max_tokens` is 16."""
        request, sampling = self.request, self.request.sampling
        body: dict[str, Any] = {
            "model": request.adapter.name if request.adapter else self.model_name,
            "prompt": request.ids.tolist() if self.has_ids else request.text,
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
            "stop": list(request.stops) or None,
            "stream": True,
        }
        if not sampling.is_greedy:
            seed = None if sampling.seed is None else sampling.seed % 2**63  # they take 63 bits
            body |= {"top_p": sampling.top_p, "seed": seed}
        penalties = sampling.penalties
        body |= {name: penalties.get(name) for name in ("frequency_penalty", "presence_penalty")}
        body["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias} or None
        body |= self.fields(request)
        return {name: value for name, value in body.items() if value is not None}

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the choice's new tokens or text and its finish reason; a usage by itself comes last."""
        choices = event.get("choices") or ()
        found = [each for choice in choices for each in self._read(choice)]
        usage = event.get("usage") or {}
        if not choices and (num_tokens := usage.get("completion_tokens")) and not self.has_ids:
            found.append(TextDelta("", num_tokens=int(num_tokens)))
        return found + cached_prompt(usage.get("prompt_tokens_details"), "cached_tokens")

    def stop(self) -> None:
        """Return None: only cutting the stream ends the request."""

    def _read(self, choice: Mapping[str, Any]) -> list[Event]:
        found: list[Event] = []
        text, ids, reason = (
            choice.get("text") or "",
            choice.get("token_ids"),
            choice.get("finish_reason") or "",
        )
        if self.has_ids and text and ids is None:
            raise ValueError("text came without token_ids: this release of the server cannot give them")
        if not self.has_ids and (text or reason in finish_reasons.WHOLE):
            found.append(TextDelta(text, reason=finish_reasons.WHOLE.get(reason)))
        elif self.has_ids and ids:
            found.append(self._delta([int(each) for each in ids], choice.get("logprobs")))
        if reason:
            error = finish_reasons.error_of(reason)
            is_limit, is_certain = reason == "length", error is None or self.reports_own_end
            found.append(HttpEnd(error, is_limit=is_limit, confirmed=is_certain))
        return found

    def _delta(self, ids: list[int], told: Mapping[str, Any] | None) -> TokenDelta:
        """Read the scores of these tokens, whose names are their ids.

        Raises:
            ValueError: scores were asked for, and not all came.
        """
        if self.request.num_top is None:
            return TokenDelta(ids)
        own = (told or {}).get("token_logprobs") or []
        tops = (told or {}).get("top_logprobs") or [None] * len(own)
        if len(own) != len(ids):
            raise ValueError(f"{len(own)} log probabilities for {len(ids)} tokens")
        scores = [_score(*each, self.request.num_top) for each in zip(own, tops, strict=True)]
        return TokenDelta(ids, scores)


def _score(log_prob: float, top: Mapping[str, float] | None, num_top: int) -> Score:
    """Read a token's score. What is told of others may include the token itself beyond their number."""
    found = [(int(name.removeprefix(_ID_NAME)), float(each)) for name, each in (top or {}).items()]
    found.sort(key=lambda each: -each[1])
    return Score(float(log_prob), found[:num_top])


def id_fields(request: Request) -> Mapping[str, Any]:
    """Build the fields of servers that take token ids: where an answer may end, and how tokens are picked."""
    sampling = request.sampling
    return {
        "min_tokens": sampling.min_tokens,
        "stop_token_ids": end_ids(request) or None,
        "repetition_penalty": sampling.repetition_penalty,
        "min_p": None if sampling.is_greedy else sampling.min_p,
        "ignore_eos": request.end_id < 0,
        "top_k": None if sampling.is_greedy else sampling.top_k,
        "stream_options": {"include_usage": True},
    }


def end_ids(request: Request) -> list[int]:
    """List the tokens at which an answer ends."""
    own = [request.end_id] if request.end_id >= 0 else []
    return [*own, *request.sampling.stop_token_ids]
