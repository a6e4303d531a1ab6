"""The extraction of documents: run the sandbox, count the tokens, record the outcome."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import zstandard
from sqlalchemy.orm import Session

from jobs import files, ids, telemetry
from jobs.database import transaction
from jobs.documents import extraction
from jobs.documents.extraction import DocumentClaim, ExtractedText
from jobs.errors import PromptUncountableError
from jobs.files.storage import BytesLostError, PartStore
from jobs.models.turn import EXTRACTION
from jobs.prompts.encoding import UnsafeTextError
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode
from jobs.turns import Turn
from jobs.turns.work import InterruptedWorkError, Interruption, Sessions
from worker.documents.sandbox import (
    INVALID_OUTPUT,
    ExtractedMessage,
    ExtractionFailure,
    InterruptedExtractionError,
    Sandbox,
)


class DocumentExtractor:
    """The `turns.work.Work` that extracts one document.

    Args:
        on_ended: called after a document becomes ready or fails; returns at once.
    """

    def __init__(
        self,
        settings: DocumentSettings,
        tokenizer: Tokenizer,
        store: PartStore,
        *,
        on_ended: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._store = store
        self._on_ended = on_ended
        self._lifetime = timedelta(days=settings.retention_days)
        self._counting = threading.Lock()
        self.kind = EXTRACTION
        self.lease = timedelta(seconds=settings.lease_seconds)

    def do(self, sessions: Sessions, turn: Turn, watch: Interruption) -> bool | None:
        """Extract the document and count its tokens, or fail it."""
        with transaction(sessions) as session:
            claim = extraction.begin_extraction(session, turn)
        if claim is None:
            return None
        sandbox = Sandbox(self._settings)
        watch.on_end(sandbox.interrupt)
        try:
            return self._extract(sessions, claim, sandbox)
        except InterruptedExtractionError:
            raise InterruptedWorkError from None

    def give_up(self, session: Session, turn: Turn) -> bool | None:
        """Fail the document after its last attempt."""
        return extraction.give_up(session, turn) or None

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Return the log field and the public id of the document."""
        return "document_id", ids.document_id(row_id)

    def _extract(self, sessions: Sessions, claim: DocumentClaim, sandbox: Sandbox) -> bool:
        started_at = time.monotonic()
        try:
            outcome = sandbox.run(self._chunks(sessions, claim), kind=claim.kind, num_bytes=claim.num_bytes)
            text = outcome if isinstance(outcome, ExtractionFailure) else self._count(*outcome)
        except BytesLostError as lost:
            text = ExtractionFailure(DocumentErrorCode.BYTES_LOST, lost.message)
        with transaction(sessions) as session:
            if isinstance(text, ExtractionFailure):
                error = extraction.error_of(text.code, text.message)
                ended = extraction.fail_extraction(session, claim.turn, error, lifetime=self._lifetime)
            else:
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

    def _count(self, found: ExtractedMessage, body: bytes) -> ExtractedText | ExtractionFailure:
        """Count the tokens of the text; one text at a time, as each may need 100s of MB."""
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
