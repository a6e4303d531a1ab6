"""Documents of which something new is asked, before it is submitted: an address holds their ids."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from api.console.session import Viewer
from api.http.idempotency import IdempotencyHeaders
from api.http.identifiers import Parse, parse_field
from api.runtime.services import Services
from jobs import documents, ids
from jobs.errors import InvalidRequestError
from jobs.models.document import Document
from jobs.states.document import DocumentState
from jobs.validation import from_validation

Asked = TypeVar("Asked", bound=BaseModel)
# As many as an address of a few kilobytes holds; more are for the command line.
MAX_DOCUMENTS: Final = 200
_ID_BYTES: Final = 16
_MAX_KEY_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class DocumentDraft:
    """Documents of which something is to be asked.

    Attributes:
        documents: of the tenant, in the caller's order; those that are deleted are left out.
    """

    documents: Sequence[Document]

    @property
    def extracting(self) -> list[UUID]:
        """The documents whose texts are not there yet."""
        return [each.id for each in self.documents if each.state == DocumentState.EXTRACTING]

    @property
    def usable(self) -> list[str]:
        """The public ids of all that have a text, or may get one."""
        return [ids.document_id(each.id) for each in self.documents if each.state != DocumentState.FAILED]

    @property
    def packed(self) -> str:
        """The documents as an address holds them."""
        return pack_ids([each.id for each in self.documents])

    def require_text(self) -> None:
        """Refuse documents of which none has a text.

        Raises:
            InvalidRequestError: none has.
        """
        if not self.usable:
            raise InvalidRequestError("None of the documents has a text.")


def pack_ids(document_ids: Sequence[UUID]) -> str:
    """Write ids in as few characters as an address allows."""
    return base64.urlsafe_b64encode(b"".join(each.bytes for each in document_ids)).decode().rstrip("=")


def unpack_ids(text: str) -> list[UUID]:
    """Read ids that `pack_ids` wrote; each once.

    Raises:
        InvalidRequestError: these are none, or too many.
    """
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b"?"
    if len(raw) % _ID_BYTES or len(raw) > _ID_BYTES * MAX_DOCUMENTS:
        raise InvalidRequestError(f"These are no ids of at most {MAX_DOCUMENTS} documents.", param="of")
    found = [UUID(bytes=raw[at : at + _ID_BYTES]) for at in range(0, len(raw), _ID_BYTES)]
    return list(dict.fromkeys(found))


def parse_source(text: str, parse: Parse) -> UUID:
    """Read the id of what a new request begins with.

    Raises:
        InvalidRequestError: it is none.
    """
    return parse_field(text, parse, param="of", message="There is no such document or earlier request.")


async def read(services: Services, viewer: Viewer, document_ids: Sequence[UUID]) -> DocumentDraft:
    """Read the viewer's documents of these ids, in this order."""
    tenant_id = viewer.caller.tenant_id
    return await services.transact(_read_draft, document_ids=document_ids, tenant_id=tenant_id)


def validated(model: type[Asked], given: Mapping[str, object]) -> Asked:
    """Make the request that has these fields.

    Raises:
        InvalidRequestError: a field is invalid.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise from_validation(error) from None


def parse_fields(
    form: Mapping[str, str], *, numbers: Sequence[str] = (), texts: Sequence[str] = ()
) -> dict[str, object]:
    """Read options of a form; empty fields are not chosen.

    Raises:
        InvalidRequestError: a field that is a number has none.
    """
    chosen: dict[str, object] = {}
    for name in numbers:
        if text := form.get(name, "").strip():
            if not (text.isascii() and text.isdecimal() and len(text) < 10):
                raise InvalidRequestError(f"{name}: Must be a number.", param=name)
            chosen[name] = int(text)
    for name in texts:
        if text := form.get(name, "").strip():
            chosen[name] = text.replace("\r\n", "\n")
    return chosen


def once(services: Services, viewer: Viewer, form: Mapping[str, str]) -> IdempotencyHeaders:
    """Return the key by which the same form, sent twice, submits once."""
    return IdempotencyHeaders(
        key=f"console {form.get('once', '')[:_MAX_KEY_CHARS]}",
        num_retries=None,
        sender=viewer.caller.key_id.hex,
        valid_for=timedelta(hours=services.settings.jobs.idempotency_hours),
    )


def _read_draft(session: Session, *, document_ids: Sequence[UUID], tenant_id: UUID) -> DocumentDraft:
    query = select(Document).where(Document.id.in_(document_ids), *documents.visible(tenant_id))
    found = {each.id: each for each in session.scalars(query.options(defer(Document.pages)))}
    return DocumentDraft([found[each] for each in document_ids if each in found])
