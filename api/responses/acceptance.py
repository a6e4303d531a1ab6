"""Turns a request's bytes into a job that generates a response: everything that needs no database.

All of it is CPU work; callers run it in a thread.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from api.completions.interactive import ParsedRequest, count_waiting
from api.completions.placement import WAITING, Placement, meaning_sha256
from api.http.body import parse_object
from api.http.callbacks import check_callback
from api.runtime.services import Acceptance
from jobs.models import JsonObject
from jobs.prompts.counter import PromptCounter, count_short
from jobs.prompts.store import NewText
from jobs.responses import requests
from jobs.responses.objects import RESPONSE_TASK, WAITED_TASK
from jobs.responses.requests import AskedResponse, tier_of
from jobs.responses.rows import response_spec
from jobs.states import Lane
from jobs.views import PRIORITIES

# Of a response that nobody waits for on an open connection.
_WINDOW: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A request for a response that can be submitted.

    Attributes:
        parsed: its job.
        repeated: the parameters that the response repeats.
        is_background: its caller does not wait.
        is_stored: it can be retrieved.
        stream: its caller wants its events.
    """

    parsed: ParsedRequest
    repeated: JsonObject
    is_background: bool
    is_stored: bool
    stream: bool


def accept(raw: bytes | bytearray, acceptance: Acceptance, most_tokens: int | None) -> AcceptedResponse:
    """Validate the request in this body, and count its prompt unless that can be left to others.

    Args:
        raw: the body.
        acceptance: what turns requests into jobs.
        most_tokens: longest prompt that an engine takes; None: this one is short enough.

    Raises:
        InvalidRequestError: a field is invalid; `param` names it.
        UnavailableError: the tokenizer is not loaded yet; try again.
    """
    body = parse_object(raw)
    asked = requests.validate(body, acceptance.takes)
    request, generation = asked.request, asked.generation
    if request.background:
        counted, limit, model = None, acceptance.max_inline_chars, generation.model
        if acceptance.tokenizer is not None:
            counter = PromptCounter(acceptance.tokenizer)
            counted = count_short(generation.canonical, counter, max_chars=limit, model=model)
    else:
        counted = count_waiting(generation, acceptance.tokenizer, most_tokens, param="input")
    text, written = NewText(generation.canonical, counted), generation.form.written()
    form = None if written is None else NewText(written)
    placement = _placement(asked, acceptance)
    # Neither the prompt nor the request is carried back to the event loop a second time.
    slim = replace(generation, canonical="")
    return AcceptedResponse(
        parsed=ParsedRequest(slim, text, form, placement, meaning_sha256("/v1/responses", body)),
        repeated=asked.repeated,
        is_background=request.background,
        is_stored=request.is_stored,
        stream=request.stream,
    )


def _placement(asked: AskedResponse, acceptance: Acceptance) -> Placement:
    request = asked.request
    tier = tier_of(request)
    return Placement(
        task=RESPONSE_TASK if request.background else WAITED_TASK,
        lane=Lane.BATCH if tier == "flex" else Lane.INTERACTIVE,
        rank=PRIORITIES["high" if tier == "priority" else "normal"],
        window=_WINDOW if request.background else WAITING,
        metadata=dict(request.metadata or {}),
        callback=check_callback(request.webhook_url, request.webhook_secret, acceptance.settings.webhooks),
        response=response_spec(asked.repeated, asked.items) if request.is_stored else None,
        prompt_param="input",
    )
