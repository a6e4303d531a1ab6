"""What refusals with status 403 prove: a filter that forbids one prompt, or an engine that forbids all."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

# A job that was refused as often in a row explains its refusals itself; they say nothing of the engine.
_SUSPECT_AFTER: Final = 3
# Jobs that end elsewhere stay here until newer ones push them out.
_MAX_KEPT: Final = 1000


@dataclass(slots=True)
class _Refused:
    """A refused job, and what the engine did with other jobs since its last refusal."""

    in_a_row: int
    others_answered: bool = False
    others_refused: bool = False


class Refusals:
    """The evidence of one worker about its engine. Used on the engine loop alone."""

    def __init__(self) -> None:
        self._jobs: dict[UUID, _Refused] = {}

    def answered(self, job_id: UUID) -> None:
        """Note that the engine answered a job's request."""
        self._jobs.pop(job_id, None)
        for each in self._jobs.values():
            each.others_answered = True

    def refused(self, job_id: UUID) -> bool:
        """Note that the engine refused a job's request.

        Returns:
            True if it is about this job alone: since the job's last refusal the engine answered another job
            and refused no other. A first refusal proves nothing.
        """
        last = self._jobs.pop(job_id, None) or _Refused(in_a_row=0)
        if last.in_a_row < _SUSPECT_AFTER:
            for each in self._jobs.values():
                each.others_refused = True
        self._jobs[job_id] = _Refused(last.in_a_row + 1)
        if len(self._jobs) > _MAX_KEPT:
            del self._jobs[next(iter(self._jobs))]
        return last.others_answered and not last.others_refused
