"""Lists by age: which rows stand behind one that was seen, a page of them at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs.errors import InvalidRequestError

Item = TypeVar("Item")
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])

# Of a table: its rows' ids, which grow with age, and their tenants'.
Keys = tuple[InstrumentedAttribute[UUID], InstrumentedAttribute[UUID] | InstrumentedAttribute[UUID | None]]


@dataclass(frozen=True, slots=True)
class Range:
    """Which part of a tenant's list is read.

    Attributes:
        after: the row that was seen last; None: from the beginning.
        limit: rows at most.
        descending: the newest first.
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
        has_more: others follow.
    """

    items: Sequence[Item]
    has_more: bool


def read(session: Session, query: Select[Item], keys: Keys, wanted: Range, *, kind: str) -> Page[Item]:
    """The page of what the query finds; raises as `within` does."""
    return cut(session.scalars(within(session, query, keys, wanted, kind=kind)).all(), wanted)


def within(session: Session, query: Query, keys: Keys, wanted: Range, *, kind: str) -> Query:
    """The query for the rows of the range's page in their order, and one more, for `cut`.

    Raises:
        InvalidRequestError: the tenant has no such row to go on behind; `kind` says what it is none of.
    """
    check(session, keys, wanted, kind=kind)
    return part(query, keys, wanted)


def check(session: Session, keys: Keys, wanted: Range, *, kind: str) -> None:
    """Refuse a range that goes on behind a row that its tenant does not have; raises as `within` does."""
    row_id, owner = keys
    if wanted.after is not None:
        known = select(row_id).where(row_id == wanted.after, owner == wanted.tenant_id)
        if session.scalar(known) is None:
            raise InvalidRequestError(f"There is no {kind} with the id in `after`.", param="after")


def part(query: Query, keys: Keys, wanted: Range) -> Query:
    """Limit a query to the range, whose start has been checked, and one row more."""
    row_id, _ = keys
    if wanted.after is not None:
        query = query.where(row_id < wanted.after if wanted.descending else row_id > wanted.after)
    order = row_id.desc() if wanted.descending else row_id.asc()
    return query.order_by(order).limit(wanted.limit + 1)


def cut(found: Sequence[Item], wanted: Range) -> Page[Item]:
    """The page, of the rows that `within` let through."""
    return Page(found[: wanted.limit], has_more=len(found) > wanted.limit)
