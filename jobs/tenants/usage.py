"""What tenants used: recorded in the transaction that ends a job, summed up by day later, never deleted.

Each such transaction inserts rows of its own and changes none, so workers never wait for each other.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import Final, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Subquery, Table, func, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.database import note_outcomes
from jobs.embeddings import EMBED_TASK
from jobs.errors import InvalidRequestError
from jobs.ids import uuid7
from jobs.models import Job
from jobs.models.tenant import UsageDay, UsageEntry
from jobs.tenants.notes import Notes

_DEFAULT_DAYS: Final = 30
MAX_DAYS: Final = 366
_SUMS: Final = ("num_jobs", "prompt_tokens", "cached_tokens", "completion_tokens")
_KEYS: Final = ("tenant_id", "day", "model", "state")
_ENTRIES: Final = Notes(UsageEntry, UsageDay, keys=_KEYS, sums=_SUMS)
unsummed, add_up = _ENTRIES.unsummed, _ENTRIES.add_up


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """A day's jobs of one model that ended in one state.

    Attributes:
        day: on which they ended, in UTC.
        prompt_tokens: of those that an engine began.
        cached_tokens: of those, what the engine had in its cache, where it told.
    """

    day: date
    model: str
    state: str
    num_jobs: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Jobs that ended and their tokens, whatever the model and the state."""

    num_jobs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Tokens of prompts and outputs."""
        return self.prompt_tokens + self.completion_tokens


def record(session: Session, ended: Sequence[Job]) -> None:
    """Record the usage of these jobs, which are in a terminal state now."""
    note_outcomes(session, [job.state for job in ended])
    groups: dict[tuple[UUID, date, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for job in ended:
        if job.finalized_at is None:
            continue
        group = groups[job.tenant_id, job.finalized_at.astimezone(UTC).date(), job.model, job.state]
        group[0] += 1
        # The choices of a request share its prompt; inputs of embeddings are one each.
        has_prompt = job.started_at and (not job.choice or job.task == EMBED_TASK)
        group[1] += (job.prompt_tokens or 0) if has_prompt else 0
        group[2] += (job.cached_tokens or 0) if has_prompt else 0
        group[3] += job.completion_tokens
    rows = [
        dict(zip(_KEYS, key, strict=True)) | dict(zip(_SUMS, sums, strict=True)) | {"id": uuid7()}
        for key, sums in groups.items()
    ]
    if rows:
        session.execute(_NOTE, rows)


_NOTE: Final = insert(cast("Table", UsageEntry.__table__))  # past the ORM, which has nothing to add


# The same as a part of a statement that has rows `ended` of jobs, and `given(id, new_id)`.
_HAS_PROMPT: Final = f"(choice = 0 OR task = '{EMBED_TASK}')"
NOTE_ENDED: Final = f"""
    INSERT INTO usage_entries
        (id, tenant_id, day, model, state, num_jobs, prompt_tokens, cached_tokens, completion_tokens)
    SELECT (array_agg(given.new_id))[1], tenant_id, (finalized_at AT TIME ZONE 'UTC')::date, model, state,
        count(*), coalesce(sum(prompt_tokens) FILTER (WHERE started_at IS NOT NULL AND {_HAS_PROMPT}), 0),
        coalesce(sum(cached_tokens) FILTER (WHERE {_HAS_PROMPT}), 0), sum(completion_tokens)
    FROM ended JOIN given USING (id) GROUP BY 2, 3, 4, 5
"""  # noqa: S608  # built from constants


def period(first: date | None, last: date | None, *, today: date) -> tuple[date, date]:
    """Complete a range of days: up to today, and thirty of them.

    Raises:
        InvalidRequestError: it ends before it begins, or is longer than a year.
    """
    end = last or today
    try:
        start = first or end - timedelta(days=_DEFAULT_DAYS - 1)
    except OverflowError:
        start = end
    if not timedelta(0) <= end - start < timedelta(days=MAX_DAYS):
        raise InvalidRequestError(
            f"`start` must not be after `end`, and the range must be at most {MAX_DAYS} days.", param="start"
        )
    return start, end


def read(session: Session, tenant_id: UUID | None, *, first: date, last: date) -> list[DailyUsage]:
    """Read the usage of a tenant, or of all together, on these days, newest first."""
    every = _between(first, last, None if tenant_id is None else [tenant_id])
    keys = [every.c.day, every.c.model, every.c.state]
    rows = session.execute(
        select(*keys, *_sums(every)).group_by(*keys).order_by(every.c.day.desc(), *keys[1:])
    )
    return [DailyUsage(day, model, state, *map(int, each)) for day, model, state, *each in rows]


def read_each(
    session: Session, tenant_id: UUID | None, *, first: date, last: date
) -> list[tuple[UUID, DailyUsage]]:
    """Read the same of a tenant, or of each tenant by itself."""
    every = _between(first, last, None if tenant_id is None else [tenant_id])
    keys = [every.c.tenant_id, every.c.day, every.c.model, every.c.state]
    rows = session.execute(select(*keys, *_sums(every)).group_by(*keys))
    found = [
        (owner, DailyUsage(day, model, state, *map(int, each))) for owner, day, model, state, *each in rows
    ]
    # The database would take longer to sort by texts: 110 ms for 24,000 rows.
    found.sort(key=lambda each: (-each[1].day.toordinal(), each[0], each[1].model, each[1].state))
    return found


def read_totals(
    session: Session,
    *,
    first: date,
    last: date,
    tenant_ids: Collection[UUID] | None = None,
    limit: int | None = None,
) -> dict[UUID, UsageTotal]:
    """Read what each tenant used on the first to the last of these days, most tokens first.

    Args:
        session: one that sees their rows.
        first: day, in UTC.
        last: day, in UTC.
        tenant_ids: those to read; None: all that used anything.
        limit: most tenants to read; None: all of them.
    """
    every = _between(first, last, tenant_ids)
    tokens = func.sum(every.c.prompt_tokens + every.c.completion_tokens)
    rows = session.execute(
        select(every.c.tenant_id, *_sums(every))
        .group_by(every.c.tenant_id)
        .order_by(tokens.desc(), every.c.tenant_id)
        .limit(limit)
    )
    return {tenant_id: UsageTotal(*map(int, each)) for tenant_id, *each in rows}


def total_of(found: Iterable[DailyUsage]) -> UsageTotal:
    """Sum usage over days, models and states."""
    sums = [0, 0, 0, 0]
    for each in found:
        for place, name in enumerate(_SUMS):
            sums[place] += getattr(each, name)
    return UsageTotal(*sums)


def _between(first: date, last: date, tenant_ids: Collection[UUID] | None) -> Subquery:
    """Select the days, and entries that are not yet summed up, of these tenants or of all."""
    parts = []
    for table in (UsageDay, UsageEntry):
        query = select(*_ENTRIES.columns(table)).where(table.day.between(first, last))
        parts.append(query if tenant_ids is None else query.where(table.tenant_id.in_(tenant_ids)))
    return union_all(*parts).subquery()


def _sums(every: Subquery) -> list[ColumnElement[int]]:
    return [func.sum(every.c[name]) for name in _SUMS]
