"""The server's documents and summaries, with retries that outlast a restart or a full queue."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

from cli.client import Client, RefusedError, ServerUnreachableError
from jobs.errors import LongbatchError

T = TypeVar("T")
ENDED: Final = frozenset({"completed", "failed", "cancelled", "expired"})

_TRANSFER_SECONDS: Final = 120.0  # between two reads or writes
_POLL_SECONDS: Final = 20  # one long poll
_BLOCK_BYTES: Final = 2**20
_FIRST_PAUSE_SECONDS: Final = 0.5  # doubles with every try
_MAX_PAUSE_SECONDS: Final = 10.0
_MAX_FAULTS: Final = 4  # server errors in a row; that many are no accident
_MAX_WANTED_SECONDS: Final = 60.0  # of a Retry-After
_AWAY: Final = frozenset({502, 503, 504})
LATER: Final = 429  # too many requests, or too much queued or stored
_FULL_SECONDS: Final = 3600.0  # a rate limit ends in a minute, a full queue in the time of its longest jobs


class StoppedError(LongbatchError):
    """The run was stopped before it finished."""

    code = "stopped"


class FileChangedError(LongbatchError):
    """The file changed while it was being read; run the command again."""

    code = "file_changed"


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What the server has of earlier runs.

    Attributes:
        summary: one that is running or completed; None if there is none.
        newest: id of the latest summary in any state; None if there is none.
    """

    summary: dict[str, Any] | None
    newest: str | None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a server makes of documents.

    Attributes:
        path: of its routes.
        detail: the parameter that leaves out of an object what may be long.
        lookup: the parameter that adds what takes a look into documents; None: there is none.
    """

    path: str
    detail: str
    lookup: str | None = None


SUMMARIES: Final = Kind("/v1/summaries", "chunks", "quotes")
ANSWERS: Final = Kind("/v1/answers", "answers")
EXTRACTIONS: Final = Kind("/v1/extractions", "values")


class SummaryClient:
    """A client for a server's documents and summaries, answers or extractions; safe to use from many threads.

    Args:
        patience: seconds to keep trying a server that does not answer.
        stop: once set, ends every wait with StoppedError.
        kind: of what is made of documents.
        full_patience: seconds to keep trying while a limit is reached, if that is longer than `patience`.
    """

    def __init__(
        self,
        client: Client,
        *,
        patience: float,
        stop: Event,
        kind: Kind = SUMMARIES,
        full_patience: float = _FULL_SECONDS,
    ) -> None:
        self._client = client
        self._patience = patience
        self._full_patience = max(patience, full_patience)
        self._stop = stop
        self._kind = kind

    def model(self) -> str:
        """Fetch the served model without retries, to report a missing server at once."""
        return str(self._client.version()["model"])

    def model_in_time(self) -> str:
        """Fetch the served model; wait for the server if necessary."""
        return str(self._get("/v1/version")["model"])

    def add(self, path: Path, name: str, content: str) -> dict[str, Any]:
        """Upload the file and return its document; the same bytes are the same document.

        Args:
            path: the file.
            name: the file name to give to the server.
            content: SHA-256 of the expected content in hex digits.

        Raises:
            OSError: the file cannot be read.
            FileChangedError: the content is no longer the expected one.
        """

        def upload() -> dict[str, Any]:
            with path.open("rb") as file:
                headers = {"Content-Type": "application/octet-stream"}
                return self._client.send_once(
                    "POST",
                    "/v1/documents",
                    params={"filename": name},
                    content=file,
                    headers=headers,
                    timeout=_TRANSFER_SECONDS,
                )

        document = self._patiently(upload)
        if document["sha256"] != content:
            raise FileChangedError
        return document

    def document(self, document_id: str) -> dict[str, Any]:
        """Fetch the document in its current state."""
        return self._get(f"/v1/documents/{document_id}")

    def extracted(self, document_id: str) -> dict[str, Any]:
        """Poll the document until its text is extracted or extraction fails."""
        pause = _FIRST_PAUSE_SECONDS / 4
        while True:
            document = self.document(document_id)
            if document["state"] not in ("uploading", "extracting"):
                return document
            self._sleep(pause)
            pause = min(pause * 1.5, 2)

    def find(self, custom_id: str) -> EarlierRuns:
        """Find the summaries of earlier runs under this name."""
        page = self._get(self._kind.path, params={"custom_id": custom_id, "limit": 20})
        alive = (each for each in page["data"] if each["state"] in ("preparing", "running", "completed"))
        return EarlierRuns(next(alive, None), page["data"][0]["id"] if page["data"] else None)

    def start(self, documents: Sequence[str], fields: dict[str, object], *, key: str) -> dict[str, Any]:
        """Start a summary and return it; the idempotency key prevents a second one."""
        page = self._patiently(
            lambda: self._client.send_once(
                "POST",
                self._kind.path,
                json={"documents": list(documents), **fields},
                headers={"Idempotency-Key": key},
                timeout=_TRANSFER_SECONDS,
            )
        )
        summary: dict[str, Any] = page["data"][0]
        return summary

    def summary(self, summary_id: str) -> dict[str, Any]:
        """Fetch the summary in its current state with all its chunks, and what it quotes."""
        path = f"{self._kind.path}/{summary_id}"
        found = self._get(path, params={self._kind.lookup: "true"} if self._kind.lookup else None)
        while (start := found.pop("next_chunks_start", None)) is not None:
            further = self._get(path, params={"chunks_start": start})
            found |= {**further, "chunks": found["chunks"] + further["chunks"]}
        return found

    def wait(
        self,
        summary: dict[str, Any],
        *,
        on_change: Callable[[dict[str, Any]], None],
        poll_seconds: int = _POLL_SECONDS,
    ) -> dict[str, Any]:
        """Poll until the summary ends and return it; `on_change` gets every earlier reply."""
        while summary["state"] not in ENDED:
            on_change(summary)
            summary = self._get(
                f"{self._kind.path}/{summary['id']}",
                params={"wait": poll_seconds, self._kind.detail: "false"},
                timeout=poll_seconds + _TRANSFER_SECONDS,
            )
        return summary

    def estimate(self, documents: Sequence[str], fields: dict[str, object]) -> dict[str, Any]:
        """Estimate the summaries of these documents."""
        return self._estimate({"documents": list(documents), **fields})

    def queued_seconds(self, fields: dict[str, object]) -> int | None:
        """Estimate the seconds until a minimal document, queued now, would be done.

        Returns:
            None if no engine is up.
        """
        found: int | None = self._estimate({"tokens": [1], **fields})["estimated_seconds"]
        return found

    def _estimate(self, asked: dict[str, object]) -> dict[str, Any]:
        return self._patiently(
            lambda: self._client.send_once("POST", f"{self._kind.path}/estimate", json=asked)
        )

    def _get(self, path: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        return self._patiently(lambda: self._client.send_once("GET", path, **request))

    def _patiently(self, send: Callable[[], T]) -> T:
        """Call `send` until it succeeds.

        Retries an unavailable server for as long as the patience lasts, and one that answers 429 for longer:
        what fills a queue ends in time. A 429 that no wait would help is not tried again.
        """
        pause, faults, away_since, full_since = _FIRST_PAUSE_SECONDS, 0, None, None
        while True:
            if self._stop.is_set():
                raise StoppedError
            requested = None
            try:
                return send()
            except RefusedError as error:
                is_away, requested = error.status in _AWAY, error.retry_after
                is_full = error.status == LATER and not error.is_final
                faults += not is_away
                if not is_away and not is_full and (error.status < 500 or faults >= _MAX_FAULTS):
                    raise
                refusal: LongbatchError = error
            except ServerUnreachableError as error:
                is_away, is_full, refusal = True, False, error
            now = time.monotonic()
            away_since = (away_since or now) if is_away else None
            full_since = (full_since or now) if is_full else None
            if now - (away_since or now) > self._patience or now - (full_since or now) > self._full_patience:
                raise refusal
            self._sleep(min(requested or pause, _MAX_WANTED_SECONDS))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError


def content_of(path: Path) -> str:
    """Compute the SHA-256 of the file in hex digits.

    Raises:
        OSError: it cannot be read, or is not a file.
    """
    if path.is_dir():
        raise IsADirectoryError(21, os.strerror(21))
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()
