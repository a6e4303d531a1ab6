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


def response(services: Services, file: File, run: Run, *, name: str | None = None) -> StreamingResponse:
    """Send the bytes that the file had when it was read, as a download.

    The header `X-Incomplete: true` shows that its batch still writes to it.

    Args:
        services: have the store of files.
        file: to send.
        run: reads its parts.
        name: what a browser calls the download; ASCII without quotes. None: as it likes.
    """
    headers = {
        "Content-Length": str(file.num_bytes),
        "Content-Disposition": "attachment" if name is None else f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    if file.state != FileState.COMPLETE:
        headers["X-Incomplete"] = "true"
    return StreamingResponse(_read(services, file, run), media_type=BYTES, headers=headers)


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
