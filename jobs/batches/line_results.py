"""Results for the lines of a batch, of which one that cannot be decrypted stops no other."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from jobs.models import Result
from jobs.sealing.content import ContentUnreadableError

Generated = Row[UUID, str, str | None, int, bytes | None, str | None, bytes | None]  # of `_RESULTS`
# Without the token ids, which no line shows.
_RESULTS: Final = select(
    Result.job_id,
    Result.output,
    Result.reasoning,
    Result.reasoning_tokens,
    Result.log_probs,
    Result.tool_calls,
    Result.embedding,
)


def read_results(
    session: Session, job_ids: Sequence[UUID]
) -> tuple[Mapping[UUID, Generated], Mapping[UUID, ContentUnreadableError]]:
    """Read the results of these jobs, and which of them cannot be decrypted and why, each by its job."""
    try:
        rows = session.execute(_RESULTS.where(Result.job_id.in_(job_ids))).all()
    except ContentUnreadableError as error:
        if len(job_ids) == 1:
            return {}, {job_ids[0]: error}
        middle = len(job_ids) // 2
        first, last = read_results(session, job_ids[:middle]), read_results(session, job_ids[middle:])
        return {**first[0], **last[0]}, {**first[1], **last[1]}
    return {row.job_id: row for row in rows}, {}
