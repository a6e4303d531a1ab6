"""What the checker saw of a run: jobs and other objects, as the public API showed them."""

from dataclasses import dataclass, field
from typing import Any, Final

TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job once it had ended; whatever is shown later must be the same.

    Attributes:
        has_run: an engine started it.
        error: code of its error.
    """

    state: str
    task: str
    custom_id: str | None
    finalized_at: str
    has_run: bool
    prompt_tokens: int | None
    completion_tokens: int
    attempt: int
    error: str | None

    @staticmethod
    def of(job: dict[str, Any]) -> "JobEnd":
        """Read the end from a job that has one."""
        return JobEnd(
            state=job["state"],
            task=job["task"],
            custom_id=job["custom_id"],
            finalized_at=job["finalized_at"],
            has_run=job["started_at"] is not None,
            prompt_tokens=job["prompt_tokens"],
            completion_tokens=job["completion_tokens"],
            attempt=job["attempt"],
            error=(job["error"] or {}).get("code"),
        )


@dataclass(frozen=True, slots=True)
class ObjectEnd:
    """A batch, summary or answers once they had ended.

    Attributes:
        parts: result lines by custom id, or questions; each with how often it was there.
        outputs: what completed lines answered, by custom id.
    """

    state: str
    parts: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass
class Sightings:
    """Everything that was seen, and what contradicted itself.

    Attributes:
        jobs: ended jobs by id.
        outputs: of ended jobs whose caller was promised them.
        runs: how each run of these jobs ended, oldest first.
        objects: ended batches, summaries and answers by id.
        open: ids that had not ended at the last look.
        usage: jobs by state, and tokens, as the API sums them up.
        faults: found while looking.
    """

    jobs: dict[str, JobEnd] = field(default_factory=dict)
    outputs: dict[str, str | None] = field(default_factory=dict)
    runs: dict[str, list[str]] = field(default_factory=dict)
    objects: dict[str, ObjectEnd] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    usage: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
