"""Ids: UUIDv7 made by the client side, printed with a prefix that names the kind."""

from uuid import UUID

from uuid_utils.compat import uuid7

from jobs.errors import NotFoundError

__all__ = ["event_id", "job_id", "parse_job_id", "uuid7"]

_JOB = "job_"
_EVENT = "evt_"


def job_id(value: UUID) -> str:
    """`job_` and 32 hex digits."""
    return _JOB + value.hex


def event_id(value: UUID) -> str:
    """`evt_` and 32 hex digits."""
    return _EVENT + value.hex


def parse_job_id(text: str) -> UUID:
    """The UUID behind a printed job id.

    Raises:
        NotFoundError: the text is no job id, so no job has it.
    """
    digits = text.removeprefix(_JOB)
    if text.startswith(_JOB) and len(digits) == 32 and digits == digits.lower() and digits.isalnum():
        try:
            return UUID(hex=digits)
        except ValueError:
            pass
    raise NotFoundError(f"there is no job {text[:64]!r}")
