"""Work on a batch's next lines while those before are stored; tokenizer and Postgres took turns otherwise."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar
from uuid import UUID

from jobs.files.lines import FileLine

T = TypeVar("T")

# At most so many batches have lines ready, a few megabytes each; what nobody took after a while is dropped.
_MAX_BATCHES: Final = 4
_KEPT_SECONDS: Final = 30.0


class Ahead(Generic[T]):
    """What a thread makes of the lines that come next, by batch. Used by one thread at a time.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "batch-ahead")
        self._begun: dict[UUID, tuple[object, float, Future[T]]] = {}
        self._lines: dict[UUID, tuple[int, float, Sequence[FileLine]]] = {}

    def begin(self, batch_id: UUID, key: object, make: Callable[[], T]) -> None:
        """Make it in the thread, unless that has enough to do.

        Args:
            batch_id: whose lines they are.
            key: of all that `make` depends on.
            make: reads no database.
        """
        now = self._clock()
        for other, (_, since, _) in list(self._begun.items()):
            if now - since > _KEPT_SECONDS:
                self._begun.pop(other)[2].cancel()
        if len(self._begun) < _MAX_BATCHES:
            self._begun[batch_id] = key, now, self._pool.submit(make)

    def take(self, batch_id: UUID, key: object, make: Callable[[], T]) -> T:
        """Return what was made ahead under this key, once it is ready; make it now if nothing was."""
        known, _, found = self._begun.pop(batch_id, (None, 0.0, None))
        if found is None:
            return make()
        if known != key:
            found.cancel()
            return make()
        return found.result()

    def keep(self, batch_id: UUID, lines: Sequence[FileLine], *, start: int) -> None:
        """Keep lines that were read, for the slice that begins with them, unless there is enough to keep.

        Args:
            batch_id: whose lines they are.
            lines: one slice.
            start: offset of the first one in the file.
        """
        now = self._clock()
        self._lines = {other: kept for other, kept in self._lines.items() if now - kept[1] <= _KEPT_SECONDS}
        if len(self._lines) < _MAX_BATCHES:
            self._lines[batch_id] = start, now, lines

    def kept(self, batch_id: UUID, *, start: int) -> Sequence[FileLine]:
        """Return, once, the lines that were kept from this offset on; none if there are none."""
        known, _, lines = self._lines.pop(batch_id, (None, 0.0, ()))
        return lines if known == start else ()
