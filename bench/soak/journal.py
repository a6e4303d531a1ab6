"""What callers were promised: a line for each accepted object, written as soon as it is accepted."""

import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["job", "batch", "summary", "answers"]


@dataclass(frozen=True, slots=True)
class Promise:
    """An accepted object.

    Attributes:
        id: as the API returned it.
        name: the caller's own, used once; custom_id of jobs.
        prompt: names what was asked: equal prompts have equal answers. None: none of its own.
        path: of the receiver, that hears of its end.
        is_cancelled: its caller cancels it.
        parts: lines of a batch, questions of answers.
    """

    kind: Kind
    id: str
    name: str
    prompt: str | None = None
    path: str | None = None
    is_cancelled: bool = False
    parts: int = 0


class Journal:
    """The promises of a run, kept in a file too."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._file = file.open("a")
        self._promises: list[Promise] = []

    def add(self, promise: Promise) -> None:
        """Keep a promise."""
        with self._lock:
            self._promises.append(promise)
            self._file.write(json.dumps(asdict(promise)) + "\n")
            self._file.flush()

    def read(self) -> list[Promise]:
        """Return all promises so far."""
        with self._lock:
            return list(self._promises)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
