"""Documents that wait for their text: claimed, extracted, counted and recorded, several at once."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final
from uuid import UUID

import zstandard
from sqlalchemy.orm import Session, sessionmaker

from jobs import document_work, files, ids, telemetry
from jobs.database import transaction
from jobs.document_states import Fault
from jobs.document_work import DocumentClaim, ExtractedText
from jobs.errors import PromptUncountableError, UnavailableError
from jobs.orm import JsonObject
from jobs.plain_text import UnsafeTextError
from jobs.settings import DocumentSettings
from jobs.storage import BytesLostError, PartStore
from jobs.tokens import Tokenizer
from worker.loops import Loop
from worker.sandbox import Extracted, InterruptedExtractionError, Refusal, Sandbox

_RENEWALS: Final = 3  # in the time of a lease


class Extractor:
    """Threads that extract one document each, and one that keeps their leases.

    Args:
        on_ended: called after a document has become ready or failed; returns at once.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        settings: DocumentSettings,
        tokenizer: Tokenizer,
        store: PartStore,
        *,
        interval: float,
        on_ended: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._tokenizer = tokenizer
        self._store = store
        self._on_ended = on_ended
        self._lease = timedelta(seconds=settings.lease_seconds)
        self._lifetime = timedelta(days=settings.retention_days)
        self._held: dict[UUID, Sandbox] = {}
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._is_stopping = False
        self.loops = [
            Loop("document-leases", self.renew, interval=settings.lease_seconds / _RENEWALS),
            *(
                Loop(f"documents-{number}", self.run_once, interval=interval)
                for number in range(settings.concurrency)
            ),
        ]

    def wake(self) -> None:
        """A document may wait."""
        for loop in self.loops[1:]:
            loop.wake()

    def interrupt(self) -> None:
        """Extractions that are under way end now, and their documents wait again."""
        with self._lock:
            self._is_stopping = True
            for sandbox in self._held.values():
                sandbox.interrupt()

    def run_once(self) -> None:
        """Every document that waited has been extracted, here or by others, unless it must stop."""
        while not self._is_stopping and self.extract_next():
            pass

    def extract_next(self) -> bool:
        """One document that waited is ready or has failed; False: none waits."""
        with transaction(self._sessions) as session:
            claim = document_work.claim_extraction(session, lease=self._lease)
        if claim is None:
            return False
        sandbox = Sandbox(self._settings)
        with self._lock:
            self._held[claim.lease_id] = sandbox
            if self._is_stopping:
                sandbox.interrupt()
        try:
            self._extract(claim, sandbox)
        except InterruptedExtractionError:
            self._release(claim, spends_attempt=False)
        except UnavailableError:
            self._release(claim, spends_attempt=False)
            raise
        except BaseException:
            self._release(claim, spends_attempt=True)
            raise
        finally:
            with self._lock:
                del self._held[claim.lease_id]
        return True

    def renew(self) -> None:
        """Held leases are longer; an extraction whose lease is lost is ended."""
        with self._lock:
            held = dict(self._held)
        if not held:
            return
        with transaction(self._sessions) as session:
            renewed = document_work.renew(session, list(held), lease=self._lease)
        for lease_id in held.keys() - renewed:
            held[lease_id].interrupt()

    def _extract(self, claim: DocumentClaim, sandbox: Sandbox) -> None:
        started_at = time.monotonic()
        try:
            outcome = sandbox.run(self._chunks(claim), kind=claim.kind, num_bytes=claim.num_bytes)
            text = outcome if isinstance(outcome, Refusal) else self._count(*outcome)
        except BytesLostError as lost:
            text = Refusal(Fault.BYTES_LOST, lost.message)
        with transaction(self._sessions) as session:
            if isinstance(text, Refusal):
                error = document_work.error_of(text.fault, text.message)
                ended = document_work.fail_extraction(session, claim, error, lifetime=self._lifetime)
            else:
                ended = document_work.finish_extraction(session, claim, text, lifetime=self._lifetime)
        telemetry.logger().info(
            telemetry.DOCUMENT_ENDED,
            document_id=ids.document_id(claim.document_id),
            attempt=claim.attempt,
            kind=claim.kind.value,
            num_bytes=claim.num_bytes,
            error=text.fault.value if isinstance(text, Refusal) else None,
            num_tokens=None if isinstance(text, Refusal) else text.num_tokens,
            is_recorded=ended,
            seconds=round(time.monotonic() - started_at, 3),
        )
        if ended:
            self._on_ended()

    def _chunks(self, claim: DocumentClaim) -> Iterator[bytes]:
        """The bytes, about a part at a time; no transaction is open between."""
        offset = 0
        while offset < claim.num_bytes:
            with transaction(self._sessions) as session:
                parts = files.load_parts(session, claim.file_id, offset=offset)
            if not parts:
                raise BytesLostError
            chunk = files.unpack(parts, self._store, offset=offset)
            offset += len(chunk)
            yield chunk

    def _count(self, found: Extracted, body: bytes) -> ExtractedText | Refusal:
        """The text with its tokens; one at a time, as a long text takes hundreds of megabytes."""
        with self._counting:
            try:
                text = unpack(body, most_bytes=4 * found.num_chars)
                num_tokens = self._tokenizer.count_text(text)
            except (zstandard.ZstdError, UnicodeDecodeError):
                return Refusal(Fault.CORRUPT, "The document upsets the program that reads it.")
            except UnsafeTextError as error:
                return Refusal(Fault.UNSUPPORTED, error.message)
            except PromptUncountableError as error:
                return Refusal(Fault.UNCOUNTABLE, error.message)
        if len(text) != found.num_chars:
            return Refusal(Fault.CORRUPT, "The document upsets the program that reads it.")
        return ExtractedText(
            body=body,
            num_chars=found.num_chars,
            num_tokens=num_tokens,
            fingerprint=self._tokenizer.fingerprint,
            pages=found.pages,
            language=found.language,
            title=found.title,
            warnings=[_shown(warning.model_dump(mode="json")) for warning in found.warnings],
        )

    def _release(self, claim: DocumentClaim, *, spends_attempt: bool) -> None:
        with transaction(self._sessions) as session:
            document_work.release(session, claim, spends_attempt=spends_attempt)


def unpack(body: bytes, *, most_bytes: int) -> str:
    """The text that the process packed, which may claim to be as long as it likes.

    Raises:
        ZstdError: it unpacks to more bytes than these, or is no one piece of zstandard.
        UnicodeDecodeError: it is no UTF-8.
    """
    # The length that a frame declares goes before `max_output_size`: a few kilobytes may unpack to terabytes.
    if zstandard.frame_content_size(body) > most_bytes:
        raise zstandard.ZstdError("longer than it may be")
    decompressor = zstandard.ZstdDecompressor()
    return decompressor.decompress(body, max_output_size=most_bytes, allow_extra_data=False).decode()


def _shown(warning: JsonObject) -> JsonObject:
    return {name: value for name, value in warning.items() if value is not None}
