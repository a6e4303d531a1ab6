"""The bytes of a file as a response, one part at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from sqlalchemy.orm import Session
from starlette.responses import StreamingResponse

from api.runtime.services import Services
from jobs import files
from jobs.files.storage import BytesLostError
from jobs.files.stores import make_store
from jobs.models.file import File, FilePart
from jobs.states.file import FileState

BYTES: Final = "application/octet-stream"
# Runs a verb in a transaction that sees the file.
Run = Callable[[Callable[[Session], list[FilePart]]], Awaitable[list[FilePart]]]


async def response(services: Services, file: File, run: Run, *, name: str | None = None) -> StreamingResponse:
    """Send the bytes that the file had when it was read, as a download.

    The header `X-Incomplete: true` shows that its batch still writes to it. The first part is read before the
    response begins: a file that cannot be read is an error.

    Args:
        services: have the store of files.
        file: to send.
        run: reads its parts.
        name: what a browser calls the download; ASCII without quotes. None: as it likes.

    Raises:
        BytesLostError: the first part is missing.
        ContentUnreadableError: no key opens it.
    """
    headers = {
        "Content-Length": str(file.num_bytes),
        "Content-Disposition": "attachment" if name is None else f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    if file.state != FileState.COMPLETE:
        headers["X-Incomplete"] = "true"
    rest = _read(services, file, run)
    first = await anext(rest, b"")
    return StreamingResponse(_joined(first, rest), media_type=BYTES, headers=headers)


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


async def _read(services: Services, file: File, run: Run) -> AsyncIterator[bytes]:
    store = make_store(services.settings)
    offset = 0
    while offset < file.num_bytes:
        found = await run(partial(files.load_parts, file_id=file.id, offset=offset))
        if not found:
            raise BytesLostError
        chunk = await services.cpu.store(files.unpack, found, store, offset=offset)
        yield chunk[: file.num_bytes - offset]
        offset += len(chunk)
