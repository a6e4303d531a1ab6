"""Prompt prefetch: prompts are loaded and counted before their jobs start."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.exc import NoResultFound, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import transaction
from jobs.prompts import store
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import CountedPrompt
from jobs.queries import QueuedJob
from jobs.scheduling import previews
from jobs.scheduling.previews import Preview
from jobs.scheduling.ranking import Ranked
from jobs.scheduling.sizing import ClaimPolicy

# A preview costs a few milliseconds of database time; running it more often costs more than short jobs gain.
_LOOK_SECONDS: Final = 0.2
# While at least half of its candidates are left, a preview may be this old before the next one.
_LAZY_SECONDS: Final = 0.5
# The same where many jobs start, or have come since: half of its candidates have started, or it has none.
_NEW_SECONDS: Final = 0.05
# The queue changes little in this time; jobs that arrive meanwhile are seen by the next preview.
_FRESH_SECONDS: Final = 1.0
# A prompt of 96k ids takes less than 400 KB, packed: at least 16 of the longest, and many short ones.
_MAX_BYTES: Final = 16 * 400_000
_TOGETHER: Final = 32  # prompts read by one statement
# Most tokens of prompts that are read while an engine's row is locked: some 64 KB.
_MAX_TOKENS: Final = 16_384


class PromptPrefetcher:
    """The prefetcher of one engine: predicts which jobs start next and loads their token ids.

    A wrong prediction only means that the prompt is loaded when its job starts.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        engine_name: str,
        policy: Callable[[], ClaimPolicy],
        counter: PromptCounter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._sessions = sessions
        self._engine_name = engine_name
        self._policy = policy
        self._counter = counter
        self._ready: OrderedDict[UUID, CountedPrompt] = OrderedDict()
        self._num_bytes = 0
        self._unreadable: set[UUID] = set()
        self._started: set[UUID] = set()  # since the last preview began to read: it may have them yet
        self._lock = threading.Lock()
        self._preview = Preview()
        self._found: frozenset[UUID] = frozenset()
        self._looked_at = self._read_at = float("-inf")

    def refresh(self) -> None:
        """Load the prompts of the jobs that would start next, unless the last preview is recent."""
        if self.due_in():
            return
        with self._lock:
            self._started.clear()
        with transaction(self._sessions) as session:
            preview = previews.preview_claims(session, self._engine_name, self._policy())
        with self._lock:
            self._preview = preview
            self._drop_started()
            self._looked_at = self._read_at = self._clock()
            self._found = frozenset(each.job.id for each in preview.candidates)
        wanted = self.missing(text_id for text_id in preview.text_ids if text_id not in self._unreadable)
        self.load(wanted)
        for text_id in self.missing(wanted):
            self._try(text_id)
        self._unreadable.intersection_update(preview.text_ids)

    def due_in(self) -> float:
        """Return in how many seconds the last preview is too old for the present candidates."""
        with self._lock:
            num_left = sum(each.job.id in self._found for each in self._preview.candidates)
            if 2 * num_left > len(self._found):
                oldest = _LAZY_SECONDS
            elif self._preview.candidates or len(self._found) > 1:
                oldest = _NEW_SECONDS
            else:
                oldest = _LOOK_SECONDS
            return max(0.0, self._looked_at + oldest - self._clock())

    def keep(self, candidates: Sequence[Ranked]) -> None:
        """Let later claims choose from these, which one has just read and left over."""
        with self._lock:
            self._preview = replace(self._preview, candidates=candidates)
            self._read_at = self._clock()

    def missing(self, text_ids: Iterable[UUID]) -> list[UUID]:
        """Return those of these prompts that are not ready."""
        with self._lock:
            return [each for each in text_ids if each not in self._ready]

    def load(self, text_ids: Sequence[UUID]) -> None:
        """Make those of these prompts ready that are counted already, many with one statement.

        A bad one or a missing database stops it: then each is read alone, here or when its job runs.
        """
        for start in range(0, len(text_ids), _TOGETHER):
            self._keep_all(partial(self._load, text_ids[start : start + _TOGETHER]))

    def read_with(self, session: Session, jobs: Sequence[QueuedJob]) -> None:
        """Make those of these jobs' prompts ready that are not yet, in the session's transaction.

        Long ones are left to `load`, after the transaction: it holds the engine's row.
        """
        short = _first_short(jobs)
        missing = self.missing(each.text_id for each in short)
        if missing:
            self._keep_all(partial(self._read, session, missing))

    def candidates(self) -> Preview | None:
        """Return the jobs that a claim may choose from without reading the queue.

        Returns:
            None if the queue was read too long ago.
        """
        with self._lock:
            is_fresh = self._clock() - self._read_at < _FRESH_SECONDS
            return self._preview if is_fresh else None

    def forget(self, job_ids: Iterable[UUID]) -> None:
        """Remove these jobs, which have started, from the candidates."""
        with self._lock:
            self._started.update(job_ids)
            self._drop_started()

    def take(self, text_id: UUID) -> CountedPrompt | None:
        """Remove and return a prefetched prompt. Returns None if it was not predicted."""
        with self._lock:
            prompt = self._ready.pop(text_id, None)
            self._num_bytes -= len(prompt.packed_ids) if prompt else 0
            return prompt

    def _load(self, text_ids: Sequence[UUID]) -> Mapping[UUID, CountedPrompt]:
        with transaction(self._sessions) as session:
            return self._read(session, text_ids)

    def _read(self, session: Session, text_ids: Sequence[UUID]) -> Mapping[UUID, CountedPrompt]:
        return store.counts_of(store.read(session, text_ids).values(), self._counter)

    def _keep_all(self, read: Callable[[], Mapping[UUID, CountedPrompt]]) -> None:
        try:
            found = read()
        except Exception as error:  # noqa: BLE001  # any kind of bad prompt
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="load", error=type(error).__name__)
            return
        for text_id, prompt in found.items():
            self._keep(text_id, prompt)

    def _drop_started(self) -> None:
        left = [each for each in self._preview.candidates if each.job.id not in self._started]
        self._preview = replace(self._preview, candidates=left)

    def _try(self, text_id: UUID) -> None:
        """Prepare one prompt. A bad prompt fails only its own job, when that job starts."""
        try:
            self._prepare(text_id)
        except (NoResultFound, OperationalError):  # its job was deleted, or the database is down
            return
        except Exception as error:  # noqa: BLE001  # one bad prompt must not stop the others: its job reports it
            self._unreadable.add(text_id)
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="prefetch", error=type(error).__name__)

    def _prepare(self, text_id: UUID) -> None:
        with transaction(self._sessions) as session:
            prompt = store.counted(session, store.load(session, text_id), self._counter)
        self._keep(text_id, prompt)

    def _keep(self, text_id: UUID, prompt: CountedPrompt) -> None:
        with self._lock:
            replaced = self._ready.pop(text_id, None)
            self._ready[text_id] = prompt
            self._num_bytes += len(prompt.packed_ids) - (len(replaced.packed_ids) if replaced else 0)
            while self._num_bytes > _MAX_BYTES:
                _, oldest = self._ready.popitem(last=False)
                self._num_bytes -= len(oldest.packed_ids)


def _first_short(jobs: Sequence[QueuedJob]) -> Iterator[QueuedJob]:
    """Yield jobs until their prompts are too long together to be read while an engine's row is locked."""
    num_tokens = 0
    for each in jobs:
        num_tokens += each.prompt_tokens
        if num_tokens > _MAX_TOKENS:
            return
        yield each
