"""Turns a request's bytes into a job's specification: everything that needs no database.

All of it is CPU work; callers run it in a thread.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from typing import Final

from api.http.callbacks import Callback, check_callback
from api.jobs.requests import JobRequest
from api.jobs.tensors import TensorFields
from api.runtime.services import Acceptance
from jobs.engines.tensors import NO_TENSORS, TensorRequest
from jobs.errors import InvalidRequestError
from jobs.models import JsonObject
from jobs.prompts.abilities import LogProbFields, SamplingFields, needs_whole
from jobs.prompts.counter import PromptCounter, count_short, count_some
from jobs.prompts.messages import build_messages, canonical
from jobs.prompts.store import CountedPrompt, NewText
from jobs.prompts.structured import with_words
from jobs.prompts.tools.forms import ANY_FORM, AnswerFields, AnswerForm
from jobs.prompts.tools.turns import messages_of
from jobs.sharing import sharing_of
from jobs.submission.job_specs import JobSpec
from jobs.validation import SAMPLING, WINDOWS
from jobs.views import PRIORITIES

# Fields of later releases, none of which has a default.
_NEWER: Final = (
    "model",
    "share_equal",
    "cache",
    *AnswerFields.model_fields,
    *SamplingFields.model_fields,
    *LogProbFields.model_fields,
    *TensorFields.model_fields,
)
_SAMPLED: Final = tuple(name for name in JobRequest.model_fields if name in SAMPLING)


def request_sha256(request: JobRequest) -> bytes:
    """Hash the request's meaning: white space, order and written defaults are ignored."""
    # Left out if empty: releases before these fields hashed the same request without them.
    unset = set() if request.chat_template_kwargs else {"chat_template_kwargs"}
    unset |= {name for name in _NEWER if getattr(request, name) is None}
    fields = request.model_dump(mode="json", exclude=unset)
    return sha256(json.dumps(fields, sort_keys=True).encode()).digest()


@dataclass(frozen=True, slots=True)
class Draft:
    """A request whose prompt is not counted yet.

    Attributes:
        model: as the request names it, or the one that is served.
        prompt: its canonical JSON.
        sampling: as a job has it.
        form: what its answer must be.
        tensors: what goes to the engine by name besides.
    """

    request: JobRequest
    callback: Callback
    model: str
    prompt: str
    sampling: JsonObject
    form: AnswerForm = ANY_FORM
    tensors: TensorRequest = NO_TENSORS

    def specification(self, counted: CountedPrompt | None, acceptance: Acceptance) -> JobSpec:
        """Build the job; a prompt that is not counted yet is counted now if it is short.

        Raises:
            InvalidRequestError: its chat template fails with its variables.
        """
        request, tokenizer = self.request, acceptance.tokenizer
        if counted is None and tokenizer is not None:
            counter, most = PromptCounter(tokenizer), acceptance.max_inline_chars
            counted = count_short(self.prompt, counter, max_chars=most, model=self.model)
        return JobSpec(
            text=NewText(self.prompt, counted),
            task=request.task,
            model=self.model,
            max_tokens=request.max_tokens,
            rank=PRIORITIES[request.priority],
            sampling=self.sampling,
            custom_id=request.custom_id,
            metadata=dict(request.metadata or {}),
            webhook_url=self.callback.url,
            webhook_secret=self.callback.secret,
            webhook_includes_output=request.webhook_include_output,
            window=WINDOWS[request.completion_window] if request.completion_window else None,
            guide=None if (form := self.form.written()) is None else NewText(form),
            tensors=None if self.tensors.is_empty else NewText(self.tensors.written()),
            tensor_files=self.tensors.files,
            is_whole=self.form.guide is not None or needs_whole(self.sampling) or not self.tensors.is_empty,
            # The files of a job are its own.
            sharing=None
            if self.tensors.outputs
            else sharing_of(request.share_equal, request.cache, default=acceptance.settings.jobs.share_equal),
        )


def draft(request: JobRequest, acceptance: Acceptance) -> Draft:
    """Check the request and render its prompt.

    Raises:
        InvalidRequestError: its webhook cannot be used, or it asks for what no answer can be.
        ForbiddenError: it names tensors, and its caller may not.
    """
    callback = check_callback(request.webhook_url, request.webhook_secret, acceptance.settings.webhooks)
    given = request.input
    turns = given if isinstance(given, str) else messages_of(given, param="input")
    messages = build_messages(task=request.task, input=turns, instructions=request.instructions)
    model, takes = request.model or acceptance.settings.engine.model, acceptance.takes
    form, tools = request.form_on(model, takes)
    if tools and request.task != "generate":
        raise InvalidRequestError("tools: only the task generate can have tools.", param="tools")
    sampling: JsonObject = {name: value for name in _SAMPLED if (value := getattr(request, name)) is not None}
    sampling |= request.picked(model, takes, max_tokens=request.max_tokens)
    sampling |= request.scored(model, takes, max_tokens=request.max_tokens)
    tensors = request.tensors_on(model, acceptance.tensors)
    messages = with_words(messages, form.guide)
    prompt = canonical(messages, variables=request.chat_template_kwargs, tools=tools)
    return Draft(request, callback, model, prompt, sampling, form, tensors)


def specification(request: JobRequest, acceptance: Acceptance) -> JobSpec:
    """Build the job, its prompt rendered, hashed, compressed and, if short, counted.

    Raises:
        InvalidRequestError: its webhook cannot be used, or its chat template fails with its variables.
    """
    return draft(request, acceptance).specification(None, acceptance)


def counted_together(prompts: Sequence[str], acceptance: Acceptance) -> Iterator[CountedPrompt | None]:
    """Count those of these prompts that are short enough to be counted now; None for the others."""
    if acceptance.tokenizer is None:
        return repeat(None, len(prompts))
    return count_some(prompts, PromptCounter(acceptance.tokenizer), max_chars=acceptance.max_inline_chars)
