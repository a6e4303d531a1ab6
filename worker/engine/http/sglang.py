"""SGLang's HTTP server: token ids in and out, and requests that can be aborted by id.

Source: SGLang's documentation and sources of autumn 2026, `/generate`, `/get_server_info`, `/metrics`. It was
never run here; the tests speak to a stand-in that is written from the same sources.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from prometheus_client.samples import Sample

from jobs.answers.log_probs import Score
from jobs.errors import RetryableEngineError
from jobs.prompts.abilities import ABILITIES, EMBEDDINGS, LORA, VECTORS
from jobs.prompts.guides import Guide, GuideKind, choice_grammar
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.deltas import TokenDelta, cached_prompt
from worker.engine.exposition import scrape
from worker.engine.gauges import Gauges
from worker.engine.http.call import Event, HttpEnd
from worker.engine.http.capacity import ReportedSizes
from worker.engine.http.completions import end_ids
from worker.engine.http.engine import HttpKind
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

_PREFIX: Final = "sglang:"


async def _gauges(server: HttpServer, _overrides: EngineSettings) -> Gauges | None:
    """Read the engine's metrics. Returns None without `--enable-metrics`."""
    samples = await scrape(f"{server.url}/metrics", _PREFIX, client=server.client)
    if not samples:
        return None
    found = _sums(samples)
    page = int(found.get("sglang:page_size", 1)) or 1
    return Gauges(
        active_requests=int(found.get("sglang:num_running_reqs", 0)),
        waiting_requests=int(found.get("sglang:num_queue_reqs", 0)),
        max_blocks=int(found.get("sglang:max_total_num_tokens", 0)) // page,
        used_blocks=-(-int(found.get("sglang:num_used_tokens", 0)) // page),
        tokens_per_block=page,
    )


async def _sizes(server: HttpServer, _overrides: EngineSettings, gauges: Gauges) -> ReportedSizes:
    """Read the server's arguments, after the metrics."""
    info = await server.read("/get_server_info")
    known = info if isinstance(info, dict) else {}
    page = gauges.tokens_per_block or _number(known, "page_size") or 1
    return ReportedSizes(
        slots=_number(known, "max_running_requests"),
        blocks=gauges.max_blocks or _number(known, "max_total_num_tokens") // page,
        tokens_per_block=page,
        context=_number(known, "context_length"),
    )


@dataclass(slots=True)
class _Generation:
    """Attributes: ids: all token ids so far; a server may repeat them in every event."""

    model_name: str
    request: Request
    ids: list[int] = field(default_factory=list)

    path = "/generate"
    refuses_reliably = True
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body. The request id lets an abort name it."""
        request, sampling = self.request, self.request.sampling
        found: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
            "stop": list(request.stops) or None,
            "stop_token_ids": end_ids(request) or None,
            **sampling.penalties,
            "logit_bias": {str(token_id): bias for token_id, bias in sampling.logit_bias} or None,
            "ignore_eos": request.end_id < 0,
            **_guided(request.guide),
        }
        if not sampling.is_greedy:
            found |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "sampling_seed": sampling.seed}
            found["min_p"] = sampling.min_p
        return {
            "rid": request.request_id,
            "input_ids": request.ids.tolist(),
            "sampling_params": {name: value for name, value in found.items() if value is not None},
            "stream": True,
            **({} if request.num_top is None else _scored(request.num_top)),
            # `cache_salt` is in newer releases only.
            **({} if request.cache_salt is None else {"extra_key": request.cache_salt}),
        }

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the new token ids. Whether an event repeats all earlier ones shows in its number of tokens."""
        ids = [int(each) for each in event.get("output_ids") or ()]
        about = event.get("meta_info") or {}
        num_seen, num_total = len(self.ids), about.get("completion_tokens")
        is_repeating = ids[:num_seen] == self.ids and num_total in (None, len(ids))
        if ids and not is_repeating and num_total not in (None, num_seen + len(ids)):
            raise ValueError(f"{len(ids)} ids after {num_seen} are not {num_total}")
        new = ids[num_seen:] if is_repeating else ids
        self.ids += new
        found: list[Event] = [TokenDelta(new, self._scores(about, len(new)))] if new else []
        if reason := about.get("finish_reason"):
            found += [*cached_prompt(about, "cached_tokens"), _end(reason)]
        return found

    def stop(self) -> tuple[str, Mapping[str, Any]]:
        """Abort the request by its id; its stream then ends with the reason `abort`."""
        return "/abort_request", {"rid": self.request.request_id}

    def _scores(self, about: Mapping[str, Any], num_new: int) -> list[Score] | None:
        """Read the scores of the new tokens, of whichever tokens the event tells.

        Raises:
            ValueError: they were asked for, and not all came.
        """
        if self.request.num_top is None:
            return None
        own = list(about.get("output_token_logprobs") or ())
        tops = list(about.get("output_top_logprobs") or [None] * len(own))
        if len(own) not in (num_new, len(self.ids)) or len(tops) != len(own):
            raise ValueError(f"{len(own)} log probabilities for {num_new} of {len(self.ids)} tokens")
        return [
            Score(float(log_prob), [(int(each[1]), float(each[0])) for each in top or ()])
            for (log_prob, *_), top in zip(own[-num_new:], tops[-num_new:], strict=True)
        ]


def _scored(num_top: int) -> Mapping[str, object]:
    """Ask for the log probabilities of the answer's tokens, none of the prompt's."""
    return {"return_logprob": True, "top_logprobs_num": num_top, "logprob_start_len": -1}


def _guided(guide: Guide | None) -> Mapping[str, str]:
    match guide:
        case None:
            return {}
        case Guide(GuideKind.JSON, content):
            return {"json_schema": content}
        case Guide(GuideKind.REGEX, content):
            return {"regex": content}
        case Guide(GuideKind.CHOICE):
            return {"ebnf": choice_grammar(guide.choices)}
        case Guide(_, content):
            return {"ebnf": content}


async def _able(server: HttpServer, abilities: Abilities) -> Abilities:
    """Read whether the model embeds: then it generates nothing."""
    info = await server.read("/get_model_info")
    if not isinstance(info, dict) or info.get("is_generation") is not False:
        return abilities
    return replace(abilities, lacks=ABILITIES - {EMBEDDINGS})


def _sums(samples: Iterable[Sample]) -> dict[str, float]:
    """Add up the data-parallel ranks. One rank of a tensor-parallel group speaks for all."""
    found: dict[str, float] = {}
    for each in samples:
        if each.labels.get("tp_rank", "0") == "0":
            is_size = each.name == "sglang:page_size"
            found[each.name] = each.value if is_size else found.get(each.name, 0) + each.value
    return found


def _end(reason: Mapping[str, Any]) -> HttpEnd:
    kind = reason.get("type")
    if kind in {"stop", "length"}:
        return HttpEnd(is_limit=kind == "length")
    return HttpEnd(RetryableEngineError(said=f"finish_reason {kind}: {reason.get('message') or ''}"))


def _number(known: Mapping[str, Any], name: str) -> int:
    value = known.get(name)
    return value if isinstance(value, int) and value > 0 else 0


SGLANG: Final = HttpKind(
    name="sglang",
    owner="sglang",
    words="token ids in and out: jobs continue where they stopped, and cancelling frees the engine",
    abilities=Abilities(
        takes_ids=True,
        gives_ids=True,
        ends_itself=True,
        takes_stop=True,
        lacks=VECTORS | {"bad_words", LORA},
        takes_cache_salt=True,
        credits_reuse=True,
        keeps_state_in_slot=False,
    ),
    dialect=_Generation,
    hint="SGLang's --max-running-requests, max_total_num_tokens and --page-size",
    gauges=_gauges,
    sizes=_sizes,
    able=_able,
)
