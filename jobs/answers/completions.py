"""OpenAI's chat and text completions as response objects."""

from collections.abc import Sequence
from typing import TypeAlias

from jobs.answers.log_probs import LogProbs

Json: TypeAlias = dict[str, object]


def chat_completion(  # noqa: PLR0913  # what a completion has
    *,
    identifier: str,
    created: int,
    model: str,
    text: str,
    finish_reason: str,
    usage: Json,
    reasoning: str | None = None,
    log_probs: LogProbs | None = None,
    calls: Sequence[Json] = (),
) -> Json:
    """Build a `chat.completion`.

    Args:
        identifier: without prefix.
        created: Unix time.
        model: that answered.
        text: of the answer.
        finish_reason: why it ended.
        usage: its tokens.
        reasoning: what the model thought; None: nothing.
        log_probs: of its tokens; None: the request asked for none.
        calls: of functions, as `tool_calls` have them.
    """
    message: Json = {"role": "assistant", "content": text, "reasoning_content": reasoning, "refusal": None}
    if calls:
        message |= {"content": text or None, "tool_calls": list(calls)}
    choice: Json = {
        "index": 0,
        "message": message,
        "logprobs": log_probs and log_probs.for_chat(),
        "finish_reason": finish_reason,
    }
    return _object("chat.completion", f"chatcmpl-{identifier}", created, model, choice, usage)


def text_completion(
    *,
    identifier: str,
    created: int,
    model: str,
    text: str,
    finish_reason: str,
    usage: Json,
    log_probs: LogProbs | None = None,
) -> Json:
    """Build a `text_completion`; the arguments are those of `chat_completion`."""
    choice: Json = {
        "index": 0,
        "text": text,
        "logprobs": log_probs and log_probs.for_text(),
        "finish_reason": finish_reason,
    }
    return _object("text_completion", f"cmpl-{identifier}", created, model, choice, usage)


def _object(kind: str, identifier: str, created: int, model: str, choice: Json, usage: Json) -> Json:
    return {
        "id": identifier,
        "object": kind,
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage,
        "system_fingerprint": None,
    }
