"""Prompt prefetch: prompts are loaded and counted before their jobs start."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final
from uuid import UUID

from sqlalchemy.exc import NoResultFound, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import transaction
from jobs.prompts import store
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import CountedPrompt
from jobs.scheduling import claims
from jobs.scheduling.claims import Preview
from jobs.scheduling.sizing import ClaimPolicy

# A preview costs a few milliseconds of database time; running it more often costs more than short jobs gain.
_LOOK_SECONDS: Final = 0.2
# The queue changes little in this time; jobs that arrive meanwhile are seen by the next preview.
_FRESH_SECONDS: Final = 1.0
# A prompt of 96k ids takes less than 400 KB, packed.
_MAX_PROMPTS: Final = 16


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
    ) -> None:
        self._sessions = sessions
        self._engine_name = engine_name
        self._policy = policy
        self._counter = counter
        self._ready: OrderedDict[UUID, CountedPrompt] = OrderedDict()
        self._unreadable: set[UUID] = set()
        self._lock = threading.Lock()
        self._preview = Preview()
        self._looked_at = float("-inf")

    def refresh(self) -> None:
        """Load the prompts of the jobs that would start next, unless the last preview is recent."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        with transaction(self._sessions) as session:
            preview = claims.preview_claims(session, self._engine_name, self._policy())
        with self._lock:
            self._preview, self._looked_at = preview, time.monotonic()
        for text_id in preview.text_ids:
            if not self._is_ready(text_id) and text_id not in self._unreadable:
                self._try(text_id)
        self._unreadable.intersection_update(preview.text_ids)

    def candidates(self) -> Preview | None:
        """Return the jobs that a claim may choose from without reading the queue.

        Returns:
            None if the queue was read too long ago.
        """
        with self._lock:
            is_fresh = time.monotonic() - self._looked_at < _FRESH_SECONDS
            return self._preview if is_fresh else None

    def forget(self, job_ids: Iterable[UUID]) -> None:
        """Remove these jobs, which have started, from the candidates."""
        started = set(job_ids)
        with self._lock:
            left = [each for each in self._preview.candidates if each.job.id not in started]
            self._preview = replace(self._preview, candidates=left)

    def take(self, text_id: UUID) -> CountedPrompt | None:
        """Remove and return a prefetched prompt. Returns None if it was not predicted."""
        with self._lock:
            return self._ready.pop(text_id, None)

    def _is_ready(self, text_id: UUID) -> bool:
        with self._lock:
            return text_id in self._ready

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
        with self._lock:
            self._ready[text_id] = prompt
            while len(self._ready) > _MAX_PROMPTS:
                self._ready.popitem(last=False)
