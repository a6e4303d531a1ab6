"""The external extractor: one HTTP exchange for a document, with a server of the operator's choice.

The server is as little trusted as the document: its time and its answer are bounded, it redirects nowhere,
and only the confined process reads what it says.
"""

import asyncio
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import IO, Final

import httpx2

from jobs.documents.kinds import media_type
from jobs.errors import LongbatchError
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode, DocumentKind
from worker.documents.sandbox import ExtractionFailure, InterruptedExtractionError

_IN_MEMORY: Final = 4 * 2**20  # larger documents wait for their transfer in a temporary file
_BLOCK_BYTES: Final = 2**18
# These say that the document is at fault; any other refusal may be over at the next attempt.
_REFUSED: Final = frozenset({400, 413, 415, 422})
_KEY_REFUSED: Final = frozenset({401, 403})


class ExtractorError(LongbatchError):
    """The external extractor did not answer; the document is tried again."""

    code = "extractor_unavailable"
    retryable = True


@dataclass(frozen=True, slots=True)
class ExternalReply:
    """What the extractor answered, unread.

    Attributes:
        contract: by which the confined process reads it.
        content: for that process.
    """

    contract: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ExternalExtractor:
    """A server that extracts documents, by its contract."""

    settings: DocumentSettings
    url: str
    key: str | None = field(repr=False)

    @classmethod
    def of_settings(cls, settings: DocumentSettings) -> "ExternalExtractor | None":
        """Describe the server that the settings name; None if they name none.

        Raises:
            ValueError: the file of its key cannot be read, or holds no key.
        """
        if settings.extractor_url is None:
            return None
        key = _read_key(settings.extractor_key_file) if settings.extractor_key_file else None
        return cls(settings, settings.extractor_url.rstrip("/"), key)


class ExternalExchange:
    """One exchange, to run once; any thread may call `interrupt` at any time."""

    def __init__(self, extractor: ExternalExtractor) -> None:
        self._extractor = extractor
        self._settings = extractor.settings
        self._lock = threading.Lock()
        self._running: (
            tuple[asyncio.AbstractEventLoop, asyncio.Task[ExternalReply | ExtractionFailure]] | None
        ) = None
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End the exchange now, without an outcome."""
        with self._lock:
            self._is_interrupted = True
            if self._running is not None:
                loop, task = self._running
                loop.call_soon_threadsafe(task.cancel)

    def run(self, chunks: Iterable[bytes], *, kind: DocumentKind) -> ExternalReply | ExtractionFailure:
        """Send the document and take the answer.

        Args:
            chunks: the document's bytes; all are read before anything is sent.
            kind: of the document.

        Returns:
            The answer; or why there is none. A failure of the server itself has a code in `RETRIED`.

        Raises:
            InterruptedExtractionError: `interrupt` was called.
        """
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="longbatch-") as file:
            for chunk in chunks:
                file.write(chunk)
            num_bytes = file.tell()
            file.seek(0)
            try:
                return asyncio.run(self._within_deadline(file, kind, num_bytes))
            except asyncio.CancelledError:
                raise InterruptedExtractionError from None

    async def _within_deadline(
        self, file: IO[bytes], kind: DocumentKind, num_bytes: int
    ) -> ExternalReply | ExtractionFailure:
        task = asyncio.create_task(self._exchange(file, kind, num_bytes))
        with self._lock:
            if self._is_interrupted:
                task.cancel()
            self._running = asyncio.get_running_loop(), task
        try:
            return await task
        finally:
            with self._lock:
                self._running = None

    async def _exchange(
        self, file: IO[bytes], kind: DocumentKind, num_bytes: int
    ) -> ExternalReply | ExtractionFailure:
        seconds = self._settings.extractor_seconds
        client = httpx2.AsyncClient(
            verify=_trusted(),
            timeout=None,  # the whole exchange has one
            trust_env=False,
            follow_redirects=False,
        )
        try:
            async with asyncio.timeout(seconds), client:
                if self._settings.extractor_kind == "docling":
                    return await self._ask_docling(client, file, kind)
                return await self._ask_open_webui(client, file, kind, num_bytes)
        except TimeoutError:
            return _unavailable(f"did not answer within {seconds:g} seconds")
        except (httpx2.HTTPError, OSError):
            return _unavailable("cannot be reached, or broke the connection")

    async def _ask_docling(
        self, client: httpx2.AsyncClient, file: IO[bytes], kind: DocumentKind
    ) -> ExternalReply | ExtractionFailure:
        """Convert by docling-serve: Markdown, and the structure that tells which pages have text.

        Source: docs/usage.md of docling-serve 1.31, POST /v1/convert/file.
        """
        # No document can hold this mark, so none can fake the end of a page.
        mark = f"<!-- page {token_hex(16)} -->"
        form = {
            "to_formats": ["md", "json"],
            "target_type": "inbody",
            "image_export_mode": "placeholder",
            "include_images": "false",
            "md_page_break_placeholder": mark,
            "document_timeout": f"{self._settings.extractor_seconds:g}",
        }
        headers = {"X-Api-Key": self._extractor.key} if self._extractor.key else {}
        request = client.build_request(
            "POST",
            f"{self._extractor.url}/v1/convert/file",
            data=form,
            files={"files": (f"document.{kind}", file, media_type(kind))},
            headers=_HEADERS | headers,
        )
        answered = await self._send(client, request)
        if isinstance(answered, ExtractionFailure):
            return answered
        return ExternalReply("docling", mark.encode() + b"\n" + answered)

    async def _ask_open_webui(
        self, client: httpx2.AsyncClient, file: IO[bytes], kind: DocumentKind, num_bytes: int
    ) -> ExternalReply | ExtractionFailure:
        """Convert by the contract of Open WebUI's external document loaders.

        Source: backend/open_webui/retrieval/loaders/external_document.py, PUT /process.
        """
        headers = {
            "Content-Type": media_type(kind),
            "Content-Length": str(num_bytes),
            "X-Filename": f"document.{kind}",
        }
        if self._extractor.key:
            headers["Authorization"] = f"Bearer {self._extractor.key}"
        request = client.build_request(
            "PUT", f"{self._extractor.url}/process", content=_blocks(file), headers=_HEADERS | headers
        )
        answered = await self._send(client, request)
        return answered if isinstance(answered, ExtractionFailure) else ExternalReply("open-webui", answered)

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request) -> bytes | ExtractionFailure:
        """Send the request and take the body of its answer, as it comes over the wire."""
        answer = await client.send(request, stream=True)
        try:
            if not answer.is_success:
                return _refusal(answer)
            most = self._settings.extractor_reply_mb * 2**20
            found = bytearray()
            async for block in answer.aiter_raw():
                found += block
                if len(found) > most:
                    message = f"The external extractor's answer is larger than {most >> 20:,} MiB."
                    return ExtractionFailure(DocumentErrorCode.TOO_LARGE, message)
            return bytes(found)
        finally:
            await answer.aclose()


RETRIED: Final = frozenset({DocumentErrorCode.EXTRACTOR_UNAVAILABLE, DocumentErrorCode.EXTRACTOR_INVALID})
_HEADERS: Final[dict[str, str]] = {"Accept": "application/json", "Accept-Encoding": "identity"}


async def _blocks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        yield block


def _refusal(answer: httpx2.Response) -> ExtractionFailure:
    status = answer.status_code
    if status in _REFUSED:
        message = f"The external extractor refused the document (HTTP {status})."
        return ExtractionFailure(DocumentErrorCode.EXTRACTOR_REFUSED, message)
    if answer.is_redirect:
        return _unavailable("redirects, which is not followed")
    if status in _KEY_REFUSED:
        return _unavailable(f"refuses its key (HTTP {status})")
    return _unavailable(f"failed (HTTP {status})")


def _unavailable(why: str) -> ExtractionFailure:
    return ExtractionFailure(DocumentErrorCode.EXTRACTOR_UNAVAILABLE, f"The external extractor {why}.")


def _read_key(path: str) -> str:
    try:
        key = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"documents.extractor_key_file cannot be read: {error}") from error
    if not key or not key.isprintable():
        raise ValueError("documents.extractor_key_file holds no key: one line of printable ASCII")
    return key


@cache
def _trusted() -> ssl.SSLContext:
    """Trust this machine's certificates and those of SSL_CERT_FILE. Reading them takes long: once."""
    return ssl.create_default_context()
