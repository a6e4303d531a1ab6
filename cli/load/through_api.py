"""One request of a load test to Longbatch's API: a streaming chat completion."""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx2

from cli.load.figures import LoadError, Timing
from cli.load.target import Target
from jobs.prompts.tokenizer import Tokenizer
from longbatch.server import ServerAccess

_TIMEOUT: Final = httpx2.Timeout(600, connect=5)
_DONE: Final = "[DONE]"


class ApiTarget(Target):
    """The chat completions endpoint of a server."""

    def __init__(self, server: ServerAccess, *, max_tokens: int) -> None:
        self._server = server
        self._max_tokens = max_tokens
        self.name = f"chat completions at {server.url}"
        self._model = self._first_model()

    def ask(self, prompt: str, tokenizer: Tokenizer) -> Timing:
        """Send one request on a connection of its own and time it."""
        began = time.monotonic()
        first: float | None = None
        usage, text = 0, ""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with (
                httpx2.Client(timeout=_TIMEOUT, trust_env=False, headers=self._headers()) as client,
                client.stream("POST", f"{self._server.url}/v1/chat/completions", json=body) as answer,
            ):
                if answer.status_code != httpx2.codes.OK:
                    raise LoadError(f"{answer.status_code}: {answer.read().decode(errors='replace')[:200]}")
                for event in _events(answer):
                    if (error := event.get("error")) is not None:
                        raise LoadError(str(error)[:200])
                    new = "".join(
                        choice.get("delta", {}).get("content") or "" for choice in event.get("choices", [])
                    )
                    if new:
                        first, text = first or time.monotonic(), text + new
                    usage = (event.get("usage") or {}).get("completion_tokens", usage)
        except httpx2.HTTPError as error:
            raise LoadError(f"{type(error).__name__}: {error}") from error
        ended = time.monotonic()
        num_tokens = usage or tokenizer.count_text(text)
        return Timing((first or ended) - began, ended - began, num_tokens, bool(usage))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._server.api_key}"} if self._server.api_key else {}

    def _first_model(self) -> str:
        try:
            found = httpx2.get(
                f"{self._server.url}/v1/models", headers=self._headers(), timeout=5, trust_env=False
            )
            found.raise_for_status()
        except httpx2.HTTPError as error:
            raise LoadError(f"{self._server.url}: {error}") from error
        return str(found.json()["data"][0]["id"])


def _events(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data:") and (payload := line[5:].strip()) != _DONE:
            yield json.loads(payload)
