"""What refusals prove: a filter or limit refuses one prompt, or the engine refuses all for a while."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final
from uuid import UUID

from jobs.errors import EngineBusyError, EngineError, EngineForbidsError

# A job that was refused as often in a row explains its refusals itself; they say nothing of the engine.
_SUSPECT_AFTER: Final = 3
# Jobs that end elsewhere stay here until newer ones push them out.
_MAX_KEPT: Final = 1000


class Verdict(Enum):
    """What a refusal is about, by all that is known."""

    ENGINE = "the engine, as far as is known"
    PERHAPS_PROMPT = "this prompt, or a bad moment: the engine answers other jobs"
    PROMPT = "this prompt"


@dataclass(frozen=True, slots=True)
class Patience:
    """How much evidence a refusal needs that may have passed by the next try, or that only probes speak for.

    Attributes:
        tries: refusals of the job in a row, with an answer to something else before each.
        span: from the first of them to the last, so that an outage passes first.
    """

    tries: int = 10
    span: timedelta = timedelta(minutes=15)


@dataclass(slots=True)
class _Refused:
    """A refused job, and what the engine did since its last refusal.

    Attributes:
        in_a_row: its refusals since the engine answered it.
        since: when its evidence begins, in seconds of a monotonic clock.
        num_probes: probes that the engine had answered.
        num_told: refusals before which the engine answered something else.
        others_refused: another job was refused that does not explain its refusals itself.
        any_refused: another job was refused.
    """

    in_a_row: int
    since: float
    num_probes: int
    num_told: int = 0
    others_answered: bool = False
    others_refused: bool = False
    any_refused: bool = False


class Refusals:
    """The evidence of one worker about its engine. Used on the engine loop alone."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._jobs: dict[UUID, _Refused] = {}

    def answered(self, job_id: UUID) -> None:
        """Note that the engine answered a job's request."""
        self._jobs.pop(job_id, None)
        for each in self._jobs.values():
            each.others_answered = True

    def refused(self, job_id: UUID, error: EngineError, *, now: float, num_probes: int) -> Verdict:
        """Note that the engine refused a job's request, and judge what the refusal is about.

        A first refusal proves nothing. A 403 is about the prompt if since the job's last refusal the engine
        answered another job and refused no other. A "not now" needs that again and again, for a while; so
        does a 403 where the engine answered probes alone, and then no other job may be refused at all.

        Args:
            job_id: the job.
            error: the refusal.
            now: seconds of a monotonic clock.
            num_probes: how many probes the engine has answered so far.
        """
        last = self._jobs.pop(job_id, None) or _Refused(0, now, num_probes)
        for each in self._jobs.values():
            each.any_refused = True
            each.others_refused |= last.in_a_row < _SUSPECT_AFTER
        answers_others = last.others_answered and not last.others_refused
        is_forbidden = isinstance(error, EngineForbidsError)
        is_busy = isinstance(error, EngineBusyError)
        verdict = Verdict.PERHAPS_PROMPT if is_busy and answers_others else Verdict.ENGINE
        row = self._continued(last, now, num_probes, probes_count=is_forbidden)
        is_slowly_proved = (is_busy or is_forbidden) and self._is_enough(row, now)
        if is_slowly_proved or (is_forbidden and answers_others):
            verdict, row = Verdict.PROMPT, _Refused(row.in_a_row, now, num_probes)
        self._jobs[job_id] = row
        if len(self._jobs) > _MAX_KEPT:
            del self._jobs[next(iter(self._jobs))]
        return verdict

    def _continued(self, last: _Refused, now: float, num_probes: int, *, probes_count: bool) -> _Refused:
        """Add a refusal to its job's row; one of another job begins the evidence anew."""
        in_a_row = last.in_a_row + 1
        if last.others_refused or (last.any_refused and not last.others_answered):
            return _Refused(in_a_row, now, num_probes)
        is_told = last.others_answered or (probes_count and num_probes > last.num_probes)
        return _Refused(in_a_row, last.since, num_probes, last.num_told + is_told)

    def _is_enough(self, row: _Refused, now: float) -> bool:
        span = timedelta(seconds=now - row.since)
        return row.num_told >= self._patience.tries and span >= self._patience.span
