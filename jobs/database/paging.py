"""Lists by age, read a page at a time: the rows after one that the caller saw last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs.errors import InvalidRequestError


class HasId(Protocol):
    """A row with an id, as those of all our lists have."""

    @property
    def id(self) -> UUID:
        """Its id, which sorts by age."""


Item = TypeVar("Item")
Row = TypeVar("Row", bound=HasId)
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])

# Two columns of a table: the rows' ids, which sort by age, and their tenants' ids.
Keys = tuple[InstrumentedAttribute[UUID], InstrumentedAttribute[UUID] | InstrumentedAttribute[UUID | None]]


@dataclass(frozen=True, slots=True)
class Range:
    """The part of a tenant's list to read.

    Attributes:
        after: the row that the caller saw last; None: start at the beginning.
        limit: most rows to read.
        descending: newest first.
    """

    tenant_id: UUID
    after: UUID | None
    limit: int
    descending: bool = True


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list.

    Attributes:
        items: in the range's order.
        has_more: more rows follow.
    """

    items: Sequence[Item]
    has_more: bool


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The part of a list to search, newest first.

    Attributes:
        tenant_id: whose rows; None: those of all tenants.
        after: the search goes on after this id, which need not exist; None: start at the newest.
        limit: most rows to return.
        window: most rows to look at, unless an index finds all that match.
    """

    tenant_id: UUID | None
    after: UUID | None
    limit: int
    window: int


@dataclass(frozen=True, slots=True)
class FoundRows(Generic[Item]):
    """What a search found.

    Attributes:
        items: newest first.
        next: the id after which the next search goes on; None: there is nothing left to search.
        is_cut: it stopped before it had found as many as it may return.
    """

    items: Sequence[Item]
    next: UUID | None
    is_cut: bool = False


def read(session: Session, query: Select[Item], keys: Keys, wanted: Range, *, kind: str) -> Page[Item]:
    """Read a page of the query's rows. Raises as `within` does."""
    return cut(session.scalars(within(session, query, keys, wanted, kind=kind)).all(), wanted)


def within(session: Session, query: Query, keys: Keys, wanted: Range, *, kind: str) -> Query:
    """Limit a query to the rows of a page, in their order, and one more for `cut`.

    Raises:
        InvalidRequestError: the tenant has no row with the id in `after`; `kind` names the row in the
            message.
    """
    check(session, keys, wanted, kind=kind)
    return part(query, keys, wanted)


def check(session: Session, keys: Keys, wanted: Range, *, kind: str) -> None:
    """Refuse a range after a row that its tenant does not have; raise as `within` does."""
    row_id, owner = keys
    if wanted.after is not None:
        known = select(row_id).where(row_id == wanted.after, owner == wanted.tenant_id)
        if session.scalar(known) is None:
            raise InvalidRequestError(f"There is no {kind} with the id in `after`.", param="after")


def read_ids(
    session: Session,
    query: Select[Item],
    row_id: InstrumentedAttribute[UUID],
    *,
    after: UUID | None,
    limit: int,
    kind: str,
) -> Page[Item]:
    """Read a page of rows that belong to no tenant, newest first; raise as `within` does."""
    if after is not None and session.scalar(select(row_id).where(row_id == after)) is None:
        raise InvalidRequestError(f"There is no {kind} with the id in `after`.", param="after")
    if after is not None:
        query = query.where(row_id < after)
    found = session.scalars(query.order_by(row_id.desc()).limit(limit + 1)).all()
    return Page(found[:limit], has_more=len(found) > limit)


def part(query: Query, keys: Keys, wanted: Range) -> Query:
    """Limit a query to the range and one more row.

    The caller has checked the start of the range.
    """
    row_id, _ = keys
    if wanted.after is not None:
        query = query.where(row_id < wanted.after if wanted.descending else row_id > wanted.after)
    order = row_id.desc() if wanted.descending else row_id.asc()
    return query.order_by(order).limit(wanted.limit + 1)


def cut(found: Sequence[Item], wanted: Range) -> Page[Item]:
    """Make the page from the rows that `within` let through."""
    return Page(found[: wanted.limit], has_more=len(found) > wanted.limit)


def search(
    session: Session,
    query: Select[Row],
    row_id: InstrumentedAttribute[UUID],
    wanted: SearchRange,
    *,
    among: Sequence[ColumnElement[bool]] = (),
    has_index: bool = False,
) -> FoundRows[Row]:
    """Search the newest rows for those that a query selects, where no index need find them.

    Args:
        session: one that sees these rows.
        query: selects the rows that match.
        row_id: the ids of its rows, which sort by age.
        wanted: the part of the list.
        among: conditions on the rows to look at, found by an index.
        has_index: an index finds all that match, so the search looks beyond its window.
    """
    start = [] if wanted.after is None else [row_id < wanted.after]
    newest = select(row_id).where(*among, *start).order_by(row_id.desc())
    last = None if has_index else session.scalar(newest.offset(wanted.window - 1).limit(1))
    end = [] if last is None else [row_id >= last]
    matching = query.where(*among, *start, *end).order_by(row_id.desc()).limit(wanted.limit + 1)
    found = session.scalars(matching).all()
    if len(found) > wanted.limit:
        return FoundRows(found[: wanted.limit], found[wanted.limit - 1].id)
    return FoundRows(found, last, is_cut=last is not None)
