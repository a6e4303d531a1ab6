"""What a tenant has, table by table: each step removes a bounded part of one, children before parents.

Rows that another transaction holds are left for a later part, so that a step waits for nobody; only rows of
events wait, for the delivery that is being recorded.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, literal, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs import audit, lifecycle
from jobs.files.storage import PartStore
from jobs.models import (
    AccountShard,
    ApiKey,
    AuditEntry,
    Base,
    Batch,
    ConsoleSession,
    ConsoleSignInCode,
    Document,
    DocumentFinding,
    File,
    FilePart,
    IdempotencyKey,
    Job,
    PromptText,
    QuotaAllowance,
    StoredNote,
    StoredTotal,
    Summary,
    SummaryDocument,
    SummaryNode,
    Tenant,
    TenantAccount,
    TenantLimit,
    TenantTurn,
    UsageDay,
    UsageEntry,
    WebhookBreaker,
    WebhookDelivery,
    WebhookDestination,
    WebhookDispatch,
    WebhookEndpoint,
    WebhookEvent,
    WebhookSecret,
)

_ROWS: Final = 2000  # narrow ones, in one transaction
# With texts or results of kilobytes, and rows of other tables that go with them: some 50 ms.
_WIDE_ROWS: Final = 200
_PARENTS: Final = 50  # whose children are removed first
# Of a file: some stores delete one by one, and Postgres ends a transaction that is idle for long.
_FILE_PARTS: Final = 50
_EVENTS: Final = 5000  # of all tenants, looked at in one transaction


@dataclass(frozen=True, slots=True)
class Part:
    """What one transaction did.

    Attributes:
        num_removed: rows of the tenant.
        is_work: something may be left; False: the step found nothing that it could do.
        is_last: the tenant itself was removed.
    """

    num_removed: int = 0
    is_work: bool = True
    is_last: bool = False


class Stores(Protocol):
    """What tenants have outside of the database. Called before the rows go that alone name it."""

    @property
    def files(self) -> PartStore:
        """Keeps the bytes of files."""

    def forget_jobs(self, job_ids: Collection[UUID]) -> None:
        """Remove the live output of these jobs."""

    def forget_tenant(self, tenant_id: UUID) -> None:
        """Remove what is counted for the tenant, such as its requests."""


# Does one part, if there is anything to do; the last argument is the tenant that gets the usage, if one does.
Step = Callable[[Session, Tenant, Stores, UUID | None], Part]
_NOTHING: Final = Part(is_work=False)


def _rows(
    table: type[Base],
    limit: int,
    session: Session,
    tenant: Tenant,
    _stores: Stores,
    _usage_to: UUID | None,
) -> Part:
    """Remove rows of a table in which an index finds them by their tenant, or which is small."""
    owner: InstrumentedAttribute[UUID] = table.tenant_id  # type: ignore[attr-defined]  # each in STEPS has it
    return _found(_remove(session, table, owner == tenant.id, limit=limit))


def _with_children(
    parent: type[Summary | WebhookEndpoint],
    children: Sequence[InstrumentedAttribute[Any]],
    session: Session,
    tenant: Tenant,
    _stores: Stores,
    _usage_to: UUID | None,
) -> Part:
    """Remove some parents after their children, which are found by their parents alone."""
    some = select(parent.id).where(parent.tenant_id == tenant.id).order_by(parent.id).limit(_PARENTS)
    parent_ids = session.scalars(some.with_for_update(skip_locked=True)).all()
    if not parent_ids:
        return _NOTHING
    for column in children:
        if num := _remove(session, column.parent.class_, column.in_(parent_ids), limit=_ROWS):
            return Part(num)
    return Part(_remove(session, parent, parent.id.in_(parent_ids), limit=_PARENTS))


def _stop_jobs(session: Session, tenant: Tenant, _stores: Stores, _usage_to: UUID | None) -> Part:
    """Ask the workers of running jobs to end them. Asked jobs are no work: the next steps go on beside."""
    lifecycle.cancel_where(session, [Job.state == "running"], tenant_id=tenant.id)
    return _NOTHING


def _jobs(session: Session, tenant: Tenant, stores: Stores, _usage_to: UUID | None) -> Part:
    """Remove jobs that do not run, with their results; none of them leaves an event."""
    idle = select(Job.id).where(Job.tenant_id == tenant.id, Job.state != "running").limit(_WIDE_ROWS)
    job_ids = session.scalars(idle.with_for_update(skip_locked=True)).all()
    if not job_ids:
        return _NOTHING
    stores.forget_jobs(job_ids)
    session.execute(delete(Job).where(Job.id.in_(job_ids)))
    return Part(len(job_ids))


def _texts(session: Session, tenant: Tenant, _stores: Stores, _usage_to: UUID | None) -> Part:
    """Remove prompts and templates once nothing that names them is left, such as a job that runs."""
    for table in (Job, Summary):
        if session.scalar(select(table.id).where(table.tenant_id == tenant.id).limit(1)) is not None:
            return _NOTHING
    return _found(_remove(session, PromptText, PromptText.tenant_id == tenant.id, limit=_WIDE_ROWS))


def _files(session: Session, tenant: Tenant, stores: Stores, _usage_to: UUID | None) -> Part:
    """Remove a part of one file."""
    one = select(File.id).where(File.tenant_id == tenant.id).limit(1).with_for_update(skip_locked=True)
    file_id = session.scalar(one)
    return _NOTHING if file_id is None else Part(remove_file(session, file_id, stores))


def remove_file(session: Session, file_id: UUID, stores: Stores) -> int:
    """Remove parts of a file that the caller has locked, at last the file; count the rows.

    The bytes go before the rows, which alone know the keys.
    """
    some = select(FilePart.start, FilePart.key).where(FilePart.file_id == file_id).limit(_FILE_PARTS)
    found = session.execute(some).all()
    stores.files.drop([row.key for row in found if row.key is not None])
    of_file = FilePart.file_id == file_id
    session.execute(delete(FilePart).where(of_file, FilePart.start.in_([row.start for row in found])))
    if len(found) == _FILE_PARTS:
        return len(found)
    session.execute(delete(File).where(File.id == file_id))
    return len(found) + 1


def _events(session: Session, tenant: Tenant, _stores: Stores, _usage_to: UUID | None) -> Part:
    """Look at the next events of all tenants, and remove those of this one with what was sent of them.

    No index finds them by their tenant; the search goes on where the last part ended.
    """
    seen = select(WebhookEvent.id, WebhookEvent.tenant_id).order_by(WebhookEvent.id).limit(_EVENTS)
    if tenant.searched_to is not None:
        seen = seen.where(WebhookEvent.id > tenant.searched_to)
    window = session.execute(seen).all()
    if not window:
        return _NOTHING
    tenant.searched_to = window[-1].id
    mine = [row.id for row in window if row.tenant_id == tenant.id]
    # As whoever records a delivery locks them: dispatches first.
    for column in (WebhookDispatch.event_id, WebhookDelivery.event_id, WebhookEvent.id):
        session.execute(delete(column.class_).where(column.in_(mine)))
    return Part(len(mine), is_work=bool(mine) or len(window) == _EVENTS)


def _audit_log(session: Session, tenant: Tenant, _stores: Stores, _usage_to: UUID | None) -> Part:
    """Remove the tenant's log, which names people and addresses."""
    audit.let_go(session)
    return _found(_remove(session, AuditEntry, AuditEntry.tenant_id == tenant.id, limit=_ROWS))


def _usage(
    table: type[UsageEntry | UsageDay],
    session: Session,
    tenant: Tenant,
    _stores: Stores,
    usage_to: UUID | None,
) -> Part:
    """Remove usage, or add it to that of the tenant who gets it."""
    key = [getattr(table, column.key) for column in table.__table__.primary_key]
    some = select(*key).where(table.tenant_id == tenant.id).limit(_ROWS).with_for_update(skip_locked=True)
    gone = delete(table).where(tuple_(*key).in_(some))
    sums = ("num_jobs", "prompt_tokens", "cached_tokens", "completion_tokens")
    rows = gone.returning(*(getattr(table, name) for name in ("day", "model", "state", *sums))).cte("gone")
    if usage_to is None:
        return _found(session.scalar(select(func.count()).select_from(rows)) or 0)
    by = [rows.c.day, rows.c.model, rows.c.state]
    columns = ["tenant_id", "day", "model", "state", *sums]
    added = insert(UsageDay).from_select(
        columns,
        select(literal(usage_to), *by, *(func.sum(rows.c[name]) for name in sums)).group_by(*by),
    )
    more = {name: getattr(UsageDay, name) + added.excluded[name] for name in sums}
    kept = added.on_conflict_do_update(index_elements=columns[:4], set_=more)
    return _found(len(session.execute(kept.returning(UsageDay.day)).all()))


def _remove(session: Session, table: type[Base], which: ColumnElement[bool], *, limit: int) -> int:
    """Remove some rows that nobody holds."""
    key = [getattr(table, column.key) for column in table.__table__.primary_key]
    some = select(*key).where(which).limit(limit).with_for_update(skip_locked=True)
    gone = delete(table).where(tuple_(*key).in_(some)).returning(*key)
    return len(session.execute(gone, execution_options={"synchronize_session": False}).all())


def _found(number: int) -> Part:
    return Part(number, is_work=number > 0)


_OF_SUMMARIES: Final = (DocumentFinding.summary_id, SummaryDocument.summary_id, SummaryNode.summary_id)
STEPS: Final[Sequence[Step]] = (
    # What lets more rows come: keys with the sessions of the console, what makes jobs, and jobs.
    partial(_rows, ApiKey, _ROWS),
    partial(_rows, ConsoleSession, _ROWS),
    partial(_rows, ConsoleSignInCode, _ROWS),
    partial(_rows, IdempotencyKey, _ROWS),
    partial(_rows, Batch, _WIDE_ROWS),
    partial(_with_children, Summary, _OF_SUMMARIES),
    _stop_jobs,
    _jobs,
    _texts,
    partial(_rows, Document, _PARENTS),
    _files,
    partial(_with_children, WebhookEndpoint, (WebhookDispatch.endpoint_id,)),
    partial(_rows, WebhookDelivery, _ROWS),
    _events,
    # Small ones.
    partial(_rows, TenantTurn, _ROWS),
    partial(_rows, WebhookBreaker, _ROWS),
    partial(_rows, WebhookDestination, _ROWS),
    partial(_rows, WebhookSecret, _ROWS),
    partial(_rows, TenantAccount, _ROWS),
    partial(_rows, AccountShard, _ROWS),
    partial(_rows, TenantLimit, _ROWS),
    partial(_rows, QuotaAllowance, _ROWS),
    _audit_log,
    partial(_usage, UsageEntry),
    partial(_usage, UsageDay),
    # At last what the removal of all others notes.
    partial(_rows, StoredNote, _ROWS),
    partial(_rows, StoredTotal, _ROWS),
)
