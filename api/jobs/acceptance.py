"""Turns a request's bytes into a job's specification: everything that needs no database.

All of it is CPU work; callers run it in a thread.
"""

import json
from hashlib import sha256

from api.http.callbacks import check_callback
from api.jobs.requests import JobRequest
from api.runtime.services import Acceptance
from jobs.prompts.counter import PromptCounter, count_short
from jobs.prompts.messages import Message, build_messages, canonical
from jobs.prompts.store import NewText
from jobs.submission import JobSpec
from jobs.validation import SAMPLING, WINDOWS
from jobs.views import PRIORITIES


def request_sha256(request: JobRequest) -> bytes:
    """Hash the request's meaning: white space, order and written defaults are ignored."""
    # Left out if empty: releases before this field hashed the same request without it.
    unset = None if request.chat_template_kwargs else {"chat_template_kwargs"}
    fields = request.model_dump(mode="json", exclude=unset)
    return sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def specification(request: JobRequest, acceptance: Acceptance) -> JobSpec:
    """Build the job, its prompt rendered, hashed, compressed and, if short, counted.

    Raises:
        InvalidRequestError: its webhook cannot be used, or its chat template fails with its variables.
    """
    callback = check_callback(request.webhook_url, request.webhook_secret, acceptance.settings.webhooks)
    given = request.input
    turns = given if isinstance(given, str) else [Message(turn.role, turn.content) for turn in given]
    messages = build_messages(task=request.task, input=turns, instructions=request.instructions)
    prompt = canonical(messages, variables=request.chat_template_kwargs)
    counter = PromptCounter(acceptance.tokenizer) if acceptance.tokenizer else None
    counted = count_short(prompt, counter, max_chars=acceptance.max_inline_chars) if counter else None
    return JobSpec(
        text=NewText(prompt, counted),
        task=request.task,
        model=acceptance.settings.engine.model,
        max_tokens=request.max_tokens,
        rank=PRIORITIES[request.priority],
        sampling=request.model_dump(include=SAMPLING, exclude_none=True),
        custom_id=request.custom_id,
        metadata=dict(request.metadata or {}),
        webhook_url=callback.url,
        webhook_secret=callback.secret,
        webhook_includes_output=request.webhook_include_output,
        window=WINDOWS[request.completion_window] if request.completion_window else None,
    )
