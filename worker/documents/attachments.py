"""Attached files of documents, stored as documents of their own."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from jobs import documents, files
from jobs.database import transaction
from jobs.database.base import JsonObject
from jobs.documents import NewDocument
from jobs.documents.extraction import DocumentClaim, ExtractedText
from jobs.documents.kinds import HEAD_BYTES, TAIL_BYTES, UnsupportedDocumentError, UploadHints, find_kind
from jobs.errors import LimitError
from jobs.files.storage import PART_BYTES, PartStore
from jobs.settings import LimitSettings
from jobs.states.document import DocumentKind, DocumentWarningCode
from jobs.tenants import quotas
from jobs.turns.work import Sessions
from worker.documents.sandbox import AttachedFile
from worker.extract.scans import ocr

# Attached files of attached files are read, but no deeper: bombs nest.
MAX_DEPTH: Final = 2
PICTURES: Final = frozenset({DocumentKind.PNG, DocumentKind.JPG, DocumentKind.TIFF})
_MAX_WARNING_CHARS: Final = 1000


@dataclass(slots=True)
class StoredAttachments:
    """The attached files of one document after an attempt to store them.

    Attributes:
        stored: those of a supported kind; their bytes are durable, in files that are still `uploading`.
        unread: why the others are not read, by name.
    """

    stored: list[NewDocument] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def added_to(self, text: ExtractedText) -> ExtractedText:
        """Return the text with its attached documents, and a warning that names the files not read."""
        message = f"{len(self.unread)} attached files were not read: {'; '.join(self.unread)}"
        warning: JsonObject = {
            "code": DocumentWarningCode.ATTACHMENTS_NOT_READ.value,
            "message": message[:_MAX_WARNING_CHARS],
        }
        return replace(
            text, attached=self.stored, warnings=[*text.warnings, *([warning] if self.unread else ())]
        )


@dataclass(frozen=True, slots=True)
class AttachmentStore:
    """Stores attached files in the tenant's quota."""

    parts: PartStore
    limits: LimitSettings

    def store(
        self, sessions: Sessions, claim: DocumentClaim, attached: Sequence[AttachedFile]
    ) -> StoredAttachments:
        """Store the files of supported kinds; no transaction is open while bytes are written."""
        found = StoredAttachments()
        for each in attached:
            try:
                found.stored.append(self._stored(sessions, claim, each))
            except (UnsupportedDocumentError, LimitError) as error:
                found.unread.append(f"{each.name} ({error.message.rstrip('.')})")
        return found

    def _stored(self, sessions: Sessions, claim: DocumentClaim, file: AttachedFile) -> NewDocument:
        """Store one file.

        Raises:
            UnsupportedDocumentError: it is not of a kind that is read here, or attached too deep.
            LimitError: the tenant keeps too many bytes.
        """
        if claim.depth >= MAX_DEPTH:
            raise UnsupportedDocumentError(f"It is attached within {MAX_DEPTH} other files.")
        hints = UploadHints(file.data[:HEAD_BYTES], file.data[-TAIL_BYTES:], file.name)
        kind = find_kind(hints)
        if kind in PICTURES and not ocr.is_installed():
            raise UnsupportedDocumentError("It is a picture, which needs the extra `ocr`.")
        file_id = self._store(sessions, file.data, tenant_id=claim.tenant_id)
        digest = hashlib.sha256(file.data).digest()
        return NewDocument(file_id, digest, len(file.data), kind, file.name, depth=claim.depth + 1)

    def _store(self, sessions: Sessions, data: bytes, *, tenant_id: UUID) -> UUID:
        """Store the bytes in a new file.

        Raises:
            LimitError: the tenant keeps too many bytes.
        """
        with transaction(sessions) as session:
            file_id = documents.create_file(session, tenant_id=tenant_id).id
        try:
            for start in range(0, len(data), PART_BYTES):
                part = self.parts.put(data[start : start + PART_BYTES])
                with transaction(sessions) as session:
                    files.add_part(session, file_id, part, start=start, tenant_id=tenant_id)
                    limits = quotas.read_limits(session, tenant_id, self.limits)
                    quotas.admit_stored(session, tenant_id, part.stored_bytes, limits=limits)
        except LimitError:
            with transaction(sessions) as session:
                files.discard(session, file_id=file_id, tenant_id=tenant_id)
            raise
        return file_id
