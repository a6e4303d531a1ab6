"""What tenants used: recorded in the transaction that ends a job, summed up by day later, never deleted.

Each such transaction inserts rows of its own and changes none, so workers never wait for each other.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Subquery, func, select, union_all
from sqlalchemy.orm import Session

from jobs.database import note_outcomes, statements
from jobs.database.statements import Statement
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
    given = {"ids": [job.id for job in ended], "new_ids": [uuid7() for _ in ended]}
    if ended:
        statements.fetch(session, _RECORD, given)


# A part of a statement that has rows `ended`, with the columns of jobs and a `new_id` each. The choices of a
# request share its prompt; inputs of embeddings are one each.
_HAS_PROMPT: Final = f"(started_at IS NOT NULL AND (choice = 0 OR task = '{EMBED_TASK}'))"
NOTE_ENDED: Final = f"""
    INSERT INTO usage_entries
        (id, tenant_id, day, model, state, num_jobs, prompt_tokens, cached_tokens, completion_tokens)
    SELECT (array_agg(new_id))[1], tenant_id, (finalized_at AT TIME ZONE 'UTC')::date, model, state,
        count(*), coalesce(sum(prompt_tokens) FILTER (WHERE {_HAS_PROMPT}), 0),
        coalesce(sum(cached_tokens) FILTER (WHERE {_HAS_PROMPT}), 0), sum(completion_tokens)
    FROM ended GROUP BY 2, 3, 4, 5
"""  # noqa: S608  # built from constants
_RECORD: Final = Statement(f"""
    WITH ended AS (
        SELECT jobs.*, given.new_id FROM unnest(%(ids)s::uuid[], %(new_ids)s::uuid[]) AS given(id, new_id)
            JOIN jobs USING (id) WHERE jobs.id = ANY(%(ids)s::uuid[])
    ) {NOTE_ENDED}
""")  # noqa: S608  # built from constants


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
