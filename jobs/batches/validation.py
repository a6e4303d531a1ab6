"""Validate a batch's whole file before any of it runs; report every bad line."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobs import batches, files, ids, telemetry
from jobs.batches import retries
from jobs.batches.context import BatchTools
from jobs.batches.lines import LineFaultError, SeenIds, duplicate, read_envelope
from jobs.database import database_now, transaction
from jobs.errors import LongbatchError
from jobs.files import lines
from jobs.files.lines import FileLine
from jobs.files.storage import BytesLostError
from jobs.models import JsonObject
from jobs.models.batch import Batch
from jobs.models.turn import VALIDATION, WorkKind
from jobs.sealing.content import ContentUnreadableError
from jobs.states.batch import Endpoint
from jobs.turns import Turn
from jobs.turns.work import Interruption, Sessions
from jobs.webhooks import outbox
from jobs.webhooks.events import batch_ended

_LOST_AGAIN: Final = "Validating the file failed or crashed its worker on every attempt."


@dataclass(slots=True)
class Findings:
    """What validation found in a whole file.

    Attributes:
        num_lines: requests.
        model: of the first request.
        errors: as callers see them; any error refuses the batch.
    """

    num_lines: int = 0
    model: str | None = None
    errors: list[JsonObject] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Validation:
    """Validates one batch's whole file: a `turns.work.Work`.

    It does not lock the row meanwhile: a cancellation takes effect at once, and the findings are dropped.
    """

    tools: BatchTools
    lease: timedelta = timedelta(seconds=30)
    kind: WorkKind = VALIDATION

    def do(self, sessions: Sessions, turn: Turn, watch: Interruption) -> Batch | None:
        """Accept the batch, or refuse it with every bad line."""
        with transaction(sessions) as session:
            batch = session.get_one(Batch, turn.row_id)
        try:
            if batch.retry_of is not None:
                retries.write(sessions, turn, watch, self.tools)
            found = _examine(sessions, batch, watch, self.tools)
        except (BytesLostError, ContentUnreadableError) as error:
            found = _unreadable(error.code, error.message)
        except (DBAPIError, LongbatchError, MemoryError, OSError):
            raise
        except Exception:  # noqa: BLE001  # reading the same file again would only fail again
            telemetry.logger().exception(
                telemetry.TURN_FAILED, kind=self.kind.name, batch_id=ids.batch_id(turn.row_id)
            )
            found = _unreadable("validation_failed", "The file could not be validated.")
        with transaction(sessions) as session:
            return _decide(session, turn, found)

    def give_up(self, session: Session, turn: Turn) -> Batch | None:
        """Refuse a batch whose validation failed in every attempt."""
        return _decide(session, turn, _unreadable("validation_failed", _LOST_AGAIN))

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Return the log field and value that name the batch."""
        return "batch_id", ids.batch_id(row_id)


def _unreadable(code: str, message: str) -> Findings:
    return Findings(errors=[LineFaultError(code, message).as_object(None)])


def _examine(sessions: Sessions, batch: Batch, watch: Interruption, tools: BatchTools) -> Findings:
    """Read the batch's file once from beginning to end."""
    found = Findings()
    seen = SeenIds()
    endpoint = Endpoint(batch.endpoint)
    chunks = files.stream_chunks(sessions, batch.input_file_id, tools.store, check=watch.check)
    for line in lines.split(chunks, max_line_bytes=tools.max_line_bytes):
        if line.is_blank:
            continue
        found.num_lines += 1
        if found.num_lines > tools.max_lines:
            message = f"A batch may have at most {tools.max_lines} requests."
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


def _decide(session: Session, turn: Turn, found: Findings) -> Batch | None:
    """Accept or refuse the batch; return None if it has ended or its lease is lost."""
    batch = batches.hold(session, turn)
    if batch is None:
        return None
    now = database_now(session)
    if found.errors:
        batches.move(batch, "refuse", now=now)
        batch.errors = found.errors
        files.abandon(session, batch.input_file_id)
        session.flush()
        outbox.publish(session, [batch_ended(batch)])
    else:
        batches.move(batch, "accept", now=now)
        batch.num_lines = found.num_lines
        batch.model = found.model
        session.flush()
    log = telemetry.logger().bind(batch_id=ids.batch_id(batch.id), **telemetry.in_trace(batch.traceparent))
    name = telemetry.BATCH_REFUSED if found.errors else telemetry.BATCH_ACCEPTED
    log.info(name, num_lines=found.num_lines, num_errors=len(found.errors))
    return batch
