"""Prompt prefetch: prompts are loaded before their jobs start."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
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

# A prompt of 96k ids takes less than 400 KB, packed: at least 16 of the longest, and many short ones.
_MAX_BYTES: Final = 16 * 400_000
# Prompt tokens loaded ahead; the rest is room for prompts whose runs have not taken them yet.
_MAX_TOKENS: Final = 12 * 96_000
_TOGETHER: Final = 32  # prompts read by one statement


class PromptPrefetcher:
    """The prompts of the head of the queue, loaded beside the ticks.

    A job that starts without its prompt loads it then.
    """

    def __init__(self, sessions: sessionmaker[Session], counter: PromptCounter) -> None:
        self._sessions = sessions
        self._counter = counter
        self._expected: Sequence[UUID] = ()
        self._ready: OrderedDict[UUID, CountedPrompt] = OrderedDict()
        self._num_bytes = 0
        self._unreadable: set[UUID] = set()
        self._lock = threading.Lock()

    def expect(self, jobs: Iterable[QueuedJob]) -> None:
        """Prefetch the prompts of these queued jobs, in this order, in the next round."""
        text_ids, num_tokens = list[UUID](), 0
        for each in jobs:
            num_tokens += each.prompt_tokens
            if num_tokens > _MAX_TOKENS:
                break
            text_ids.append(each.text_id)
        self._expected = text_ids

    def refresh(self) -> None:
        """Load the prompts that are expected and not ready; those that are not counted, one by one."""
        expected = self._expected
        self._unreadable.intersection_update(expected)
        self.load(self.missing(each for each in expected if each not in self._unreadable))
        for text_id in self.missing(each for each in expected if each not in self._unreadable):
            self._try(text_id)

    def missing(self, text_ids: Iterable[UUID]) -> list[UUID]:
        """Return those of these prompts that are not ready."""
        with self._lock:
            return [each for each in text_ids if each not in self._ready]

    def load(self, text_ids: Sequence[UUID]) -> None:
        """Make those of these prompts ready that are counted already, many with one statement.

        A bad one or a missing database stops it: then each is read alone, here or when its job runs.
        """
        for start in range(0, len(text_ids), _TOGETHER):
            try:
                with transaction(self._sessions) as session:
                    texts = store.read(session, text_ids[start : start + _TOGETHER])
                    found = store.counts_of(texts.values(), self._counter)
            except Exception as error:  # noqa: BLE001  # any kind of bad prompt
                telemetry.logger().warning(telemetry.LOOP_FAILED, loop="load", error=type(error).__name__)
                continue
            for text_id, prompt in found.items():
                self._keep(text_id, prompt)

    def take(self, text_id: UUID) -> CountedPrompt | None:
        """Remove and return a prefetched prompt. Returns None if it is not ready."""
        with self._lock:
            prompt = self._ready.pop(text_id, None)
            self._num_bytes -= len(prompt.packed_ids) if prompt else 0
            return prompt

    def _try(self, text_id: UUID) -> None:
        """Load and count one prompt. A bad prompt fails only its own job, when that job starts."""
        try:
            with transaction(self._sessions) as session:
                prompt = store.counted(session, store.load(session, text_id), self._counter)
        except (NoResultFound, OperationalError):  # its job was deleted, or the database is down
            return
        except Exception as error:  # noqa: BLE001  # one bad prompt must not stop the others: its job reports it
            self._unreadable.add(text_id)
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="prefetch", error=type(error).__name__)
            return
        self._keep(text_id, prompt)

    def _keep(self, text_id: UUID, prompt: CountedPrompt) -> None:
        with self._lock:
            replaced = self._ready.pop(text_id, None)
            self._ready[text_id] = prompt
            self._num_bytes += len(prompt.packed_ids) - (len(replaced.packed_ids) if replaced else 0)
            while self._num_bytes > _MAX_BYTES:
                _, oldest = self._ready.popitem(last=False)
                self._num_bytes -= len(oldest.packed_ids)
