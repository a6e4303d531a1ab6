"""Documents over HTTP: upload, list, get, read the text, delete."""

from collections.abc import Iterator
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse

from api.documents import uploads
from api.documents.schemas import (
    DocumentDeletedReply,
    DocumentForm,
    DocumentListQuery,
    DocumentListReply,
    DocumentReply,
    DocumentTextQuery,
    DocumentWithPagesReply,
)
from api.http.dependencies import ServicesDep, TenantDep
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import DocumentIdDep, parse_range
from api.http.openapi import document_body, responses
from api.http.replies import page
from jobs import documents, ids, summaries
from jobs.documents.views import KindName, document_object
from jobs.errors import ConflictError, DocumentNotReadyError
from jobs.states.document import DocumentState

router = APIRouter(tags=["documents"])

_TEXT: Final = "text/plain"


@router.post(
    "/v1/documents",
    status_code=202,
    summary="Upload a document",
    responses=responses(202, DocumentReply, "Stored; text extraction is pending", 400, 409, 413, 503)
    | {200: {"model": DocumentReply, "description": "The document existed already, with the same bytes"}},
    openapi_extra=document_body(DocumentForm),
)
async def create_document(
    request: Request,
    services: ServicesDep,
    tenant_id: TenantDep,
    idempotency: IdempotencyDep,
    filename: Annotated[str, Query(description="Name of a file sent as the whole body.")] = "",
    kind: Annotated[KindName | None, Query(description="The kind that the file must be.")] = None,
    encoding: Annotated[
        str, Query(description="Encoding of a text, such as `windows-1251`; detected if absent.")
    ] = "",
) -> JSONResponse:
    """Upload a file as a form or as the whole body; its bytes decide its kind.

    The same bytes in the same encoding are the same document. Extraction is retried for a document that had
    failed.
    """
    received = await uploads.receive(
        request,
        services,
        tenant_id=tenant_id,
        idempotency=idempotency,
        filename=filename,
        kind=kind or "",
        encoding=encoding,
    )
    shown = document_object(received.document)
    headers = {"Location": f"/v1/documents/{shown['id']}"}
    if received.is_replay:
        headers["Idempotent-Replayed"] = "true"
    return JSONResponse(shown, 202 if received.is_new or received.is_replay else 200, headers)


@router.get(
    "/v1/documents",
    summary="List documents",
    responses=responses(200, DocumentListReply, "One page", 400, 503),
)
async def list_documents(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[DocumentListQuery, Query()]
) -> JSONResponse:
    """List your documents, newest first. Pages stay stable while documents are added."""
    wanted = parse_range(query, ids.DOCUMENT, tenant_id=tenant_id)
    found = await services.transact(documents.list_documents, wanted=wanted, state=query.state)
    data = [document_object(document) for document in found.items]
    return JSONResponse(page(data, has_more=found.has_more))


@router.get(
    "/v1/documents/{document_id}",
    summary="Get a document",
    responses=responses(200, DocumentWithPagesReply, "The document", 404, 503),
)
async def get_document(
    document_id: DocumentIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Get the document and the offsets of its pages."""
    document = await services.transact(documents.get, document_id=document_id, tenant_id=tenant_id)
    return JSONResponse({**document_object(document), "page_offsets": document.pages})


@router.get(
    "/v1/documents/{document_id}/text",
    summary="Read a document's text",
    response_class=Response,
    responses=responses(
        200, None, "The text, or the selected part of it", 400, 404, 409, 503, raw={_TEXT: "Annual report\n"}
    ),
)
async def get_text(
    document_id: DocumentIdDep,
    services: ServicesDep,
    tenant_id: TenantDep,
    query: Annotated[DocumentTextQuery, Query()],
) -> StreamingResponse:
    """Read the text in UTF-8, whole or from character `start` to before `end`."""
    body = await services.transact(_read, document_id=document_id, tenant_id=tenant_id)
    pieces = documents.iterate_text(body, start=query.start, end=query.end)
    headers = {"X-Content-Type-Options": "nosniff"}
    return StreamingResponse(_encoded(pieces), media_type=_TEXT, headers=headers)


@router.delete(
    "/v1/documents/{document_id}",
    summary="Delete a document",
    responses=responses(200, DocumentDeletedReply, "The document was deleted", 404, 409, 503),
)
async def delete_document(
    document_id: DocumentIdDep, services: ServicesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Delete the document and its text, and stop an extraction still pending."""
    await services.transact(
        documents.remove, document_id=document_id, tenant_id=tenant_id, guards=[summaries.guard_document]
    )
    return JSONResponse({"id": ids.document_id(document_id), "object": "document", "deleted": True})


def _read(session: Session, *, document_id: UUID, tenant_id: UUID) -> bytes:
    """Load the text as it is stored.

    Raises:
        DocumentNotReadyError: the text is not extracted yet.
        ConflictError: the extraction failed.
    """
    document = documents.get(session, document_id, tenant_id=tenant_id)
    if document.state == DocumentState.FAILED:
        raise ConflictError("The document has no text; see its `error`.")
    if document.state != DocumentState.READY:
        raise DocumentNotReadyError
    return documents.load_body(session, document_id)


def _encoded(pieces: Iterator[str]) -> Iterator[bytes]:
    """Encode each piece as UTF-8, in a thread and as fast as the receiver reads."""
    for piece in pieces:
        yield piece.encode()
