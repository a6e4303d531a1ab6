"""The extraction of a text in a separate process, which can crash, hang or run out of memory alone."""

import itertools
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode, DocumentKind, DocumentWarningCode
from jobs.validation import Text
from worker.extract import confine

_ROOT: Final = Path(__file__).resolve().parents[2]
# Nothing is inherited: neither settings with their secrets nor anything that changes Python's imports.
_ENVIRONMENT: Final = {"PATH": os.defpath, "LANG": "C.UTF-8"}
# Feeding waits for the store of the bytes, not for the document, so it has its own time limit.
_FEED_SECONDS: Final = 60.0
_MAX_OUTCOME_BYTES: Final = 8 * 2**20
_READ_BYTES: Final = 2**20
_PICTURED: Final[frozenset[str]] = frozenset(
    {DocumentKind.PDF, DocumentKind.PNG, DocumentKind.JPG, DocumentKind.TIFF}
)


class InterruptedExtractionError(Exception):
    """The extraction was interrupted before it had an outcome."""


@dataclass(frozen=True, slots=True)
class ExtractionFailure:
    """The reason why a document has no text."""

    code: DocumentErrorCode
    message: str


_OUT_OF_MEMORY: Final = ExtractionFailure(
    DocumentErrorCode.OUT_OF_MEMORY, "The document needs more memory than the limit allows."
)
_CRASHED: Final = ExtractionFailure(
    DocumentErrorCode.CORRUPT, "The document crashes the program that reads it."
)
INVALID_OUTPUT: Final = ExtractionFailure(
    DocumentErrorCode.CORRUPT, "The program that reads the document returned invalid output."
)
# SIGKILL that we did not send comes from the kernel.
_MEMORY_CODES: Final = frozenset({confine.EXIT_OUT_OF_MEMORY, -signal.SIGKILL})


class WarningMessage(BaseModel):
    """A warning to readers of the text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    code: DocumentWarningCode = Field(strict=False)
    message: Text = Field(max_length=1000)
    pages: list[int] | None = Field(None, max_length=1000)


class AttachmentMessage(BaseModel):
    """A file within the document."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Text = Field(min_length=1, max_length=255)
    size: int = Field(ge=1)


class ExtractedMessage(BaseModel):
    """The process's description of a text, validated: untrusted bytes may have taken the process over."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    num_chars: int = Field(ge=1)
    pages: list[int] | None
    language: str | None = Field(pattern=r"^[a-z]{2}$")
    title: Text | None = Field(max_length=300)
    warnings: list[WarningMessage] = Field(max_length=100)
    size: int = Field(ge=1)  # bytes of the compressed text
    attachments: list[AttachmentMessage] = Field(max_length=100)


class FailureMessage(BaseModel):
    """The process's reason why a document has no text, validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    code: DocumentErrorCode = Field(strict=False)
    message: Text = Field(max_length=1000)


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file within a document, as untrusted as the document."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Extraction:
    """A text as the process wrote it.

    Attributes:
        body: UTF-8, compressed with zstandard; not unpacked yet.
        attached: files within the document.
    """

    found: ExtractedMessage
    body: bytes
    attached: tuple[AttachedFile, ...] = ()


class Sandbox:
    """One extraction, to run once; any thread may call `interrupt` at any time."""

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_interrupted = False
        self._has_timed_out = False

    def interrupt(self) -> None:
        """End the extraction now, without an outcome."""
        with self._lock:
            self._is_interrupted = True
            self._kill()

    def run(
        self, chunks: Iterable[bytes], *, kind: str, num_bytes: int, encoding: str = ""
    ) -> Extraction | ExtractionFailure:
        """Run the extraction.

        Args:
            chunks: what to read.
            kind: of the document; or the contract, if this is an external extractor's answer.
            num_bytes: of all chunks together.
            encoding: of its text, as its owner named it; empty if not named.

        Returns:
            The text and its description; or why there is none.

        Raises:
            InterruptedExtractionError: `interrupt` was called.
        """
        output = b""
        seconds = self._settings.extraction_seconds
        if kind in _PICTURED and self._settings.ocr_max_pages:
            seconds += self._settings.ocr_seconds
        process = self._start(kind, num_bytes, encoding)
        try:
            with self._deadline(_FEED_SECONDS + self._settings.extraction_seconds):
                _feed(process, chunks)
            with self._deadline(seconds):
                output = self._collect(process)
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            self._reap(process)
        if self._is_interrupted:
            raise InterruptedExtractionError
        if self._has_timed_out:
            return _timeout(seconds)
        if process.returncode == 0:
            return parse_output(output, self._settings)
        if process.returncode == confine.EXIT_OUT_OF_TIME:
            return _timeout(self._settings.extraction_seconds)
        return _OUT_OF_MEMORY if process.returncode in _MEMORY_CODES else _CRASHED

    def _start(self, kind: str, num_bytes: int, encoding: str) -> subprocess.Popen[bytes]:
        options = {
            "size": num_bytes,
            "memory": self._settings.extraction_memory_mb * 2**20,
            "seconds": math.ceil(self._settings.extraction_seconds) + 1,
            "pages": self._settings.max_pages,
            "characters": self._settings.max_characters,
            "attached": self._settings.max_bytes,
            "parent": os.getpid(),
            "encoding": encoding,
            **self._ocr_options(kind),
        }
        with self._lock:
            if self._is_interrupted:
                raise InterruptedExtractionError
            process = self._process = subprocess.Popen(
                [sys.executable, "-E", "-s", "-B", "-m", "worker.extract", kind]
                + [f"--{name}={value}" for name, value in options.items()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # parsers quote what they read
                cwd=_ROOT,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        return process

    def _ocr_options(self, kind: str) -> dict[str, int | str]:
        """List the limits of OCR, for kinds with pages to look at."""
        if kind not in _PICTURED:
            return {}
        return {
            "ocr-memory": self._settings.ocr_memory_mb * 2**20,
            "ocr-seconds": math.ceil(self._settings.ocr_seconds),
            "ocr-pages": self._settings.ocr_max_pages,
            "ocr-pixels": int(self._settings.ocr_max_megapixels * 10**6),
            "ocr-languages": self._settings.ocr_tesseract,
        }

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block takes longer than `seconds`."""
        timer = threading.Timer(seconds, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        with self._lock:
            self._has_timed_out = self._process is not None
            self._kill()

    def _kill(self) -> None:
        """Kill the process group, unless it is reaped already; the caller holds the lock."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process if it still runs, and reap it."""
        with self._lock:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                self._kill()
            process.wait()
            self._process = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _collect(self, process: subprocess.Popen[bytes]) -> bytes:
        """Read the output, up to a bound far above what is allowed."""
        if process.stdout is None:
            raise ValueError("the process has a pipe")
        most = _MAX_OUTCOME_BYTES + 4 * self._settings.max_characters + self._settings.max_bytes
        output = bytearray()
        while len(output) <= most and (piece := os.read(process.stdout.fileno(), _READ_BYTES)):
            output += piece
        return bytes(output)


def _timeout(seconds: float) -> ExtractionFailure:
    return ExtractionFailure(
        DocumentErrorCode.TIMEOUT, f"Extracting the text took longer than {seconds:g} seconds."
    )


def _feed(process: subprocess.Popen[bytes], chunks: Iterable[bytes]) -> None:
    """Write all bytes to the process, unless it stops reading."""
    if process.stdin is None:
        raise ValueError("the process has a pipe")
    with suppress(BrokenPipeError):
        for chunk in chunks:
            process.stdin.write(chunk)
        process.stdin.close()


def parse_output(output: bytes, settings: DocumentSettings) -> Extraction | ExtractionFailure:
    """Check and parse the output, which is as untrusted as the bytes that were read."""
    try:
        (size,) = struct.unpack_from(">Q", output)
        described, rest = output[8 : 8 + size], output[8 + size :]
        if not rest:
            refused = FailureMessage.model_validate_json(described)
            return ExtractionFailure(refused.code, refused.message)
        found = ExtractedMessage.model_validate_json(described)
    except (struct.error, ValidationError):
        return INVALID_OUTPUT
    pages = found.pages or []
    is_sound = (
        found.num_chars <= settings.max_characters
        and len(pages) <= settings.max_pages
        and all(before <= after for before, after in itertools.pairwise([0, *pages, found.num_chars]))
        and len(rest) == found.size + sum(each.size for each in found.attachments)
    )
    if not is_sound:
        return INVALID_OUTPUT
    ends = [*itertools.accumulate((each.size for each in found.attachments), initial=found.size)]
    attached = (
        AttachedFile(each.name, rest[start:end])
        for each, (start, end) in zip(found.attachments, itertools.pairwise(ends), strict=True)
    )
    return Extraction(found, rest[: found.size], tuple(attached))
