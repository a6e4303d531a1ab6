"""The turns of work that serves all tenants: one row at a time in each thread, under a lease."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, Generic, TypeVar
from uuid import UUID

from jobs import telemetry, turns
from jobs.database import is_full, transaction
from jobs.errors import StorageFullError, UnavailableError
from jobs.turns import Turn
from jobs.turns.work import Ending, InterruptedWorkError, Interruption, Sessions, SetWork, Work
from worker.loop import Loop
from worker.rounds import do_each

_RENEWALS: Final = 3  # in the time of a lease
# How long a row waits for something unavailable: it may be the only row that needs it.
_UNAVAILABLE_FOR: Final = timedelta(seconds=30)
_MAX_DOUBLINGS: Final = 4  # of that pause: up to eight minutes
_MAX_REMEMBERED: Final = 1000  # rows; above it the oldest start over
# This many consecutive rows of a kind: the rows are not the cause.
_UNAVAILABLE_TO_ALL: Final = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkResult(Generic[T]):
    """The result of the work on one row that this worker claimed.

    Attributes:
        result: what the work wrote; None if this worker wrote nothing.
    """

    result: T | None


@dataclass(frozen=True, slots=True)
class SetResult(Generic[T]):
    """The result of the work on rows that this worker claimed together.

    Attributes:
        num_together: rows that were done in one go.
        others: what the work wrote for rows that were done alone.
    """

    num_together: int
    others: Sequence[T]


@dataclass(frozen=True, slots=True)
class _Held:
    """Work under way, with its lease."""

    turn: Turn
    lease: timedelta
    watch: Interruption


class WorkRunner:
    """A runner of work on waiting rows, which keeps the leases of all work under way in this process.

    Attributes:
        loop: renews the leases; stop it after every thread that takes turns.
    """

    def __init__(self, sessions: Sessions, *, shortest_lease: timedelta) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._is_stopping = False
        self._unavailable: dict[UUID, int] = {}
        self._num_unavailable: Counter[str] = Counter()
        interval = shortest_lease.total_seconds() / _RENEWALS
        self.loop = Loop("turn-leases", self.renew, interval=interval)

    def run_next(self, work: Work[T]) -> WorkResult[T] | None:
        """Claim the row whose turn it is and work on it.

        Returns:
            None if no row waits.

        Raises:
            UnavailableError: several consecutive rows failed with it; try again later, the rows wait.
        """
        with transaction(self._sessions) as session:
            turn = turns.claim(session, work.kind, lease=work.lease)
        if turn is None:
            return None
        with self._keeping(turn, work.lease) as watch:
            return WorkResult(self._work_on(work, turn, watch))

    def run_set(self, work: SetWork[T]) -> SetResult[T] | None:
        """Claim the row whose turn it is, with other small ones if it is small, and work on them together.

        Returns:
            None if no row waits.

        Raises:
            UnavailableError: as `run_next`.
        """
        with transaction(self._sessions) as session:
            taken = turns.claim_set(session, work.kind, work.room, lease=work.lease)
        if not taken:
            return None
        with ExitStack() as held:
            watched = [(turn, held.enter_context(self._keeping(turn, work.lease))) for turn in taken]
            done = self._work_together(work, taken) if len(taken) > 1 else ()
            rest = [self._work_on(work, turn, watch) for turn, watch in watched if turn.row_id not in done]
        return SetResult(len(done), [each for each in rest if each is not None])

    def _work_together(self, work: SetWork[T], taken: Sequence[Turn]) -> Collection[UUID]:
        try:
            return work.do_together(self._sessions, taken)
        except (SystemExit, KeyboardInterrupt):
            with suppress(Exception):  # otherwise the leases run out
                for turn in taken:
                    self._release(turn)
            raise
        except BaseException as error:  # noqa: BLE001  # each row is then tried alone; a Rust panic is not an Exception
            _log(work, taken[0], error)
            return ()

    def run_some(
        self, work: Work[T], *, limit: int, is_stopping: Callable[[], bool] = lambda: False
    ) -> list[WorkResult[T]]:
        """Work on up to `limit` waiting rows, one after another. Postponed rows count too."""
        done: list[WorkResult[T]] = []
        while len(done) < limit and not is_stopping() and (taken := self.run_next(work)):
            done.append(taken)
        return done

    def renew(self) -> None:
        """Renew every held lease, and end the work whose lease is lost.

        A failure to renew one kind does not affect the others.
        """
        by_kind: dict[tuple[str, timedelta], list[_Held]] = defaultdict(list)
        for each in self._all():
            by_kind[each.turn.kind.name, each.lease].append(each)
        do_each([partial(self._renew, held, lease) for (_, lease), held in by_kind.items()])

    def _renew(self, held: Sequence[_Held], lease: timedelta) -> None:
        with transaction(self._sessions) as session:
            kept = turns.renew(session, [each.turn for each in held], lease=lease)
        for each in held:
            if each.turn.lease_id not in kept:
                each.watch.end(Ending.LOST)

    def interrupt(self) -> None:
        """End all work under way, and any that starts from now on."""
        with self._lock:
            self._is_stopping = True
        for each in self._all():
            each.watch.end(Ending.STOPPING)

    def give_back(self) -> None:
        """Release all rows still under way. Their threads may take long to end, and then write nothing."""
        for each in self._all():
            with suppress(Exception):  # the lease then runs out
                self._release(each.turn)

    def _all(self) -> Sequence[_Held]:
        with self._lock:
            return list(self._held.values())

    @contextmanager
    def _keeping(self, turn: Turn, lease: timedelta) -> Iterator[Interruption]:
        watch = Interruption()
        with self._lock:
            self._held[id(watch)] = _Held(turn, lease, watch)
            is_stopping = self._is_stopping
        if is_stopping:
            watch.end(Ending.STOPPING)
        try:
            yield watch
        finally:
            with self._lock:
                del self._held[id(watch)]

    def _work_on(self, work: Work[T], turn: Turn, watch: Interruption) -> T | None:
        return self._give_up(work, turn) if turn.is_spent else self._work(work, turn, watch)

    def _work(self, work: Work[T], turn: Turn, watch: Interruption) -> T | None:
        try:
            result = work.do(self._sessions, turn, watch)
        except InterruptedWorkError:
            self._release(turn)
            return None
        except UnavailableError as error:
            self._meet_unavailable(work, turn, error)
            return None
        except (SystemExit, KeyboardInterrupt):
            with suppress(Exception):  # otherwise its lease runs out
                self._release(turn)
            raise
        except BaseException as error:  # noqa: BLE001  # one row must not stop all others; a Rust panic is not an Exception
            if is_full(error):
                self._meet_unavailable(work, turn, StorageFullError())
                return None
            _log(work, turn, error)
        else:
            self._note_available(turn)
            return result
        if turn.is_last:
            return self._give_up(work, turn)
        self._back_off(turn)
        return None

    def _meet_unavailable(self, work: Work[T], turn: Turn, error: UnavailableError) -> None:
        """Postpone the row, whose fault it is not; raise the error if several rows met one."""
        _log(work, turn, error)
        if self._put_off(turn) >= _UNAVAILABLE_TO_ALL:
            raise error

    def _put_off(self, turn: Turn) -> int:
        """Release the row for longer each time. Returns how many rows of its kind in a row were postponed."""
        with self._lock:
            num_times = self._unavailable.pop(turn.row_id, 0)
            self._unavailable[turn.row_id] = num_times + 1
            if len(self._unavailable) > _MAX_REMEMBERED:
                del self._unavailable[next(iter(self._unavailable))]
            self._num_unavailable[turn.kind.name] += 1
            num_in_a_row = self._num_unavailable[turn.kind.name]
        self._release(turn, after=_UNAVAILABLE_FOR * 2 ** min(num_times, _MAX_DOUBLINGS))
        return num_in_a_row

    def _note_available(self, turn: Turn) -> None:
        with self._lock:
            self._unavailable.pop(turn.row_id, None)
            self._num_unavailable[turn.kind.name] = 0

    def _give_up(self, work: Work[T], turn: Turn) -> T | None:
        try:
            with transaction(self._sessions) as session:
                return work.give_up(session, turn)
        except Exception as error:  # noqa: BLE001  # a row that cannot even end must not stop all others
            _log(work, turn, error)
        self._back_off(turn)
        return None

    def _back_off(self, turn: Turn) -> None:
        with transaction(self._sessions) as session:
            turns.back_off(session, turn)

    def _release(self, turn: Turn, *, after: timedelta | None = None) -> None:
        with transaction(self._sessions) as session:
            turns.release(session, turn, after=after)


def _log(work: Work[object], turn: Turn, error: BaseException) -> None:
    name, value = work.name_row(turn.row_id)
    attempts = {"attempt": turn.attempt, "max_attempts": turn.kind.max_attempts}
    telemetry.log_failure(telemetry.TURN_FAILED, error, kind=turn.kind.name, **attempts, **{name: value})
