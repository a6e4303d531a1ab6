"""Prompts that are ready before their slot is: counted, loaded and kept until their jobs start."""

import threading
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Final
from uuid import UUID

from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session, sessionmaker

from jobs import claims, texts
from jobs.bookings import Terms
from jobs.counting import PromptCounter
from jobs.database import transaction
from jobs.texts import CountedPrompt

# A look takes some milliseconds of database time; what short jobs gain from more of them is less.
_LOOK_SECONDS: Final = 0.2
# A prompt of 96k ids takes less than 400 KB, packed.
_MAX_PROMPTS: Final = 16


class LookAhead:
    """Foresees which jobs start next on one engine, and gets their token ids ready.

    It may be wrong: then the prompt is loaded when its job starts, and nothing else is lost.
    """

    def __init__(
        self, sessions: sessionmaker[Session], engine_name: str, terms: Terms, counter: PromptCounter
    ) -> None:
        self._sessions = sessions
        self._engine_name = engine_name
        self._terms = terms
        self._counter = counter
        self._ready: OrderedDict[UUID, CountedPrompt] = OrderedDict()
        self._lock = threading.Lock()
        self._looked_at = float("-inf")

    def look(self) -> None:
        """The prompts of the jobs that would start next are ready, unless they were looked for just now."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return
        with transaction(self._sessions) as session:
            following = claims.successors(session, self._engine_name, self._terms)
        for text_id in following:
            if not self._is_ready(text_id):
                with suppress(NoResultFound):  # its job was deleted meanwhile
                    self._prepare(text_id)
        self._looked_at = time.monotonic()

    def take(self, text_id: UUID) -> CountedPrompt | None:
        """The prompt with its ids, which is kept no longer; None: nobody foresaw it."""
        with self._lock:
            return self._ready.pop(text_id, None)

    def _is_ready(self, text_id: UUID) -> bool:
        with self._lock:
            return text_id in self._ready

    def _prepare(self, text_id: UUID) -> None:
        with transaction(self._sessions) as session:
            prompt = texts.counted(session, texts.load(session, text_id), self._counter)
        with self._lock:
            self._ready[text_id] = prompt
            while len(self._ready) > _MAX_PROMPTS:
                self._ready.popitem(last=False)
