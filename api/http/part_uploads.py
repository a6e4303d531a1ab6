"""Stores uploaded bytes part by part, with flat memory."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.runtime.services import Services
from jobs import files
from jobs.errors import LimitError, LongbatchError, TooLargeError, UnavailableError
from jobs.files.storage import PART_BYTES, PartStore
from jobs.files.stores import make_store
from jobs.tenants import quotas

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
        LimitError: the tenant keeps too many bytes with these.
    """
    target = make_store(services.settings)
    pending = bytearray()
    num_bytes = 0
    refusal: LongbatchError | None = None
    async for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > limit:
            refusal = refusal or too_large
        if refusal is not None:
            pending.clear()
            if num_bytes > DRAINED_LIMITS * limit:
                break
            continue
        pending += piece
        try:
            while len(pending) >= PART_BYTES:
                start = num_bytes - len(pending)
                await _put(target, bytes(pending[:PART_BYTES]), start, services, file_id, tenant_id)
                del pending[:PART_BYTES]
        except LimitError as error:
            refusal = error
    if refusal is not None:
        raise refusal
    if pending:
        await _put(target, bytes(pending), num_bytes - len(pending), services, file_id, tenant_id)
    return num_bytes


async def _put(
    store: PartStore, raw: bytes, start: int, services: Services, file_id: UUID, tenant_id: UUID
) -> None:
    part = await services.cpu.store(store.put, raw)

    def add(session: Session) -> None:
        files.add_part(session, file_id, part, start=start, tenant_id=tenant_id)
        limits = quotas.read_limits(session, tenant_id, services.settings.limits)
        quotas.admit_stored(session, tenant_id, part.stored_bytes, limits=limits)

    try:
        await services.transact(add)
    except LimitError:
        if part.key is not None:
            with suppress(OSError, UnavailableError):  # then it is swept as a stray
                await services.cpu.store(store.drop, [part.key])
        raise
