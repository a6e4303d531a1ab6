"""The opening of a run: its shortest document starts first, and its duration is estimated meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from longbatch.documents.sources import SourceFile, Survey
from longbatch.documents.trees import Trees
from longbatch.flows import Flow, Pause

# The others wait for the first result at most so long, and at most this share of the run's duration.
MAX_WAIT_SECONDS: Final = 10.0
_MAX_WAIT_SHARE: Final = 0.02
_LOOK_SECONDS: Final = 0.05
_NOT_ESTIMATED: Final = frozenset({"on_gap", "priority"})  # of a request; they change no duration


@dataclass
class Opening:
    """What the documents of a run share until its first result; flows of several may use it at once.

    The engine reads prompts in chunks, and while it does, a running answer gets hardly a token. So the first
    result is early only if the others do not start right after the shortest document. They are uploaded and
    their texts are extracted meanwhile.

    Attributes:
        num_sampled: documents whose texts give the estimate, scaled by bytes to all.
        holds: the other documents wait for the shortest one.
        clock: seconds.
    """

    trees: Trees
    fields: dict[str, object]
    survey: Survey
    num_sampled: int
    holds: bool = True
    clock: Callable[[], float] = time.monotonic
    _sampled: dict[SourceFile, str | None] = field(default_factory=dict)
    _is_over: bool = False
    _started_at: float | None = None  # when the shortest one did
    _max_wait: float = MAX_WAIT_SECONDS

    def uploaded(self, source: SourceFile, document_id: str) -> None:
        """Take note of a document that is not finished yet."""
        self._sampled.setdefault(source, document_id)

    def turn(self, source: SourceFile) -> Flow[None]:
        """Wait until the document may start."""
        while self.holds and self.survey.shortest not in (None, source) and not self._is_over:
            if self._started_at is not None and self.clock() >= self._started_at + self._max_wait:
                return
            yield Pause(_LOOK_SECONDS)

    def started(self, source: SourceFile) -> None:
        """Take note of a document whose tree exists: made just now, or by an earlier run."""
        if source == self.survey.shortest:
            self._started_at = self.clock()
            self._is_over |= source not in self._sampled
        self._sampled.setdefault(source, None)

    def ended(self, source: SourceFile, *, is_completed: bool) -> None:
        """Take note of an outcome: of the first result, and of a shortest document that has none."""
        self._sampled.setdefault(source, None)
        self._is_over |= is_completed or source == self.survey.shortest

    def estimate(self) -> Flow[float | None]:
        """Estimate the seconds until the run ends, once the first documents have texts.

        Returns:
            None if no engine is up, or if nothing is left to do.
        """
        fields = {name: value for name, value in self.fields.items() if name not in _NOT_ESTIMATED}
        before = yield from self.trees.queued_seconds(fields)
        while len(self._sampled) < self.num_sampled:
            yield Pause(_LOOK_SECONDS)
        tokens, num_bytes = list[int](), 0
        for source, document_id in list(self._sampled.items()):
            if document_id is not None:
                document = yield from self.trees.extracted(document_id)
                if document["state"] == "ready":
                    tokens.append(max(1, document["tokens"]))
                    num_bytes += source.num_bytes
        if not tokens or before is None:
            return None
        # Some may have started by now, so only the difference to the queue counts.
        queued = yield from self.trees.queued_seconds(fields)
        whole = yield from self.trees.seconds_of(tokens, fields)
        if queued is None or whole is None:
            return None
        of_all = self.survey.num_bytes / num_bytes if num_bytes else 1.0
        seconds = before + max(0, whole - queued) * max(1.0, of_all)
        self._max_wait = min(MAX_WAIT_SECONDS, _MAX_WAIT_SHARE * seconds)
        return seconds
