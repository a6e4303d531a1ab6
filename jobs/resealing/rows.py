"""Sealed values in tables: one pass in the order of their keys, a few rows in each transaction.

Rows are locked without waiting, as an ordinary update locks them, so that a pass deadlocks with nothing, and
claims leave out what it holds for milliseconds. A row that another transaction holds is left for the next
pass. A pass that was killed has done whole transactions, and the next one finds what is left.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Row, Update, bindparam, func, literal, select, tuple_, update
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.errors import LongbatchError
from jobs.resealing.places import Aim, SealedPlace, SealedTable
from jobs.resealing.tally import Tally, UnreadableValue

_LOOKED_AT: Final = 1000  # rows in one statement, of which only the beginnings are read
# Rewritten in one transaction, which is some ten milliseconds.
_ROWS: Final = 50
_BYTES: Final = 4 * 2**20

Sessions = sessionmaker[Session]
Found = Row[*tuple[Any, ...]]
# Called with a table's name and how many of its rows were looked at.
Progress = Callable[[str, int], None]


def walk(
    sessions: Sessions, of: SealedTable, aim: Aim, tally: Tally, *, writes: bool, tell: Progress
) -> None:
    """Count the values of a table by their keys, and seal anew those that are due.

    Args:
        sessions: as a login that sees the rows of all tenants.
        of: the table.
        aim: how they are to be sealed.
        tally: counts them.
        writes: change rows; False: only count.
        tell: hears of the progress.
    """
    last: tuple[Any, ...] | None = None
    num_seen = 0
    while page := _page(sessions, of, last):
        last = tuple(page[-1])[: len(of.key)]
        due = [row for row in page if _take(row, of, aim, tally, writes=writes)]
        for some in _cut(due):
            with transaction(sessions) as session:
                _renew(session, some, of, aim, tally)
        num_seen += len(page)
        tell(of.name, num_seen)


def _page(sessions: Sessions, of: SealedTable, last: tuple[Any, ...] | None) -> Sequence[Found]:
    """Read the beginnings of the next rows' values, and their sizes."""
    key = [of.rows.c[name] for name in of.key]
    size = sum(
        (func.coalesce(func.pg_column_size(of.rows.c[each.name]), 0) for each in of.places), literal(0)
    )
    query = select(*key, *(each.head().label(f"head_{each.name}") for each in of.places), size.label("size"))
    if last is not None:
        bounds = [literal(value, column.type) for value, column in zip(last, key, strict=True)]
        query = query.where(tuple_(*key) > tuple_(*bounds))
    with transaction(sessions) as session:
        return session.execute(query.select_from(of.rows).order_by(*key).limit(_LOOKED_AT)).all()


def _take(row: Found, of: SealedTable, aim: Aim, tally: Tally, *, writes: bool) -> bool:
    """Count the values of a row; return True if one of them is to be sealed anew, which counts them then."""
    heads = [(each, head) for each in of.places if (head := getattr(row, f"head_{each.name}")) is not None]
    if writes and any(_is_due(each, each.key_of(head), aim) for each, head in heads):
        return True
    for each, head in heads:
        _count(row, each, each.key_of(head), of, aim, tally)
    return False


def _is_due(place: SealedPlace, name: str, aim: Aim) -> bool:
    return place.wanted(aim) not in (None, name) and aim.opens(name)


def _count(row: Found, place: SealedPlace, name: str, of: SealedTable, aim: Aim, tally: Tally) -> None:
    tally.values[of.name][name] += 1
    if not aim.opens(name):
        tally.note_unreadable(UnreadableValue(of.name, _named(row, of), place.name, name))
    elif _is_due(place, name, aim):
        tally.num_left += 1


def _cut(due: Sequence[Found]) -> Iterator[Sequence[Found]]:
    """Cut rows into what one transaction rewrites."""
    some: list[Found] = []
    num_bytes = 0
    for row in due:
        if some and (len(some) == _ROWS or num_bytes + row.size > _BYTES):
            yield some
            some, num_bytes = [], 0
        some.append(row)
        num_bytes += row.size
    if some:
        yield some


def _renew(session: Session, due: Sequence[Found], of: SealedTable, aim: Aim, tally: Tally) -> None:
    """Seal the values of these rows anew, but for rows that are gone or held by others."""
    key = [of.rows.c[name] for name in of.key]
    wanted = [tuple(row)[: len(key)] for row in due]
    query = select(*key, *(of.rows.c[each.name] for each in of.places)).where(tuple_(*key).in_(wanted))
    locked = session.execute(query.with_for_update(key_share=True, skip_locked=True)).all()
    changes: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)  # by the columns that change
    for row in locked:
        if changed := _renewed(row, of, aim, tally):
            keyed = {f"key_{name}": getattr(row, name) for name in of.key}
            changes[tuple(changed)].append(keyed | {f"new_{name}": value for name, value in changed.items()})
    for names, values in changes.items():
        session.connection().execute(_update(of, names), values)
    taken = {tuple(row)[: len(key)] for row in locked}
    for row in due:  # as they were: another transaction changes them, or has removed them
        if tuple(row)[: len(key)] not in taken:
            _take(row, of, aim, tally, writes=False)


def _renewed(row: Found, of: SealedTable, aim: Aim, tally: Tally) -> dict[str, Any]:
    """Seal the values of a row that are due; return the new ones by their columns."""
    changed: dict[str, Any] = {}
    for place in of.places:
        stored = getattr(row, place.name)
        if stored is None:
            continue
        name = place.key_of(stored if isinstance(stored, bytes | str) else "")
        if not _is_due(place, name, aim):
            _count(row, place, name, of, aim, tally)
            continue
        try:
            changed[place.name] = place.renewed(stored, aim)
        except LongbatchError:  # its bytes were changed
            tally.values[of.name][name] += 1
            tally.note_unreadable(UnreadableValue(of.name, _named(row, of), place.name, None))
        else:
            tally.num_resealed += 1
            tally.values[of.name][place.wanted(aim) or name] += 1
    return changed


def _update(of: SealedTable, names: Sequence[str]) -> Update:
    """Write the statement that stores new values of these columns, for one row of many."""
    stored = {place.name: place.stored for place in of.places}
    this = [of.rows.c[name] == bindparam(f"key_{name}", type_=of.rows.c[name].type) for name in of.key]
    new = {name: bindparam(f"new_{name}", type_=stored[name]) for name in names}
    return update(of.rows).where(*this).values(new)


def _named(row: Found, of: SealedTable) -> str:
    """Write the row's primary key."""
    return "/".join(str(value) for value in tuple(row)[: len(of.key)])
