"""What a server makes of documents (summaries, answers, extractions), as flows that outlast its restart."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from longbatch.calls import ENDED, JSON, add_document, served_model
from longbatch.errors import FileChangedError
from longbatch.flows import PATIENT, Flow, Pause, Request, Retries, get, post, send, with_key

POLL_SECONDS: Final = 20  # one long poll
_TRANSFER_SECONDS: Final = 120.0  # between two reads or writes
_BLOCK_BYTES: Final = 2**20
_FIRST_LOOK_SECONDS: Final = 0.125
_MAX_LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What the server has of earlier runs.

    Attributes:
        tree: one that is running or completed; None if there is none.
        newest: id of the latest one in any state; None if there is none.
    """

    tree: JSON | None
    newest: str | None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a server makes of documents.

    Attributes:
        path: of its routes.
        detail: the parameter that leaves long fields out of an object.
        lookup: the parameter that adds fields which the server looks up in documents; None if there is none.
    """

    path: str
    detail: str
    lookup: str | None = None


# Fields of a run that are no part of the request for a tree.
_OF_UPLOADS: Final = frozenset({"encoding", "attachments"})
SUMMARIES: Final = Kind("/v1/summaries", "chunks", "quotes")
ANSWERS: Final = Kind("/v1/answers", "answers")
EXTRACTIONS: Final = Kind("/v1/extractions", "values")


@dataclass(frozen=True, slots=True)
class Trees:
    """The calls for one kind of tree.

    Attributes:
        retries: how long to repeat a call.
    """

    kind: Kind = SUMMARIES
    retries: Retries = PATIENT

    def model(self) -> Flow[str]:
        """Fetch the served model; wait for the server if necessary."""
        return (yield from served_model(self.retries))

    def add(self, path: Path, content: str, *, name: str, encoding: str | None = None) -> Flow[JSON]:
        """Upload the file and return its document; the same bytes are the same document.

        Args:
            path: the file.
            name: the file name to give to the server.
            content: SHA-256 of the expected content in hex digits.
            encoding: of a text; None lets the server find out.

        Raises:
            OSError: the file cannot be read.
            FileChangedError: the content is no longer the expected one.
        """
        document = yield from add_document(path, name=name, encoding=encoding, retries=self.retries)
        if document["sha256"] != content:
            raise FileChangedError
        return document

    def document(self, document_id: str) -> Flow[JSON]:
        """Fetch the document in its current state."""
        return (yield from self._get(f"/v1/documents/{document_id}"))

    def extracted(self, document_id: str) -> Flow[JSON]:
        """Poll the document until its text is extracted or extraction fails."""
        pause = _FIRST_LOOK_SECONDS
        while True:
            document = yield from self.document(document_id)
            if document["state"] not in ("uploading", "extracting"):
                return document
            yield Pause(pause)
            pause = min(pause * 1.5, _MAX_LOOK_SECONDS)

    def find(self, custom_id: str) -> Flow[EarlierRuns]:
        """Find the trees of earlier runs under this name."""
        page = yield from self._get(self.kind.path, params={"custom_id": custom_id, "limit": 20})
        alive = (each for each in page["data"] if each["state"] in ("preparing", "running", "completed"))
        return EarlierRuns(next(alive, None), page["data"][0]["id"] if page["data"] else None)

    def start(self, documents: Sequence[str], fields: dict[str, object], *, key: str) -> Flow[JSON]:
        """Start a tree and return it; the idempotency key prevents a second one."""
        body = {"documents": list(documents), **_of_request(fields)}
        request = Request("POST", self.kind.path, json=body, timeout=_TRANSFER_SECONDS)
        page = yield from send(with_key(request, key), self.retries)
        tree: JSON = page["data"][0]
        return tree

    def whole(self, tree_id: str) -> Flow[JSON]:
        """Fetch the tree in its current state with all its chunks, and what it quotes."""
        path = f"{self.kind.path}/{tree_id}"
        found = yield from self._get(path, params={self.kind.lookup: "true"} if self.kind.lookup else None)
        while (start := found.pop("next_chunks_start", None)) is not None:
            further = yield from self._get(path, params={"chunks_start": start})
            found |= {**further, "chunks": found["chunks"] + further["chunks"]}
        return found

    def wait(
        self, tree: JSON, *, on_change: Callable[[JSON], None], poll_seconds: int = POLL_SECONDS
    ) -> Flow[JSON]:
        """Poll until the tree ends and return it; `on_change` gets every earlier answer."""
        while tree["state"] not in ENDED:
            on_change(tree)
            tree = yield from self._get(
                f"{self.kind.path}/{tree['id']}",
                params={"wait": poll_seconds, self.kind.detail: "false"},
                timeout=poll_seconds + _TRANSFER_SECONDS,
            )
        return tree

    def estimate(self, documents: Sequence[str], fields: dict[str, object]) -> Flow[JSON]:
        """Estimate the trees of these documents."""
        return (yield from self._estimate({"documents": list(documents), **fields}))

    def seconds_of(self, tokens: Sequence[int], fields: dict[str, object]) -> Flow[int | None]:
        """Estimate the seconds until documents of these lengths, queued now, would be done.

        Returns:
            None if no engine is up.
        """
        found: int | None = (yield from self._estimate({"tokens": [*tokens], **fields}))["estimated_seconds"]
        return found

    def queued_seconds(self, fields: dict[str, object]) -> Flow[int | None]:
        """Estimate the seconds until a minimal document, queued now, would be done.

        Returns:
            None if no engine is up.
        """
        return (yield from self.seconds_of([1], fields))

    def _estimate(self, asked: dict[str, object]) -> Flow[JSON]:
        return (yield from post(f"{self.kind.path}/estimate", _of_request(asked), retries=self.retries))

    def _get(self, path: str, **request: Any) -> Flow[JSON]:  # noqa: ANN401  # of `Request`
        return (yield from get(path, self.retries, **request))


def _of_request(fields: dict[str, object]) -> dict[str, object]:
    """Leave out the field of the upload: it is part of what names a run, but not of its request."""
    return {name: value for name, value in fields.items() if name not in _OF_UPLOADS}


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
