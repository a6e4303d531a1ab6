"""The input file of a retried batch: the failed lines of the original batch, copied in slices."""

from collections.abc import Iterator
from uuid import UUID

from pydantic_core import from_json
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs import batches, files
from jobs.batches.context import BatchTools
from jobs.batches.lines import SeenIds, read_envelope
from jobs.database import database_now, transaction
from jobs.files import lines
from jobs.files.storage import PART_BYTES
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.states.batch import Endpoint
from jobs.states.file import FileState
from jobs.turns import Turn
from jobs.turns.work import InterruptedWorkError, Interruption, Sessions


def write(sessions: Sessions, turn: Turn, watch: Interruption, tools: BatchTools) -> None:
    """Write and complete the batch's own input file, unless it is complete already.

    What an earlier attempt left half written is dropped first. Each part is written under the batch's lease.

    Raises:
        InterruptedWorkError: the watch interrupted the work, or the lease is lost.
        BytesLostError: a file of the original batch cannot be read.
    """
    with transaction(sessions) as session:
        batch, target = _hold(session, turn)
        before = session.get(Batch, batch.retry_of)
        keys = files.part_keys(session, batch.input_file_id) if target else []
    if target is None or before is None or before.error_file_id is None:
        return
    tools.store.drop(keys)
    with transaction(sessions) as session:
        _, again = _hold(session, turn)
        if again is not None:
            files.truncate(session, again)
    for part in _parts(sessions, before, before.error_file_id, watch, tools):
        _append(sessions, turn, part, tools)
    with transaction(sessions) as session:
        _hold(session, turn)
        files.complete(session, target.id, now=database_now(session), lifetime=tools.lifetime)


def _append(sessions: Sessions, turn: Turn, part: bytes, tools: BatchTools) -> None:
    stored = tools.store.put(part)
    try:
        with transaction(sessions) as session:
            target = _hold_growing(session, turn)
            files.add_part(session, target.id, stored, start=target.num_bytes, tenant_id=target.tenant_id)
            target.num_bytes += stored.num_bytes
    except InterruptedWorkError:
        if stored.key is not None:
            tools.store.drop([stored.key])
        raise


def _hold(session: Session, turn: Turn) -> tuple[Batch, File | None]:
    """Lock the batch, and its input file if that is still growing.

    Raises:
        InterruptedWorkError: the lease is lost, or the batch was cancelled.
    """
    batch = batches.hold(session, turn)
    if batch is None:
        raise InterruptedWorkError
    growing = select(File).where(File.id == batch.input_file_id, File.state == FileState.GROWING)
    return batch, session.scalar(growing.with_for_update())


def _hold_growing(session: Session, turn: Turn) -> File:
    _, target = _hold(session, turn)
    if target is None:
        raise InterruptedWorkError
    return target


def _parts(
    sessions: Sessions, before: Batch, error_file_id: UUID, watch: Interruption, tools: BatchTools
) -> Iterator[bytes]:
    """Yield the failed lines unchanged from the original file, about a part at a time."""
    wanted = _failed_ids(sessions, error_file_id, watch, tools)
    endpoint = Endpoint(before.endpoint)
    pending: list[bytes] = []
    num_pending = 0
    chunks = files.stream_chunks(sessions, before.input_file_id, tools.store, check=watch.check)
    for line in lines.split(chunks, max_line_bytes=tools.max_line_bytes):
        if line.content is None or line.is_blank:
            continue
        if read_envelope(line, endpoint, max_line_bytes=tools.max_line_bytes).custom_id not in wanted:
            continue
        if pending and num_pending + len(line.content) >= PART_BYTES:
            yield b"".join(pending)
            pending, num_pending = [], 0
        pending.append(line.content + b"\n")
        num_pending += len(line.content) + 1
    if pending:
        yield b"".join(pending)


def _failed_ids(sessions: Sessions, error_file_id: UUID, watch: Interruption, tools: BatchTools) -> SeenIds:
    found = SeenIds()
    chunks = files.stream_chunks(sessions, error_file_id, tools.store, check=watch.check)
    for line in lines.split(chunks, max_line_bytes=tools.max_line_bytes):
        if line.content:
            found.add(from_json(line.content)["custom_id"])
    return found
