"""The extraction of documents: run the sandbox, count the tokens, record the outcome."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

import zstandard
from sqlalchemy.orm import Session

from jobs import files, ids, telemetry
from jobs.database import transaction
from jobs.database.base import JsonObject
from jobs.documents import extraction
from jobs.documents.extraction import DocumentClaim, ExtractedText
from jobs.documents.kinds import kind_by_name
from jobs.errors import PromptUncountableError
from jobs.files.storage import BytesLostError, PartStore
from jobs.models.turn import EXTRACTION, WorkKind
from jobs.prompts.encoding import UnsafeTextError
from jobs.prompts.tokenizer import Tokenizer
from jobs.sealing.content import ContentUnreadableError
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode, DocumentWarningCode
from jobs.turns import Turn
from jobs.turns.work import InterruptedWorkError, Interruption, Sessions
from worker.documents.attachments import AttachmentStore
from worker.documents.remote import RETRIED, ExternalExchange, ExternalExtractor, ExtractorError
from worker.documents.sandbox import (
    INVALID_OUTPUT,
    Extraction,
    ExtractionFailure,
    InterruptedExtractionError,
    Sandbox,
)


class DocumentExtractor:
    """The `turns.work.Work` that extracts one document.

    Args:
        kind: of the documents that it takes.
        external: the server that reads them; None: we do.
        attachments: stores attached files; None: they are only named.
        on_ended: called after a document becomes ready or fails; returns at once.
    """

    def __init__(
        self,
        settings: DocumentSettings,
        tokenizer: Tokenizer,
        store: PartStore,
        *,
        kind: WorkKind = EXTRACTION,
        external: ExternalExtractor | None = None,
        attachments: AttachmentStore | None = None,
        on_ended: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._store = store
        self._on_ended = on_ended
        self._lifetime = timedelta(days=settings.retention_days)
        self._counting = threading.Lock()
        self._external = external
        self._attachments = attachments
        self.kind = kind
        self.lease = timedelta(seconds=settings.lease_seconds)

    def do(self, sessions: Sessions, turn: Turn, watch: Interruption) -> bool | None:
        """Extract the document and count its tokens, or fail it."""
        with transaction(sessions) as session:
            claim = extraction.begin_extraction(session, turn)
        if claim is None:
            return None
        reading = _Reading(
            Sandbox(self._settings), ExternalExchange(self._external) if self._external else None
        )
        watch.on_end(reading.interrupt)
        try:
            return self._extract(sessions, claim, reading)
        except InterruptedExtractionError:
            raise InterruptedWorkError from None

    def give_up(self, session: Session, turn: Turn) -> bool | None:
        """Fail the document after its last attempt."""
        return extraction.give_up(session, turn) or None

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Return the log field and the public id of the document."""
        return "document_id", ids.document_id(row_id)

    def _extract(self, sessions: Sessions, claim: DocumentClaim, reading: "_Reading") -> bool:
        """Extract the document, and record its text or why it has none.

        Raises:
            ExtractorError: the external extractor failed, and the document has attempts left.
            InterruptedExtractionError: it was interrupted.
        """
        started_at = time.monotonic()
        try:
            outcome = reading.run(self._chunks(sessions, claim), claim)
            text = outcome if isinstance(outcome, ExtractionFailure) else self._count(outcome)
            if self._attachments and isinstance(outcome, Extraction) and isinstance(text, ExtractedText):
                stored = self._attachments.store(sessions, claim, outcome.attached)
                text = stored.added_to(text)
        except BytesLostError as lost:
            text = ExtractionFailure(DocumentErrorCode.BYTES_LOST, lost.message)
        except ContentUnreadableError as sealed:
            text = ExtractionFailure(DocumentErrorCode.UNREADABLE, sealed.message)
        if isinstance(text, ExtractionFailure) and text.code in RETRIED and not claim.turn.is_last:
            raise ExtractorError(text.message)
        with transaction(sessions) as session:
            if isinstance(text, ExtractionFailure):
                error = extraction.error_of(text.code, text.message)
                ended = extraction.fail_extraction(session, claim.turn, error, lifetime=self._lifetime)
            else:
                text = replace(text, warnings=[*text.warnings, *_of_name(claim)])
                ended = extraction.finish_extraction(session, claim, text, lifetime=self._lifetime)
        telemetry.logger().info(
            telemetry.DOCUMENT_ENDED,
            document_id=ids.document_id(claim.document_id),
            attempt=claim.turn.attempt,
            kind=claim.kind.value,
            num_bytes=claim.num_bytes,
            error=text.code.value if isinstance(text, ExtractionFailure) else None,
            num_tokens=None if isinstance(text, ExtractionFailure) else text.num_tokens,
            is_recorded=ended,
            seconds=round(time.monotonic() - started_at, 3),
        )
        if ended:
            self._on_ended()
        return ended

    def _chunks(self, sessions: Sessions, claim: DocumentClaim) -> Iterator[bytes]:
        """Yield the bytes, about a part at a time; between parts no transaction is open."""
        num_read = 0
        for chunk in files.stream_chunks(sessions, claim.file_id, self._store):
            num_read += len(chunk)
            yield chunk
        if num_read < claim.num_bytes:
            raise BytesLostError

    def _count(self, outcome: Extraction) -> ExtractedText | ExtractionFailure:
        """Count the tokens of the text; one text at a time, as each may need 100s of MB."""
        found, body = outcome.found, outcome.body
        with self._counting:
            try:
                text = unpack(body, most_bytes=4 * found.num_chars)
                num_tokens = self._tokenizer.count_text(text)
            except (zstandard.ZstdError, UnicodeDecodeError):
                return INVALID_OUTPUT
            except UnsafeTextError as error:
                return ExtractionFailure(DocumentErrorCode.UNSUPPORTED, error.message)
            except PromptUncountableError as error:
                return ExtractionFailure(DocumentErrorCode.UNCOUNTABLE, error.message)
        if len(text) != found.num_chars:
            return INVALID_OUTPUT
        return ExtractedText(
            body=body,
            num_chars=found.num_chars,
            num_tokens=num_tokens,
            fingerprint=self._tokenizer.fingerprint,
            pages=found.pages,
            language=found.language,
            title=found.title,
            warnings=[each.model_dump(mode="json", exclude_none=True) for each in found.warnings],
        )


def _of_name(claim: DocumentClaim) -> list[JsonObject]:
    """Warn of a name that says another kind than the bytes."""
    named = kind_by_name(claim.filename)
    if named is None or named == claim.kind:
        return []
    message = f"The name says {named}, but the file is {claim.kind}; it was read as that."
    return [{"code": DocumentWarningCode.EXTENSION_DIFFERS.value, "message": message}]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The reading of one document: by our own readers, or by those for what an external one answers."""

    sandbox: Sandbox
    exchange: ExternalExchange | None

    def interrupt(self) -> None:
        """End the reading now, without an outcome."""
        if self.exchange is not None:
            self.exchange.interrupt()
        self.sandbox.interrupt()

    def run(self, chunks: Iterator[bytes], claim: DocumentClaim) -> Extraction | ExtractionFailure:
        """Read the document; as `Sandbox.run`."""
        if self.exchange is None:
            return self.sandbox.run(
                chunks, kind=claim.kind, num_bytes=claim.num_bytes, encoding=claim.encoding
            )
        reply = self.exchange.run(chunks, kind=claim.kind)
        if isinstance(reply, ExtractionFailure):
            return reply
        return self.sandbox.run([reply.content], kind=reply.contract, num_bytes=len(reply.content))


def unpack(body: bytes, *, most_bytes: int) -> str:
    """Unpack the text that the process wrote, without trusting its declared length.

    Raises:
        ZstdError: it unpacks to more than `most_bytes`, or is not a single zstandard frame.
        UnicodeDecodeError: it is not UTF-8.
    """
    # A frame's declared length overrides `max_output_size`: a few kilobytes may unpack to terabytes.
    if zstandard.frame_content_size(body) > most_bytes:
        raise zstandard.ZstdError("the text exceeds its limit")
    decompressor = zstandard.ZstdDecompressor()
    return decompressor.decompress(body, max_output_size=most_bytes, allow_extra_data=False).decode()
