"""Worker processes as they report themselves: alive, what they feed, and which of their loops are late."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, delete, exists, func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.models import Worker

# Workers report every 5 seconds; one that was silent for this long is down.
SILENT: Final = timedelta(seconds=30)
# A row that its process could not delete goes after this.
_FORGOTTEN_AFTER: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker reports of itself; `Worker` describes the fields."""

    id: UUID
    role: str
    name: str
    process: str | None
    engine_name: str | None = None
    model: str | None = None
    refusal: str | None = None
    late_loops: tuple[str, ...] = ()


def report(session: Session, found: WorkerReport) -> None:
    """Write a worker's row, seen now; remove those of workers that died long ago."""
    values = {
        "role": found.role,
        "name": found.name,
        "process": found.process,
        "engine_name": found.engine_name,
        "model": found.model,
        "refusal": found.refusal,
        "late_loops": list(found.late_loops),
        "seen_at": func.clock_timestamp(),
    }
    written = insert(Worker).values(id=found.id, **values)
    session.execute(written.on_conflict_do_update(index_elements=["id"], set_=values))
    session.execute(delete(Worker).where(Worker.seen_at < func.clock_timestamp() - _FORGOTTEN_AFTER))


def has_others(session: Session, engine_name: str, *, than: UUID | None) -> bool:
    """Return True if another worker that lives has registered this engine, even if that is paused now."""
    others = Worker.id != than if than is not None else true()
    feeds = (Worker.engine_name == engine_name) & Worker.refusal.is_(None) & _is_alive()
    return bool(session.scalar(select(exists().where(feeds, others))))


def alive(session: Session) -> Sequence[Worker]:
    """List the workers that reported lately, by id."""
    return session.scalars(select(Worker).where(_is_alive()).order_by(Worker.id)).all()


def refused(session: Session) -> dict[str, Worker]:
    """Return, by engine, the newest worker that lives and could not register the engine it is to feed."""
    return {each.engine_name: each for each in alive(session) if each.engine_name and each.refusal}


def processes_like(session: Session, host: str) -> dict[UUID, str]:
    """Return the processes of workers on this host, as they identified themselves, by worker."""
    found = select(Worker.id, Worker.process).where(Worker.process.startswith(f"{host}/", autoescape=True))
    return {worker_id: process for worker_id, process in session.execute(found) if process is not None}


def forget(session: Session, worker_ids: Collection[UUID]) -> None:
    """Delete the rows of workers that stop, or whose processes have ended."""
    session.execute(delete(Worker).where(Worker.id.in_(worker_ids)))


def _is_alive() -> ColumnElement[bool]:
    return Worker.seen_at > func.clock_timestamp() - SILENT
