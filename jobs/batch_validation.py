"""A batch's file is checked as a whole before anything of it runs: accepted, or refused with every bad line.

Nothing is written until the end: a worker that dies half-way leaves nothing behind, another begins anew.
"""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pydantic_core import from_json
from sqlalchemy import Text, cast, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobs import batches, events, file_lines, files, ids, telemetry
from jobs.batch_lines import LineFaultError, SeenIds, duplicate, read_envelope
from jobs.batch_models import Batch, File
from jobs.batch_states import BatchState, Endpoint, FileState
from jobs.batch_work import BatchTools
from jobs.database import database_now
from jobs.errors import LongbatchError
from jobs.file_lines import FileLine
from jobs.models import JsonObject
from jobs.storage import PART_BYTES, BytesLostError

_LOCK: Final = 0x10D0  # the first half of our advisory locks' keys
# Batches that are looked through for one that nobody validates: more than there will be service workers.
_MAX_VALIDATORS: Final = 64
_MAX_IDLE: Final = "5min"  # far above what the largest file takes


@dataclass(slots=True)
class Findings:
    """What a whole file holds.

    Attributes:
        num_lines: requests.
        model: of the first one.
        errors: as callers see them; any refuses the batch.
    """

    num_lines: int = 0
    model: str | None = None
    errors: list[JsonObject] = field(default_factory=list)


def validate_next(session: Session, tools: BatchTools) -> Batch | None:
    """One batch that was validating is in progress or has failed; None: none waits.

    An advisory lock sees to it that two workers never read one file. The row stays free meanwhile: whoever
    cancels the batch does not wait, and what was found is dropped.
    """
    session.execute(select(func.set_config("idle_in_transaction_session_timeout", _MAX_IDLE, True)))
    while (waiting := _next(session)) is not None:
        try:
            if waiting.retry_of is not None:
                _write_retried_lines(session, waiting, tools)
            found = _examine(session, waiting, tools)
        except BytesLostError as error:
            found = _unreadable(error.code, error.message)
        except (DBAPIError, LongbatchError):
            raise
        except Exception:  # noqa: BLE001  # one file that nobody foresaw must not stop all other batches
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="validate")
            found = _unreadable(LongbatchError.code, "The file could not be validated.")
        still = select(Batch).where(Batch.id == waiting.id, Batch.state == BatchState.VALIDATING)
        batch = session.scalar(still.with_for_update().execution_options(populate_existing=True))
        if batch is not None:
            _decide(session, batch, found)
            return batch
    return None


def _unreadable(code: str, message: str) -> Findings:
    return Findings(errors=[LineFaultError(code, message).as_object(None)])


def _next(session: Session) -> Batch | None:
    """The oldest batch that nobody else validates; nobody else will while this transaction is open."""
    validating = select(Batch).where(Batch.state == BatchState.VALIDATING).order_by(Batch.id)
    validating = validating.execution_options(populate_existing=True)
    for batch_id in session.scalars(validating.with_only_columns(Batch.id).limit(_MAX_VALIDATORS)).all():
        lock = func.pg_try_advisory_xact_lock(_LOCK, func.hashtext(cast(batch_id, Text)))
        # Read again under the lock: its last holder may just have decided.
        if session.scalar(select(lock)) and (batch := session.scalar(validating.where(Batch.id == batch_id))):
            return batch
    return None


def _examine(session: Session, batch: Batch, tools: BatchTools) -> Findings:
    """What the batch's file holds, read once from its beginning to its end."""
    found = Findings()
    seen = SeenIds()
    endpoint = Endpoint(batch.endpoint)
    chunks = files.read_chunks(session, batch.input_file_id, tools.store)
    for line in file_lines.split(chunks, max_line_bytes=tools.max_line_bytes):
        if line.is_blank:
            continue
        found.num_lines += 1
        if found.num_lines > tools.max_lines:
            message = f"A batch may have {tools.max_lines} requests at most."
            found.errors = [LineFaultError("too_many_tasks", message).as_object(None)]
            return found
        _examine_line(line, endpoint, tools.max_line_bytes, seen, found)
    if not found.num_lines:
        found.errors.append(LineFaultError("empty_file", "The file holds no requests.").as_object(None))
    return found


def _examine_line(
    line: FileLine, endpoint: Endpoint, max_line_bytes: int, seen: SeenIds, found: Findings
) -> None:
    try:
        envelope = read_envelope(line, endpoint, max_line_bytes=max_line_bytes)
        if not seen.add(envelope.custom_id):
            raise duplicate(envelope.custom_id)
    except LineFaultError as fault:
        found.errors.append(fault.as_object(line.number))
    else:
        if found.model is None and isinstance(model := envelope.body.get("model"), str):
            found.model = model.replace("\0", "").encode(errors="replace").decode()[:256]


def _decide(session: Session, batch: Batch, found: Findings) -> None:
    now = database_now(session)
    if found.errors:
        batches.move(batch, "refuse", now=now)
        batch.errors = found.errors
        session.flush()
        events.append_batch(session, batch)
    else:
        batches.move(batch, "accept", now=now)
        batch.num_lines = found.num_lines
        batch.model = found.model
        session.flush()
    log = telemetry.logger().bind(batch_id=ids.batch_id(batch.id))
    name = telemetry.BATCH_REFUSED if found.errors else telemetry.BATCH_ACCEPTED
    log.info(name, num_lines=found.num_lines, num_errors=len(found.errors))


def _write_retried_lines(session: Session, batch: Batch, tools: BatchTools) -> None:
    """The batch's own file holds the lines of its predecessor that stand in that one's error file."""
    growing = select(File).where(File.id == batch.input_file_id, File.state == FileState.GROWING)
    target = session.scalar(growing.with_for_update())
    before = session.get(Batch, batch.retry_of)
    if target is None or before is None or before.error_file_id is None:
        return
    wanted = _failed_ids(session, before.error_file_id, tools)
    endpoint = Endpoint(batch.endpoint)
    pending: list[bytes] = []
    num_pending = 0
    chunks = files.read_chunks(session, before.input_file_id, tools.store)
    for line in file_lines.split(chunks, max_line_bytes=tools.max_line_bytes):
        if line.content is None or line.is_blank:
            continue
        if read_envelope(line, endpoint, max_line_bytes=tools.max_line_bytes).custom_id not in wanted:
            continue
        pending.append(line.content + b"\n")
        num_pending += len(line.content) + 1
        if num_pending >= PART_BYTES:
            files.append(session, target, pending, tools.store)
            pending, num_pending = [], 0
    files.append(session, target, pending, tools.store)
    files.complete(session, target.id, now=database_now(session), lifetime=tools.lifetime)


def _failed_ids(session: Session, error_file_id: UUID, tools: BatchTools) -> SeenIds:
    found = SeenIds()
    chunks = files.read_chunks(session, error_file_id, tools.store)
    for line in file_lines.split(chunks, max_line_bytes=tools.max_line_bytes):
        if line.content:
            found.add(from_json(line.content)["custom_id"])
    return found
