"""Lists of rows: what their addresses ask for, and the links between their pages."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from api.console import formats
from api.console.reading import tenant_of
from api.console.session import Viewer
from api.http.identifiers import parse_optional
from jobs import tenants
from jobs.database.paging import SearchRange
from jobs.errors import InvalidRequestError
from jobs.ids import IdKind

PAGE: Final = 50  # rows of a list
# Newest rows that one search without an index looks at: some 20 ms of the database's time.
WINDOW: Final = 10_000
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Row]):
    """A page of a list.

    Attributes:
        tenants: names of the owners, for operators.
        next: the id after which the search goes on; None: there are no more.
        is_cut: the search stopped before it had filled the page.
    """

    rows: Mapping[UUID, Row]
    tenants: Mapping[UUID, str]
    next: UUID | None
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ListLinks:
    """Where a page of a list leads to.

    Attributes:
        next: None: this is the last page.
        live: streams the changes of the page's rows; None: none of them will change.
    """

    first: str
    next: str | None
    live: str | None
    is_first: bool


@dataclass(frozen=True, slots=True)
class RowList:
    """A list of rows of one kind.

    Attributes:
        address: of its first page.
        filters: names of what its address may choose; a `tenant` is named by operators alone.
        values: what the form offers for some of them.
        ids: the kinds of those whose values are ids.
    """

    address: str
    kind: IdKind
    filters: Collection[str]
    values: Mapping[str, Collection[str]] = field(default_factory=dict)
    ids: Mapping[str, IdKind] = field(default_factory=dict)

    def parse(self, given: Mapping[str, str]) -> "ListQuery":
        """Read the filters of an address or a form; empty ones are not chosen.

        Raises:
            InvalidRequestError: a value is none that the form offers.
        """
        chosen = formats.chosen(given, (*self.filters, "after"))
        for name, allowed in self.values.items():
            if name in chosen and chosen[name] not in allowed:
                raise InvalidRequestError(f"The filter {name!r} has none of its values.", param=name)
        found = {
            name: parse_optional(
                chosen.get(name), kind.parse, param=name, message=f"There is no such {name}."
            )
            for name, kind in self.ids.items()
        }
        after = parse_optional(
            chosen.pop("after", None), self.kind.parse, param="after", message="There is no such page."
        )
        return ListQuery(self, chosen, found, after)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What the address of a list asks for.

    Attributes:
        chosen: the filters that have a value.
        ids: the ids in those of them that are ids; None: not chosen.
        after: the page goes on after this row.
    """

    of: RowList
    chosen: Mapping[str, str]
    ids: Mapping[str, UUID | None]
    after: UUID | None

    @property
    def fields(self) -> dict[str, str | None]:
        """All filters as they are in the address, without the place."""
        return {name: self.chosen.get(name) for name in self.of.filters}

    def range_for(self, session: Session, viewer: Viewer) -> SearchRange:
        """Return the rows to search: the viewer's own, or those of the tenant that an operator names.

        Raises:
            NotFoundError: there is no tenant of the name, or the viewer may not choose one.
        """
        owner = tenant_of(viewer)
        if "tenant" in self.chosen:
            owner = tenants.named(session, self.chosen["tenant"]).id
        return SearchRange(owner, self.after, PAGE, WINDOW)

    def links(self, *, next_after: UUID | None, is_live: bool = False) -> ListLinks:
        """Return the links of the page that this asks for."""
        first = self.of.address + formats.query(self.fields)
        return ListLinks(
            first=first,
            next=None if next_after is None else self.of.address + self._after(next_after),
            live=f"{self.of.address}/live{self._after(self.after)}" if is_live else None,
            is_first=self.after is None,
        )

    def _after(self, place: UUID | None) -> str:
        return formats.query(self.fields | {"after": None if place is None else self.of.kind.format(place)})
