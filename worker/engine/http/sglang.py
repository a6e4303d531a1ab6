"""SGLang's HTTP server: token ids in and out, and requests that can be aborted by id.

Source: SGLang 0.5.23, `/generate`, `/server_info`, `/metrics`. `make test-sglang` runs its own HTTP server.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from prometheus_client.samples import Sample

from jobs.answers.log_probs import Score
from jobs.diagnostics import Finding
from jobs.errors import EngineError
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
from worker.engine.http.errors import in_stream
from worker.engine.http.models import adapter_names, held
from worker.engine.http.server import HttpServer
from worker.engine.request import Request
from worker.engine.storable import storable

_PREFIX: Final = "sglang:"
_REASONS: Final = frozenset({"stop", "length"})
# Answers of more tokens come in events of several.
_LONG_TOKENS: Final = 4096
_LONG_INTERVAL: Final = 16


async def _gauges(server: HttpServer, _overrides: EngineSettings) -> Gauges | None:
    """Read the engine's metrics. Returns None without `--enable-metrics`."""
    samples = await scrape(f"{server.url}/metrics", _PREFIX, make_session=server.session)
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
    """Read the server's arguments and the state of its data-parallel ranks, after the metrics."""
    known = await _server_info(server)
    ranks = [each for each in known.get("internal_states") or () if isinstance(each, dict)]
    slots = sum(_number(each, "effective_max_running_requests_per_dp") for each in ranks)
    page = gauges.tokens_per_block or _number(known, "page_size") or 1
    pool = _number(known, "max_total_num_tokens") * max(1, len(ranks))
    limit = _number(known, "max_req_input_len")
    return ReportedSizes(
        slots=slots or _number(known, "max_running_requests"),
        blocks=gauges.max_blocks or pool // page,
        tokens_per_block=page,
        # A prompt must be shorter than this limit; it is 6 below the context or the pool, of which a whole
        # sequence uses all but 2. What is asked beyond is cut off without a word.
        context=limit + 4 if limit else max(0, _number(known, "context_length") - 2),
        prompt=max(0, limit - 1),
        counts_waiting=gauges.waiting_requests is not None and len(ranks) <= 1,
    )


async def _server_info(server: HttpServer) -> Mapping[str, Any]:
    """Read the server's arguments; older releases have the other path alone."""
    return await _document(server, "/server_info", "/get_server_info")


async def _document(server: HttpServer, *paths: str) -> Mapping[str, Any]:
    """Read the first of these documents that the server has."""
    for path in paths:
        if (found := await server.read(path)) is not None:
            return found if isinstance(found, dict) else {}
    return {}


@dataclass(slots=True)
class _Generation:
    """Attributes: num_seen: tokens so far; a server may repeat them in every event."""

    model_name: str
    request: Request
    num_seen: int = 0

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
            "stream_interval": _interval(request.max_tokens),
            **_guided(request.guide),
        }
        if not sampling.is_greedy:
            seed = None if sampling.seed is None else sampling.seed % 2**63  # it takes 63 bits
            found |= {"top_p": sampling.top_p, "top_k": sampling.top_k, "sampling_seed": seed}
            found["min_p"] = sampling.min_p
        return {
            "rid": request.request_id,
            "input_ids": request.ids.tolist(),
            "sampling_params": {name: value for name, value in found.items() if value is not None},
            "stream": True,
            **({} if request.adapter is None else {"lora_path": request.adapter.name}),
            **({} if request.num_top is None else _scored(request.num_top)),
            # `cache_salt` is in newer releases only.
            **({} if request.cache_salt is None else {"extra_key": request.cache_salt}),
        }

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the new token ids: the last ones, as many as the answer has grown by."""
        about = event["meta_info"]
        reason, num_before = about.get("finish_reason"), self.num_seen
        new = self._new_ids(event)
        if reason and reason.get("type") not in _REASONS:
            error = _error(reason, is_certain=not num_before)
            # One that was refused has an id of a forward pass over nothing.
            kept = [TokenDelta(new)] if new and error.retryable and self.request.num_top is None else []
            return [*kept, HttpEnd(error)]
        found: list[Event] = [TokenDelta(new, self._scores(about, len(new)))] if new else []
        if reason:
            is_limit = reason["type"] == "length"
            found += [*cached_prompt(about, "cached_tokens"), HttpEnd(is_limit=is_limit)]
        return found

    def _new_ids(self, event: Mapping[str, Any]) -> list[int]:
        """Take the ids that are new.

        Raises:
            ValueError: the event lacks some of them.
        """
        num_total = int(event["meta_info"]["completion_tokens"])
        ids = event.get("output_ids") or ()
        num_new = num_total - self.num_seen
        if not 0 <= num_new <= len(ids):
            raise ValueError(f"{len(ids)} ids after {self.num_seen} are not {num_total}")
        self.num_seen = num_total
        return [int(each) for each in ids[len(ids) - num_new :]]

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
        if len(own) not in (num_new, self.num_seen) or len(tops) != len(own):
            raise ValueError(f"{len(own)} log probabilities for {num_new} of {self.num_seen} tokens")
        return [
            Score(float(log_prob), [(int(each[1]), float(each[0])) for each in top or ()])
            for (log_prob, *_), top in zip(own[-num_new:], tops[-num_new:], strict=True)
        ]


def _interval(max_tokens: int) -> int | None:
    """Return the tokens of an event: more of them for a long answer, which each event may repeat.

    With it, 32,768 tokens that every event repeats are about 0.2 GB of JSON instead of 3 GB.
    """
    return _LONG_INTERVAL if max_tokens > _LONG_TOKENS else None


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
    """Read the server's adapters, and whether the model embeds: then it generates nothing."""
    info = await _document(server, "/model_info", "/get_model_info")
    if info.get("is_generation") is False:
        return replace(abilities, lacks=ABILITIES - {EMBEDDINGS})
    return held(abilities, await adapter_names(server))


async def _notes(server: HttpServer, settings: EngineSettings) -> list[Finding]:
    """Report which of the server's options cost users something."""
    known = await _server_info(server)
    found = []
    if not known.get("incremental_streaming_output"):
        detail = "each event repeats the whole answer: a long one takes megabytes of JSON a second"
        found.append(
            Finding("streams", "warning", detail, "start SGLang with --incremental-streaming-output")
        )
    if not known.get("enable_deterministic_inference"):
        detail = "a job's seed has no effect"
        found.append(Finding("seed", "warning", detail, "start SGLang with --enable-deterministic-inference"))
    if window := await _window_pool(server, known):
        page = _number(known, "page_size") or 1
        if not settings.max_blocks or settings.max_blocks > window // page:
            detail = f"windows have {window} tokens of their own, which many short jobs fill before the rest"
            hint = f"LONGBATCH_ENGINE__MAX_BLOCKS={window // page} keeps SGLang from preempting them"
            found.append(Finding("windows", "warning", detail, hint))
    return found


async def _window_pool(server: HttpServer, known: Mapping[str, Any]) -> int:
    """Read the tokens in the pool of windowed layers; 0 if the model has none.

    Recurrent states need nothing here: SGLang has no more slots than states.
    """
    samples = await scrape(f"{server.url}/metrics", _PREFIX, make_session=server.session)
    shown = int(_sums(samples or ()).get("sglang:max_total_num_tokens_swa", 0))
    ranks = [each for each in known.get("internal_states") or () if isinstance(each, dict)]
    return shown or sum(_number(each.get("memory_usage") or {}, "token_capacity_swa") for each in ranks)


def _sums(samples: Iterable[Sample]) -> dict[str, float]:
    """Add up the data-parallel ranks. One rank of a tensor-parallel group speaks for all."""
    found: dict[str, float] = {}
    for each in samples:
        if each.labels.get("tp_rank", "0") == "0":
            is_size = each.name == "sglang:page_size"
            found[each.name] = each.value if is_size else found.get(each.name, 0) + each.value
    return found


def _error(reason: Mapping[str, Any], *, is_certain: bool) -> EngineError:
    """Translate an abort: with a status of a wrong request, it is its refusal."""
    said = storable(str(reason.get("message") or f"finish_reason {reason.get('type')}"))
    return in_stream(reason.get("status_code"), said, is_certain=is_certain)


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
    notes=_notes,
)
