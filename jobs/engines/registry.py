"""The engines that workers feed: registered with their capacity, seen ready, or paused."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import database_now, statements
from jobs.database.statements import Statement
from jobs.engines import reservations, workers
from jobs.engines.capacity import Capacity
from jobs.engines.identity import EngineIdentity, EngineNameTakenError
from jobs.engines.tensors import DeclaredTensors, ModelTensors
from jobs.models import Engine, Worker
from jobs.prompts.abilities import ALWAYS, Takes
from jobs.settings import EngineSettings

# An engine that was not seen for this long does not decide what others may be asked.
_TAKES_WITHIN: Final = timedelta(days=1)
# Workers report every 5 seconds that their engine is ready; one that was silent for this long is down.
SILENT: Final = workers.SILENT
# How exact `ticked_at` is: a row version for each tick would be waste.
_TICK_RECORDED_EVERY: Final = timedelta(seconds=5)


class EngineRow(NamedTuple):
    """What claims need of an engine's row; `Engine` describes the fields. No session tracks it."""

    name: str
    model: str
    max_batch_size: int
    max_blocks: int
    tokens_per_block: int
    blocks_per_sequence: int
    waiting_room: int
    max_input_len: int
    max_seq_len: int
    spare_blocks: int | None
    paused_reason: str | None
    halt: str | None
    served_model: str | None
    tokenizer: str | None
    address: str | None
    ticked_at: datetime | None


def identity_of(engine: Engine | EngineRow) -> EngineIdentity | None:
    """Read what the engine is from its row; None if no worker has written it."""
    if engine.served_model is None or engine.tokenizer is None or engine.address is None:
        return None
    return EngineIdentity(engine.model, engine.served_model, engine.tokenizer, engine.address)


def register(  # noqa: PLR0913  # the columns of a row
    session: Session,
    engine_name: str,
    model: str,
    capacity: Capacity,
    *,
    now: datetime,
    shares_prefix: bool = False,
    takes: Collection[str] = ALWAYS,
    adapters: Collection[str] | None = None,
    identity: EngineIdentity | None = None,
    worker_id: UUID | None = None,
) -> None:
    """Write what the engine is and can hold to its row, and let jobs be claimed for it.

    Reservations are counted in its blocks. If the blocks turn out to be of another size (a real engine
    reports it only after its first iteration), the reservations are converted.

    Args:
        session: the caller's transaction.
        engine_name: of the row.
        model: by which callers ask for it.
        capacity: what it can hold.
        now: the database's clock.
        shares_prefix: requests that run together share the cache of what they begin with.
        takes: what requests may ask of it.
        adapters: those that it was started with; None: it takes any.
        identity: what it is; None: whatever the row says.
        worker_id: the worker that registers it; None: none of `workers`.

    Raises:
        EngineNameTakenError: a worker that lives feeds another engine under this name.
    """
    values = {
        "model": model,
        "max_batch_size": capacity.max_batch_size,
        "max_blocks": capacity.max_blocks,
        "tokens_per_block": capacity.tokens_per_block,
        "blocks_per_sequence": capacity.blocks_per_sequence,
        "waiting_room": capacity.waiting_room,
        "max_input_len": capacity.max_input_len,
        "max_seq_len": capacity.max_seq_len,
        "seen_at": now,
        "paused_reason": None,
        "shares_prefix": shares_prefix,
        "takes": sorted(takes),
        "adapters": None if adapters is None else sorted(adapters),
        "spare_blocks": None,  # what an earlier worker saw is out of date
    }
    if identity is not None:
        values |= {
            "served_model": identity.served_model,
            "tokenizer": identity.tokenizer,
            "address": identity.address,
        }
    # From then on a worker must tick.
    new = insert(Engine).values(name=engine_name, ticked_at=now, **values).on_conflict_do_nothing()
    if session.scalar(new.returning(Engine.name)) is not None:
        return
    known = select(Engine).where(Engine.name == engine_name).with_for_update()
    row = session.scalars(known.execution_options(populate_existing=True)).one()
    old_size, theirs = row.tokens_per_block, identity_of(row)
    is_held = now - row.seen_at < SILENT and workers.has_others(session, engine_name, than=worker_id)
    if is_held and identity is not None and theirs is not None and theirs != identity:
        raise EngineNameTakenError(engine_name, identity, theirs)
    if now - row.seen_at >= SILENT:
        values["ticked_at"] = now  # that of an earlier worker says nothing about this one
    session.execute(update(Engine).where(Engine.name == engine_name).values(**values))
    if old_size != capacity.tokens_per_block:
        reservations.convert(session, engine_name, old_tokens=old_size, new_tokens=capacity.tokens_per_block)


def declare(session: Session, engine_name: str, tensors: DeclaredTensors) -> None:
    """Write what the model of a registered engine declares by name to its row."""
    written = tensors.written() if tensors.is_any else None
    session.execute(update(Engine).where(Engine.name == engine_name).values(tensors=written))


def pause(session: Session, engine_name: str, reason: str, *, identity: EngineIdentity | None = None) -> None:
    """Claim no job for this engine until it is seen ready again.

    Args:
        session: the caller's transaction.
        engine_name: of the engine.
        reason: in words.
        identity: what it is; nothing happens if the row says otherwise. None: whatever it says.
    """
    session.execute(update(Engine).where(*_is(engine_name, identity)).values(paused_reason=reason))


def mark_ready(
    session: Session,
    engine_name: str,
    *,
    now: datetime,
    spare_blocks: int | None = None,
    identity: EngineIdentity | None = None,
) -> bool:
    """Mark the engine ready, and let jobs be claimed for it.

    Args:
        session: the caller's transaction.
        engine_name: of the engine.
        now: the database's clock.
        spare_blocks: caps the budget while the engine serves other clients too.
        identity: what it is; nothing happens if the row says otherwise. None: whatever it says.

    Returns:
        False if the row says otherwise.
    """
    marked = session.execute(
        update(Engine)
        .where(*_is(engine_name, identity))
        .values(seen_at=now, paused_reason=None, spare_blocks=spare_blocks)
        .returning(Engine.name)
    )
    return marked.first() is not None


def _is(engine_name: str, identity: EngineIdentity | None) -> list[ColumnElement[bool]]:
    found = [Engine.name == engine_name]
    if identity is not None:
        found += [getattr(Engine, each.name) == getattr(identity, each.name) for each in fields(identity)]
    return found


def record_tick(session: Session, engine: EngineRow, now: datetime) -> None:
    """Record that a worker looks for jobs for this engine; the caller holds its row."""
    if engine.ticked_at is None or now - engine.ticked_at >= _TICK_RECORDED_EVERY:
        session.execute(update(Engine).where(Engine.name == engine.name).values(ticked_at=now))


def why_not_ready(engine: Engine | Row[Any], *, now: datetime, refused: Worker | None = None) -> str | None:
    """Return why no job starts on the engine, apart from an operator's order; None if jobs do.

    Args:
        engine: its row.
        now: the database's clock.
        refused: a worker that is to feed it and could not register it; None: there is none.
    """
    if engine.paused_reason is not None and now - engine.seen_at <= SILENT:
        return engine.paused_reason
    if now - engine.seen_at > SILENT:
        refusal = None if refused is None else refused.refusal
        return refusal or engine.paused_reason or f"no worker has reported since {_clock(engine.seen_at)}"
    if engine.ticked_at is None or now - engine.ticked_at > SILENT:
        since = "its worker's start" if engine.ticked_at is None else _clock(engine.ticked_at)
        return f"its worker lives, but has not looked for jobs since {since}: restart it"
    return None


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S UTC")


def capacity_of(engine: Engine | EngineRow) -> Capacity:
    """Read the capacity from an engine's row."""
    return Capacity(
        max_batch_size=engine.max_batch_size,
        max_blocks=engine.max_blocks,
        tokens_per_block=engine.tokens_per_block,
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        blocks_per_sequence=engine.blocks_per_sequence,
        waiting_room=engine.waiting_room,
    )


def configured_capacity(settings: EngineSettings) -> Capacity:
    """Return the limits that hold while no engine has registered.

    Sizes that the settings leave out are those of the reference build.
    """
    tokens_per_block = settings.tokens_per_block or 64
    return Capacity(
        max_batch_size=settings.max_batch_size or 4,
        max_blocks=settings.max_blocks or -(-settings.max_seq_len // tokens_per_block),
        tokens_per_block=tokens_per_block,
        max_input_len=settings.max_input_len,
        max_seq_len=settings.max_seq_len,
        blocks_per_sequence=settings.blocks_per_sequence or 0,
    )


@dataclass(frozen=True, slots=True)
class RegisteredEngines:
    """What every registered engine can hold, and the database's clock, when they were read.

    Attributes:
        clock: the time by the database.
        capacities: by model.
    """

    clock: datetime
    capacities: Mapping[str, Sequence[Capacity]]


def read_registered(session: Session) -> RegisteredEngines:
    """Read the database's clock and what every registered engine can hold."""
    rows = statements.fetch(session, _CLOCK_AND_CAPACITIES, {})
    capacities: dict[str, list[Capacity]] = {}
    for _, model, *sizes in rows:
        if model is not None:
            capacities.setdefault(model, []).append(Capacity(**dict(zip(_SIZES, sizes, strict=True))))
    return RegisteredEngines(rows[0][0], capacities)


_SIZES: Final = tuple(each.name for each in fields(Capacity))
_CLOCK_AND_CAPACITIES: Final = Statement(
    f"SELECT clock_timestamp(), model, {', '.join(_SIZES)} FROM (SELECT) AS once LEFT JOIN engines ON true"  # noqa: S608  # nothing in it comes from outside
)


def served_models(session: Session, *, always: str) -> dict[str, datetime]:
    """Return the models of registered engines, each with when one was last seen.

    `always` is among them even if no engine serves it; its time is then now.
    """
    seen = select(Engine.model, func.max(Engine.seen_at)).group_by(Engine.model).order_by(Engine.model)
    found: dict[str, datetime] = dict(session.execute(seen).tuples().all())
    return found if always in found else {always: database_now(session), **found}


def read_takes(session: Session) -> Takes:
    """Read what all engines of each model take, of those that were seen in the last day."""
    seen = select(Engine.model, Engine.takes).where(Engine.seen_at > recently())
    found: dict[str, frozenset[str]] = {}
    for model, takes in session.execute(seen):
        taken = ALWAYS if takes is None else frozenset(takes)
        found[model] = found.get(model, taken) & taken
    return found


def recently() -> ColumnElement[datetime]:
    """Return since when an engine must have been seen to decide what others may be asked."""
    return func.clock_timestamp() - _TAKES_WITHIN


def read_tensors(session: Session) -> ModelTensors:
    """Read what all engines of each model declare, of those that were seen in the last day."""
    seen = Engine.seen_at > recently()
    found: dict[str, DeclaredTensors] = {}
    for model, written in session.execute(select(Engine.model, Engine.tensors).where(seen)):
        declared = DeclaredTensors.read(written)
        found[model] = found[model].common(declared) if model in found else declared
    return found


def registered_capacities(session: Session) -> dict[str, list[Capacity]]:
    """Return what every registered engine can hold, by model."""
    found: dict[str, list[Capacity]] = {}
    for engine in session.scalars(select(Engine)):
        found.setdefault(engine.model, []).append(capacity_of(engine))
    return found
