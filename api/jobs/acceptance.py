"""Turns a request's bytes into a job's specification: everything that needs no database.

All of it is CPU work; callers run it in a thread.
"""

import json
from hashlib import sha256
from typing import Final

from api.http.callbacks import check_callback
from api.jobs.requests import JobRequest
from api.runtime.services import Acceptance
from jobs.prompts.chat_template import ChatTemplateError
from jobs.prompts.counter import PromptCounter
from jobs.prompts.messages import Message, build_messages, canonical
from jobs.prompts.store import CountedPrompt, NewText
from jobs.submission import JobSpec
from jobs.validation import WINDOWS
from jobs.views import PRIORITIES

_SAMPLING: Final = ("temperature", "top_p", "top_k", "seed", "stop")


def request_sha256(request: JobRequest) -> bytes:
    """Hash the request's meaning: white space, order and written defaults are ignored."""
    fields = request.model_dump(mode="json")
    return sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def specification(request: JobRequest, acceptance: Acceptance) -> JobSpec:
    """Build the job, its prompt rendered, hashed, compressed and, if short, counted.

    Raises:
        InvalidRequestError: its webhook cannot be used.
    """
    callback = check_callback(request.webhook_url, request.webhook_secret, acceptance.settings.webhooks)
    given = request.input
    turns = given if isinstance(given, str) else [Message(turn.role, turn.content) for turn in given]
    messages = build_messages(task=request.task, input=turns, instructions=request.instructions)
    prompt = canonical(messages)
    text = NewText(prompt, _count(prompt, acceptance))
    sampling = {name: value for name in _SAMPLING if (value := getattr(request, name)) is not None}
    return JobSpec(
        text=text,
        task=request.task,
        model=acceptance.settings.engine.model,
        max_tokens=request.max_tokens,
        rank=PRIORITIES[request.priority],
        sampling=sampling,
        custom_id=request.custom_id,
        metadata=dict(request.metadata or {}),
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        webhook_includes_output=request.webhook_include_output,
        window=WINDOWS[request.completion_window] if request.completion_window else None,
    )


def _count(prompt: str, acceptance: Acceptance) -> CountedPrompt | None:
    if acceptance.tokenizer is None or len(prompt) > acceptance.max_inline_chars:
        return None
    try:
        return PromptCounter(acceptance.tokenizer).count_prompt(prompt)
    except ChatTemplateError:
        return None  # the service worker gets the same error and fails the job with it
