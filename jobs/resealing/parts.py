"""Sealed parts of files in a directory or bucket: written anew in their places, one at a time.

A part's file is locked meanwhile, which keeps others from removing the file with its parts: what was removed
must not come back. It also keeps a second command away from the part.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, select, tuple_
from sqlalchemy.orm import Session

from jobs.database import transaction
from jobs.files import INPUT
from jobs.files.storage import BytesLostError, PartStore
from jobs.models import File, FilePart
from jobs.resealing.places import Aim
from jobs.resealing.rows import Progress, Sessions
from jobs.resealing.tally import PLAIN, Tally, UnreadableValue
from jobs.sealing.content import ContentUnreadableError, key_name
from jobs.states.file import FileState

PARTS: Final = "file_parts (in the store)"
_LOOKED_AT: Final = 500

Found = Row[*tuple[Any, ...]]


def walk(
    sessions: Sessions, store: PartStore, aim: Aim, tally: Tally, *, writes: bool, tell: Progress
) -> None:
    """Count the parts in a store by their keys, and seal anew those that are due; as `rows.walk`.

    Raises:
        UnavailableError: the store does not answer; what was done stays.
    """
    last: Found | None = None
    num_seen = 0
    while page := _page(sessions, last):
        last = page[-1]
        for part in page:
            _do(sessions, store, part, aim, tally, writes=writes)
        num_seen += len(page)
        tell(PARTS, num_seen)


def _page(sessions: Sessions, last: Found | None) -> Sequence[Found]:
    place = (FilePart.file_id, FilePart.start)
    query = select(*place, FilePart.key).where(FilePart.key.is_not(None))
    if last is not None:
        query = query.where(tuple_(*place) > (last.file_id, last.start))
    with transaction(sessions) as session:
        return session.execute(query.order_by(*place).limit(_LOOKED_AT)).all()


def _do(sessions: Sessions, store: PartStore, part: Found, aim: Aim, tally: Tally, *, writes: bool) -> None:
    name: str | None = None
    try:
        name = key_name(store.head(part.key)) or PLAIN
        if name == aim.content:
            if writes:
                store.tidy(part.key)
            tally.values[PARTS][name] += 1
        elif not aim.opens(name):
            raise ContentUnreadableError  # noqa: TRY301  # as one that fails to open
        elif not writes or not _reseal(sessions, store, part):
            tally.values[PARTS][name] += 1
            tally.num_left += 1
        else:
            tally.values[PARTS][aim.content] += 1
            tally.num_resealed += 1
    except (BytesLostError, ContentUnreadableError):
        if not _is_there(sessions, part):
            return  # removed meanwhile
        if name is not None:
            tally.values[PARTS][name] += 1
        unknown = name if name is not None and not aim.opens(name) else None
        tally.note_unreadable(UnreadableValue(PARTS, f"{part.file_id}/{part.start}", "key", unknown))


def _reseal(sessions: Sessions, store: PartStore, part: Found) -> bool:
    """Seal a part anew; return False if another transaction holds its file."""
    with transaction(sessions) as session:
        is_rewritten = (File.state == FileState.GROWING) & (File.purpose == INPUT)  # truncated from outside
        file = select(File.id).where(File.id == part.file_id, ~is_rewritten)
        if session.scalar(file.with_for_update(key_share=True, skip_locked=True)) is None:
            return False
        if not _names(session, part):
            return False
        store.reseal(part.key)
        return True


def _is_there(sessions: Sessions, part: Found) -> bool:
    with transaction(sessions) as session:
        return _names(session, part)


def _names(session: Session, part: Found) -> bool:
    """Return True if a row still names the part."""
    row = select(FilePart.key).where(FilePart.file_id == part.file_id, FilePart.start == part.start)
    return bool(session.scalar(row) == part.key)
