"""Write the traces of what has ended: read from rows, sent by a thread of its own that no job waits for."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.traces import ended
from jobs.traces.ended import Taken
from jobs.traces.span import Span
from worker.duties import Duty, ServiceContext

if TYPE_CHECKING:
    from jobs.traces.export import Collector

# Spans of webhooks that wait for the collector; beyond it the oldest are dropped.
_MAX_WAITING: Final = 2048
_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 60.0


class TraceWriter:
    """Writes traces, one request to the collector at a time.

    What the collector does not take stays in the database, and is tried again after a pause. Should this
    process be killed while it sends, the collector may lack the traces of that one round.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        collector: "Collector",
        *,
        is_stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without reading anything.

        Args:
            sessions: opens a session.
            collector: gets the spans.
            is_stopping: the process ends, so nothing waits for the collector.
            clock: a monotonic clock, in seconds.
        """
        self._sessions = sessions
        self._collector = collector
        self._is_stopping = is_stopping
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=_MAX_WAITING)
        self._num_failures = 0
        self._not_before = float("-inf")

    def add(self, span: Span) -> None:
        """Leave a span to the next round; any thread may. Returns at once."""
        self._spans.append(span)

    def run_once(self) -> bool:
        """Write what has ended, unless the collector just failed. Returns True if there may be more."""
        if self._clock() < self._not_before:
            return False
        with transaction(self._sessions) as session:
            taken = ended.take(session, limit=max(1, ended.MAX_ROWS >> self._num_failures))
        added = [self._spans.popleft() for _ in range(len(self._spans))]
        if not taken.row_ids and not added:
            return False
        if self._collector.send([*taken.spans, *added], is_stopping=self._is_stopping):
            self._num_failures = max(0, self._num_failures - 1)
            return taken.is_full
        self._put_off(taken, added)
        return False

    def finish(self, *, within: float) -> None:
        """Send the spans that no row holds, for so many seconds at most; call it once all rounds are over."""
        until = self._clock() + within
        if self._spans:
            self._collector.send(list(self._spans), is_stopping=lambda: self._clock() > until)
        self._collector.close()

    def _put_off(self, taken: Taken, added: list[Span]) -> None:
        pause = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**self._num_failures)
        self._num_failures = min(self._num_failures + 1, 10)
        self._not_before = self._clock() + pause
        self._spans.extendleft(reversed(added[: _MAX_WAITING - len(self._spans)]))
        with transaction(self._sessions) as session:
            ended.give_back(session, taken)


def duties(context: ServiceContext, writer: TraceWriter | None) -> Iterator[Duty]:
    """List the duty of traces, if there is a collector."""
    if writer is not None:
        every = context.settings.maintenance.trace_seconds
        yield Duty("traces", writer.run_once, every, wakes=("traces",))
