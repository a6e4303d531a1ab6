"""A caller that repeats a request under one Idempotency-Key until it has an answer."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

import httpx2

# Statuses that say nothing of whether the request was done: repeat it under the same key.
_AGAIN: Final = frozenset({409, 429, 500, 502, 503, 504})
_PATIENCE_S: Final = 300.0
_PAUSE_S: Final = 1.0


class RefusedError(Exception):
    """The server refused a valid request, or gave no answer for minutes."""


@dataclass
class Repeats:
    """How often callers had to repeat a request, by the reason."""

    counted: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, reason: str) -> None:
        """Count one repetition."""
        with self.lock:
            self.counted[reason] = self.counted.get(reason, 0) + 1


class Caller:
    """One thread's connection to the API, of which there may be several."""

    def __init__(
        self,
        urls: Sequence[str],
        key: str,
        repeats: Repeats,
        *,
        keeps_connections: bool = True,
        timeout_s: float = 70,
    ) -> None:
        """Prepare to speak to the first of the URLs; a repetition goes to the next one."""
        self._urls = cycle(urls)
        self._url = next(self._urls)
        self._repeats = repeats
        self._http = httpx2.Client(
            timeout=httpx2.Timeout(timeout_s, connect=5),
            trust_env=False,
            headers={"Authorization": f"Bearer {key}"},
            limits=httpx2.Limits(max_keepalive_connections=None if keeps_connections else 0),
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def get(self, path: str, **params: str | float) -> httpx2.Response:
        """Read until an answer comes; 404 and 409 are answers too.

        Raises:
            RefusedError: the server answered anything else, or nothing for minutes.
        """
        return self._answer("GET", path, wanted={200, 404, 409}, params=params)

    def post(self, path: str, *, key: str, **sent: Any) -> httpx2.Response:  # noqa: ANN401  # httpx2's own arguments
        """Send until the request is accepted.

        Raises:
            RefusedError: the server refused it, or accepted nothing for minutes.
        """
        headers = {"Idempotency-Key": key, **sent.pop("headers", {})}
        return self._answer("POST", path, wanted={200, 202}, headers=headers, **sent)

    def _answer(self, method: str, path: str, *, wanted: set[int], **sent: Any) -> httpx2.Response:  # noqa: ANN401
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                answer = self._http.request(method, self._url + path, **sent)
            except httpx2.TransportError as error:
                reason = type(error).__name__
            else:
                if answer.status_code in wanted:
                    return answer
                reason = str(answer.status_code)
                if answer.status_code not in _AGAIN:
                    raise RefusedError(f"{method} {path}: {reason} {answer.text[:300]}")
            if time.monotonic() > deadline:
                raise RefusedError(f"{method} {path}: {reason} for {_PATIENCE_S:.0f} s")
            self._repeats.add(reason)
            self._url = next(self._urls)
            time.sleep(_PAUSE_S)
