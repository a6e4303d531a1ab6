"""Ids: UUIDv7 made by the client side, printed with a prefix that names the kind."""

from uuid import UUID

from uuid_utils.compat import uuid7

from jobs.errors import NotFoundError

__all__ = [
    "batch_id",
    "delivery_id",
    "document_id",
    "endpoint_id",
    "event_id",
    "file_id",
    "job_id",
    "parse_batch_id",
    "parse_delivery_id",
    "parse_document_id",
    "parse_endpoint_id",
    "parse_event_id",
    "parse_file_id",
    "parse_job_id",
    "parse_summary_id",
    "summary_id",
    "uuid7",
]

_JOB = "job_"
_EVENT = "evt_"
_ENDPOINT = "whep_"
_DELIVERY = "whdl_"
_FILE = "file-"
_BATCH = "batch_"
_SUMMARY = "sum_"
_DOCUMENT = "doc_"


def job_id(value: UUID) -> str:
    """Format as `job_` and 32 hex digits."""
    return _JOB + value.hex


def event_id(value: UUID) -> str:
    """Format as `evt_` and 32 hex digits."""
    return _EVENT + value.hex


def endpoint_id(value: UUID) -> str:
    """Format as `whep_` and 32 hex digits."""
    return _ENDPOINT + value.hex


def delivery_id(value: UUID) -> str:
    """Format as `whdl_` and 32 hex digits."""
    return _DELIVERY + value.hex


def file_id(value: UUID) -> str:
    """Format as `file-` and 32 hex digits."""
    return _FILE + value.hex


def batch_id(value: UUID) -> str:
    """Format as `batch_` and 32 hex digits."""
    return _BATCH + value.hex


def summary_id(value: UUID) -> str:
    """Format as `sum_` and 32 hex digits."""
    return _SUMMARY + value.hex


def document_id(value: UUID) -> str:
    """Format as `doc_` and 32 hex digits."""
    return _DOCUMENT + value.hex


def parse_job_id(text: str) -> UUID:
    """Parse a printed job id.

    Raises:
        NotFoundError: the text is not a job id, so no job has it.
    """
    return _parse(text, _JOB, kind="job")


def parse_file_id(text: str) -> UUID:
    """Parse a printed file id; raises as `parse_job_id` does."""
    return _parse(text, _FILE, kind="file")


def parse_batch_id(text: str) -> UUID:
    """Parse a printed batch id; raises as `parse_job_id` does."""
    return _parse(text, _BATCH, kind="batch")


def parse_summary_id(text: str) -> UUID:
    """Parse a printed summary id; raises as `parse_job_id` does."""
    return _parse(text, _SUMMARY, kind="summary")


def parse_document_id(text: str) -> UUID:
    """Parse a printed document id; raises as `parse_job_id` does."""
    return _parse(text, _DOCUMENT, kind="document")


def parse_event_id(text: str) -> UUID:
    """Parse a printed event id; raises as `parse_job_id` does."""
    return _parse(text, _EVENT, kind="event")


def parse_endpoint_id(text: str) -> UUID:
    """Parse a printed webhook endpoint id; raises as `parse_job_id` does."""
    return _parse(text, _ENDPOINT, kind="webhook endpoint")


def parse_delivery_id(text: str) -> UUID:
    """Parse a printed delivery id; raises as `parse_job_id` does."""
    return _parse(text, _DELIVERY, kind="webhook delivery")


def _parse(text: str, prefix: str, *, kind: str) -> UUID:
    digits = text.removeprefix(prefix)
    if text.startswith(prefix) and len(digits) == 32 and digits == digits.lower() and digits.isalnum():
        try:
            return UUID(hex=digits)
        except ValueError:
            pass
    raise NotFoundError(f"There is no {kind} {text[:64]!r}.")
