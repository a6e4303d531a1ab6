"""What unfinished jobs have generated: kept while they run, their results when they end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import case, delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.models import Checkpoint, Job, Result


@dataclass(frozen=True, slots=True)
class Output:
    """What a job generated.

    Attributes:
        text: storable in Postgres.
        packed_ids: the generated ids, int32 little-endian, zstd-compressed.
        num_tokens: how many were generated.
        fingerprint: of the tokenizer whose ids these are.
        replaced: the text held characters that cannot be stored.
        is_resumable: another run can go on from these ids; else the next one begins anew.
    """

    text: str
    packed_ids: bytes
    num_tokens: int
    fingerprint: str = ""
    replaced: bool = False
    is_resumable: bool = True


def save(session: Session, job_id: UUID, output: Output) -> None:
    """The job's checkpoint is this; the caller holds the job's row by its fence."""
    values = {
        "output": output.text,
        "output_ids": output.packed_ids,
        "num_tokens": output.num_tokens,
        "fingerprint": output.fingerprint,
        "replaced": output.replaced,
    }
    session.execute(
        insert(Checkpoint)
        .values(job_id=job_id, **values)
        .on_conflict_do_update(index_elements=["job_id"], set_=values)
    )


def load(session: Session, job_id: UUID) -> Output | None:
    """What the job had generated when it was last saved; None: nothing."""
    found = session.get(Checkpoint, job_id, populate_existing=True)
    if found is None:
        return None
    return Output(
        text=found.output,
        packed_ids=found.output_ids,
        num_tokens=found.num_tokens,
        fingerprint=found.fingerprint,
        replaced=found.replaced,
    )


def into_results(session: Session, job_ids: Sequence[UUID]) -> None:
    """What these jobs had generated is their result, whole or partial; their checkpoints are gone."""
    if not job_ids:
        return
    names = ["job_id", "output", "output_ids", "replaced"]
    gone = delete(Checkpoint).where(Checkpoint.job_id.in_(job_ids))
    taken = gone.returning(*(getattr(Checkpoint, name) for name in names)).cte("taken")
    session.execute(insert(Result).from_select(names, select(*taken.c)))


def progress_kept() -> dict[str, Any]:
    """What callers see of a job that goes back to the queue: as much as its checkpoint holds."""
    saved = select(Checkpoint.num_tokens).where(Checkpoint.job_id == Job.id).scalar_subquery()
    kept = exists().where(Checkpoint.job_id == Job.id)
    return {
        "completion_tokens": func.coalesce(saved, 0),
        "first_token_at": case((kept, Job.first_token_at), else_=None),
    }
