"""llama.cpp's HTTP server: token ids in and out, slots that can be read.

Source: llama.cpp's server of October 2026, `/completion`, `/props` and `/slots`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from jobs.answers.log_probs import Score
from jobs.errors import EngineUnavailableError, RetryableEngineError
from jobs.prompts.abilities import LORA, VECTORS
from jobs.prompts.guides import Guide, GuideKind, choice_grammar
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.deltas import TokenDelta, cached_prompt
from worker.engine.gauges import Gauges
from worker.engine.http.call import Event, HttpEnd
from worker.engine.http.capacity import ReportedSizes
from worker.engine.http.embeddings import embedding
from worker.engine.http.engine import Encoding, HttpKind
from worker.engine.http.guiding_schemas import guiding
from worker.engine.http.llama_scores import SCORES, SIGN_OF_LIFE, Scoring, adapted, scores_in
from worker.engine.http.models import ModelCard, held
from worker.engine.http.server import HttpServer
from worker.engine.http.spelling import settle
from worker.engine.request import Request, Sampling

# The server counts single tokens; blocks only keep our numbers in the range of other engines.
_TOKENS_PER_BLOCK: Final = 32
_OWNER: Final = "llamacpp"
# Of the last event, which otherwise repeats the whole prompt as text.
_FIELDS: Final = ("tokens", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "truncated")


async def _card(server: HttpServer, overrides: EngineSettings) -> ModelCard:
    """Read the model's name and a slot's context."""
    props = await _props(server)
    name = overrides.served_model or str(props.get("model_path") or "").rpartition("/")[2]
    return ModelCard(name, _OWNER, int(props["default_generation_settings"]["n_ctx"]))


async def _gauges(server: HttpServer, overrides: EngineSettings) -> Gauges | None:
    """Read the slots. Returns None if the server does not show them."""
    slots = await server.read("/slots")
    if not isinstance(slots, list):
        return None
    busy = [each for each in slots if each.get("is_processing")]
    tokens_per_block = overrides.tokens_per_block or _TOKENS_PER_BLOCK
    # The pool of several slots: nobody tells whether they share one.
    blocks_of_one = int(slots[0].get("n_ctx") or 0) // tokens_per_block if len(slots) == 1 else 0
    return Gauges(
        active_requests=len(busy),
        max_requests=len(slots),
        max_blocks=overrides.max_blocks or blocks_of_one,
        used_blocks=sum(-(-_tokens_of(slot) // tokens_per_block) for slot in busy),
        tokens_per_block=tokens_per_block,
    )


async def _sizes(server: HttpServer, overrides: EngineSettings, _gauges: Gauges) -> ReportedSizes:
    """Read the slots' number and context. A single slot has the whole context."""
    props = await _props(server)
    num_slots = int(props.get("total_slots") or 0)
    context = int(props["default_generation_settings"]["n_ctx"])
    tokens_per_block = overrides.tokens_per_block or _TOKENS_PER_BLOCK
    return ReportedSizes(
        num_slots, context // tokens_per_block if num_slots == 1 else 0, tokens_per_block, context
    )


async def _able(server: HttpServer, abilities: Abilities) -> Abilities:
    """Read whether it embeds, and its adapters, by the names of their files without the ending.

    Not if one applies to every request, which is what a server does that was not told otherwise
    (`--lora-init-without-apply`): it is then part of the model, and a request that names another would lose
    it.

    With adapters it reuses no prompt: it keeps what an adapter has made of one, and takes it for the model's
    own when a request without the adapter begins with the same (seen in build 11549).
    """
    listed = await server.read("/lora-adapters") or ()
    names = tuple(PurePath(str(each["path"])).stem for each in listed)
    is_plain = all(not each.get("scale") for each in listed) and len(set(names)) == len(names)
    if is_plain and names:
        abilities = replace(abilities, reuses_prefix=False, shares_prefix=False)
    return await embedding(server, held(abilities, names if is_plain else ()))


async def _props(server: HttpServer) -> Mapping[str, Any]:
    props = await server.read("/props")
    if not isinstance(props, dict) or "default_generation_settings" not in props:
        raise EngineUnavailableError("the server has no /props as llama.cpp's")
    return props


@dataclass(slots=True)
class _Completion:
    """One request and its stream.

    A stream leaves out the ids of all tokens after which the text ends inside a character; only their number
    shows. They are restored from the text if only one sequence of tokens spells it; otherwise they are
    generated again, in a request that is not streamed and so shows all of its ids. Not so where the answer is
    guided, as another request would begin its grammar anew: any sequence that spells the text will do.

    Missing ids have no scores either, streamed or not. Where scores are asked for, the answer is held back
    from there on, and at its end `Scoring` asks for what is missing.

    Attributes:
        num_whole: the number of tokens of a request that is not streamed; None streams up to `max_tokens`.
        given: the ids so far.
        unsettled: ids whose text has not come, after the first missing one, which is None.
        text: what came of their text; the server holds back what may become a stop string.
        unsettled_scores: of the unsettled ids.
        held: ids and scores from the first missing score on.
    """

    model_name: str
    request: Request
    num_whole: int | None = None
    given: list[int] = field(default_factory=list)
    unsettled: list[int | None] = field(default_factory=list)
    text: str = ""
    unsettled_scores: list[Score | None] = field(default_factory=list)
    held: list[tuple[int, Score | None]] = field(default_factory=list)

    path = "/completion"
    refuses_reliably = True
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body. Every default of the server's that changes the sampling is overridden."""
        request = self.request
        is_streamed = self.num_whole is None
        return {
            "prompt": request.ids.tolist(),
            "n_predict": self.num_whole or request.max_tokens,
            "stop": list(request.stops),
            "ignore_eos": request.end_id < 0,
            "cache_prompt": self.request.may_reuse,
            "stream": is_streamed,
            "return_tokens": True,
            "return_progress": is_streamed,
            "response_fields": [*_FIELDS, SCORES],
            **({} if request.num_top is None else {"n_probs": max(1, request.num_top)}),  # 0: none at all
            **_changing(request),
            **_picking(request.sampling),
            **_guided(request.guide),
            **adapted(request),
        }

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the new token ids and the end. A progress event has a token that is none."""
        if "prompt_progress" in event:
            return [*cached_prompt(event["prompt_progress"], "cache")]
        ids = [int(each) for each in event.get("tokens") or ()]
        num_known = len(self.given) + len(self.unsettled) + len(ids)
        num_missing = max(0, int(event.get("tokens_predicted") or num_known) - num_known)
        scores = None if self.request.num_top is None else self._scores(event, ids)
        if event.get("stop"):
            return self._end(event, ids, scores, num_missing=num_missing)
        if not num_missing and not self.unsettled:
            return self._give(ids, scores)
        self.unsettled += [*repeat(None, num_missing), *ids]
        self.unsettled_scores += [*repeat(None, num_missing), *(scores or ())]
        self.text += event.get("content") or ""
        return self._settle() if self.text else []

    def stop(self) -> None:
        """Return None: the server ends a request when its stream is cut."""

    def _settle(self) -> list[Event]:
        """Find the missing ids, or have all that are unsettled generated again."""
        settled = settle(
            self.unsettled, self.text, self.request.vocabulary, is_any_right=self.request.guide is not None
        )
        if settled is None:
            return [self._continued(num_whole=len(self.unsettled))]
        scores = None if self.request.num_top is None else self.unsettled_scores
        self.unsettled, self.text, self.unsettled_scores = [], "", []
        return self._give(settled, scores)

    def _give(self, ids: list[int], scores: Sequence[Score | None] | None) -> list[Event]:
        self.given += ids
        if scores is None:
            return [TokenDelta(ids)] if ids else []
        whole = [each for each in scores if each is not None]
        if not self.held and len(whole) == len(ids):
            return [TokenDelta(ids, whole)] if ids else []
        self.held += zip(ids, scores, strict=True)
        return [SIGN_OF_LIFE]

    def _scores(self, event: Mapping[str, Any], ids: Sequence[int]) -> Sequence[Score | None]:
        """Read the scores of an event's tokens; a whole answer lacks those that end inside a character."""
        return scores_in(event, ids, self.request.vocabulary if self.num_whole else None)

    def _end(
        self,
        event: Mapping[str, Any],
        ids: list[int],
        scores: Sequence[Score | None] | None,
        *,
        num_missing: int,
    ) -> list[Event]:
        """Read the last event, and score the tokens that are held back."""
        *found, end = self._ended(event, self._give(ids, scores), num_missing=num_missing)
        if not self.held or not isinstance(end, HttpEnd) or end.error is not None or end.rest is not None:
            return [*found, end]
        ids = [*self.request.ids.tolist(), *self.given]
        before = ids[: len(ids) - len(self.held)]
        return [*found, HttpEnd(rest=Scoring(before, self.held, self.request, end))]

    def _ended(self, event: Mapping[str, Any], found: list[Event], *, num_missing: int) -> list[Event]:
        """Read how it ended. Missing ids at the end are generated again, unless the context has ended."""
        stop_type = event.get("stop_type")
        num_asked = self.num_whole or self.request.max_tokens
        num_missing += len(self.unsettled)
        if stop_type not in {"eos", "word", "limit"}:
            return [*found, HttpEnd(RetryableEngineError(said=f"stop_type {stop_type}"))]
        if stop_type == "limit" and len(self.given) + num_missing < num_asked:
            return [*found, HttpEnd(is_limit=True)]
        if num_missing:
            return [*found, self._continued(num_whole=num_missing)]
        if stop_type == "limit" and num_asked < self.request.max_tokens:
            return [*found, self._continued(num_whole=None)]
        return [*found, HttpEnd(is_limit=stop_type == "limit")]

    def _continued(self, *, num_whole: int | None) -> HttpEnd:
        """Continue after the ids so far: prompt and ids are still in the server's cache.

        Of a guided answer that is only the end, which `max_tokens` cuts inside a character.
        """
        ids = np.concatenate([self.request.ids, np.array(self.given, dtype=np.int32)])
        num_left = self.request.max_tokens - len(self.given)
        request = replace(self.request, ids=ids, max_tokens=num_left, guide=None)
        num_whole = num_whole and min(num_whole, num_left)
        return HttpEnd(rest=_Completion(self.model_name, request, num_whole, held=self.held))


def _picking(sampling: Sampling) -> Mapping[str, Any]:
    """Build the fields that say how tokens are picked."""
    if sampling.is_greedy:
        return {"temperature": 0.0}
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p or 0.0,
    }
    if sampling.seed is not None:
        found["seed"] = sampling.seed % (2**32 - 1)  # the largest one means a random seed
    return found


def _changing(request: Request) -> Mapping[str, object]:
    """Build the fields that change scores. By default the server penalizes the last 64 tokens alone."""
    sampling, names = request.sampling, {"repetition_penalty": "repeat_penalty"}
    found: dict[str, Any] = {names.get(name, name): value for name, value in sampling.penalties.items()}
    if found:
        found["repeat_last_n"] = len(request.ids) + request.max_tokens
    if sampling.logit_bias:
        found["logit_bias"] = [[token_id, bias] for token_id, bias in sampling.logit_bias]
    return found


def _guided(guide: Guide | None) -> Mapping[str, object]:
    """Build the field that guides the answer. The server takes no regular expression for a whole one."""
    match guide:
        case None:
            return {}
        case Guide(GuideKind.JSON):
            return {"json_schema": guiding(guide.schema)}
        case Guide(GuideKind.CHOICE):
            return {"grammar": choice_grammar(guide.choices)}
        case Guide(_, content):
            return {"grammar": content}


def _tokens_of(slot: Mapping[str, Any]) -> int:
    """Count the tokens that a busy slot holds."""
    decoded = sum(int(each.get("n_decoded") or 0) for each in slot.get("next_token") or ())
    return int(slot.get("n_prompt_tokens") or 0) + decoded


LLAMA_CPP: Final = HttpKind(
    name="llama.cpp",
    owner=_OWNER,
    words="token ids in and out: jobs continue where they stopped; a prompt that is being read is cancelled"
    " after its present batch",
    # A cut stream is noticed when something is written to it: for its progress events, that is after each
    # batch of the prefill.
    abilities=Abilities(
        takes_ids=True,
        gives_ids=True,
        ends_itself=True,
        lacks=VECTORS | {"min_tokens", "bad_words", GuideKind.REGEX.value, LORA},
        credits_reuse=False,
        keeps_state_in_slot=True,
    ),
    dialect=_Completion,
    hint="with several slots the server does not tell whether they share its context; its -c in tokens is the"
    " pool",
    card=_card,
    gauges=_gauges,
    sizes=_sizes,
    encoding=Encoding("content", {"add_special": False, "parse_special": False}),
    able=_able,
)
