"""Stores uploaded bytes part by part, with flat memory."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Final
from uuid import UUID

from api.runtime.services import Services
from jobs import files
from jobs.errors import TooLargeError
from jobs.files.storage import PART_BYTES, PartStore
from jobs.files.stores import make_store

# A refused upload is still read up to this many times its limit, so that the sender sees the response instead
# of a broken connection.
DRAINED_LIMITS: Final = 4


async def store(
    pieces: AsyncIterator[bytes],
    services: Services,
    *,
    file_id: UUID,
    tenant_id: UUID,
    limit: int,
    too_large: TooLargeError,
) -> int:
    """Store all bytes and return their number.

    Raises:
        TooLargeError: `too_large`, when there are more than `limit` bytes.
    """
    target = make_store(services.settings.files)
    pending = bytearray()
    num_bytes = 0
    is_refused = False
    async for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > limit:
            is_refused = True
            pending.clear()
            if num_bytes > DRAINED_LIMITS * limit:
                break
            continue
        pending += piece
        while len(pending) >= PART_BYTES:
            start = num_bytes - len(pending)
            await _put(target, bytes(pending[:PART_BYTES]), start, services, file_id, tenant_id)
            del pending[:PART_BYTES]
    if is_refused:
        raise too_large
    if pending:
        await _put(target, bytes(pending), num_bytes - len(pending), services, file_id, tenant_id)
    return num_bytes


async def _put(
    store: PartStore, raw: bytes, start: int, services: Services, file_id: UUID, tenant_id: UUID
) -> None:
    part = await services.cpu.store(store.put, raw)
    add = partial(files.add_part, file_id=file_id, part=part, start=start, tenant_id=tenant_id)
    await services.transactions.run(add)
