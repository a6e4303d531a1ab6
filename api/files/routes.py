"""Files over HTTP, compatible with OpenAI's: upload, list, get, read, delete."""

from dataclasses import replace
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response, StreamingResponse

from api.files import contents, uploads
from api.files.replies import FileDeletedReply, FileListReply, FileReply
from api.files.requests import FileListQuery, UploadForm
from api.http import deliveries
from api.http.deliveries import HandedOver
from api.http.dependencies import ServicesDep, TenantDep
from api.http.idempotency import IdempotencyDep
from api.http.identifiers import FileIdDep, parse_range
from api.http.openapi import form_body, responses
from api.http.replies import page
from api.runtime.services import Services
from jobs import files, ids
from jobs.files.views import file_object
from jobs.models.file import File
from jobs.states.file import FileState

router = APIRouter(tags=["files"])

_LINE: Final = '{"id":"batch_req_…","custom_id":"a","response":{…},"error":null}\n'


@router.post(
    "/v1/files",
    summary="Upload a file",
    responses=responses(200, FileReply, "The file, durably stored", 400, 409, 413, 503),
    openapi_extra=form_body(UploadForm),
)
async def create_file(
    request: Request, services: ServicesDep, tenant_id: TenantDep, idempotency: IdempotencyDep
) -> JSONResponse:
    """Upload a file of lines for a batch, or a tensor of a job; it is streamed into storage."""
    file = await uploads.receive(request, services, tenant_id=tenant_id, idempotency=idempotency)
    return JSONResponse(file_object(file))


@router.get("/v1/files", summary="List files", responses=responses(200, FileListReply, "One page", 400, 503))
async def list_files(
    services: ServicesDep, tenant_id: TenantDep, query: Annotated[FileListQuery, Query()]
) -> JSONResponse:
    """List your files by age, including result files."""
    wanted = parse_range(query, ids.FILE, tenant_id=tenant_id)
    wanted = replace(wanted, descending=query.order == "desc")
    found = await services.transact(files.list_files, wanted=wanted, purpose=query.purpose)
    data = [file_object(file) for file in found.items]
    return JSONResponse(page(data, has_more=found.has_more))


@router.get(
    "/v1/files/{file_id}", summary="Get a file", responses=responses(200, FileReply, "The file", 404, 503)
)
async def get_file(file_id: FileIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Get the file as it is now."""
    return JSONResponse(file_object(await _get(services, file_id, tenant_id)))


@router.get(
    "/v1/files/{file_id}/content",
    summary="Read a file's content",
    response_class=Response,
    responses=responses(200, None, "The bytes so far", 404, 503, raw={contents.BYTES: _LINE}),
)
async def get_content(
    request: Request, file_id: FileIdDep, services: ServicesDep, tenant_id: TenantDep
) -> StreamingResponse:
    """Read the file's bytes, whatever Accept says.

    The header `X-Incomplete: true` shows that its batch still writes to it.
    """
    file = await _get(services, file_id, tenant_id)
    found = await contents.response(services, file, services.transactions.run)
    if file.state == FileState.COMPLETE:
        deliveries.note(request, HandedOver(file_id=file.id))
    return found


@router.delete(
    "/v1/files/{file_id}",
    summary="Delete a file",
    responses=responses(200, FileDeletedReply, "The file was deleted", 404, 409, 503),
)
async def delete_file(file_id: FileIdDep, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:
    """Delete the file; a batch that has begun to read it continues."""
    await services.transact(files.remove, file_id=file_id, tenant_id=tenant_id)
    return JSONResponse({"id": ids.file_id(file_id), "object": "file", "deleted": True})


async def _get(services: Services, file_id: UUID, tenant_id: UUID) -> File:
    return await services.transact(files.get, file_id=file_id, tenant_id=tenant_id)
