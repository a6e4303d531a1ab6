"""What tests through OpenAI's own client need: lines of batches, and batches that have ended."""

import json
from collections.abc import Iterable
from typing import Any, Final

import openai
from openai.types import Batch, FileObject

from support import eventually

MODEL = "llama-3.1-8b-instruct"
CHAT: Final = "/v1/chat/completions"
TEXT = "/v1/completions"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


def chat_line(custom_id: str, text: str = "Why is the sky blue?", **body: object) -> dict[str, Any]:
    """A line that asks one question."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": asked | body}


def text_line(custom_id: str, prompt: object = "Once upon a time", **body: object) -> dict[str, Any]:
    """A line that goes on with a text."""
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 8}
    return {"custom_id": custom_id, "method": "POST", "url": TEXT, "body": asked | body}


def jsonl(lines: Iterable[object]) -> bytes:
    """The lines as a file."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def upload(client: openai.OpenAI, content: bytes, *, name: str = "in.jsonl", **fields: Any) -> FileObject:  # noqa: ANN401
    return client.files.create(file=(name, content), purpose="batch", **fields)


def run(client: openai.OpenAI, content: bytes, *, endpoint: Any = CHAT, **fields: Any) -> Batch:  # noqa: ANN401
    """A new batch of this file."""
    file = upload(client, content)
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, **({"completion_window": "24h"} | fields)
    )


def polled(client: openai.OpenAI, batch_id: str, *, timeout: float = 90) -> list[Batch]:
    """The batch as it was seen again and again until it had ended; the last one has."""
    seen: list[Batch] = []

    def has_ended() -> bool:
        seen.append(client.batches.retrieve(batch_id))
        return seen[-1].status in ENDED

    eventually(has_ended, timeout=timeout, interval=0.1)
    return seen


def ended(client: openai.OpenAI, batch_id: str, *, timeout: float = 90) -> Batch:
    """The batch once it has ended."""
    return polled(client, batch_id, timeout=timeout)[-1]


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The lines of a result file by their custom id, each of which stands there once."""
    if file_id is None:
        return {}
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found
