"""What unfinished jobs have generated: saved while they run, and turned into results when they end."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from jobs.models import Checkpoint, Job
from jobs.models.output import LOG_PROBS, OUTPUT, OUTPUT_IDS, REASONING, TOOL_CALLS
from jobs.prompts.tokenizer import pack_ids, unpack_ids
from jobs.prompts.tools.calls import MadeCall, read_calls, write_calls

# Columns of a checkpoint that hold content, with their types: statements seal them.
CONTENT: Final = {
    "output": OUTPUT,
    "output_ids": OUTPUT_IDS,
    "reasoning": REASONING,
    "log_probs": LOG_PROBS,
    "tool_calls": TOOL_CALLS,
}
# The columns of results and checkpoints: what a job generated.
GENERATED: Final = (
    "output",
    "output_ids",
    "replaced",
    "reasoning",
    "reasoning_tokens",
    "log_probs",
    "tool_calls",
    "embedding",
)


@dataclass(frozen=True, slots=True)
class Output:
    """What a job generated.

    Attributes:
        text: storable in Postgres.
        ids: the generated ids.
        num_tokens: how many tokens it generated.
        fingerprint: of the tokenizer that produced the ids.
        replaced: the text had characters that cannot be stored, and they were replaced.
        is_resumable: another run can continue from these ids; otherwise the next one starts over.
        reasoning: the thinking before the text, storable in Postgres.
        reasoning_tokens: how many of the tokens were thinking.
        calls: of functions, whose markup is not part of the text.
        cached_tokens: prompt tokens that the engine had in its cache at the job's first run; None: this is
            not of that run, or the engine did not tell.
        log_probs: of its tokens, as `answers.log_probs` packs them; None: the job asks for none.
        has_files: files of it are stored, and become the job's as it completes.
        embedding: the vector of its input, float32 little-endian; None: it is text.
    """

    text: str
    ids: Sequence[int]
    num_tokens: int
    fingerprint: str = ""
    replaced: bool = False
    is_resumable: bool = True
    reasoning: str = ""
    reasoning_tokens: int = 0
    calls: tuple[MadeCall, ...] = ()
    cached_tokens: int | None = None
    log_probs: bytes | None = None
    has_files: bool = False
    embedding: bytes | None = None


def columns_of(output: Output) -> dict[str, Any]:
    """Return a checkpoint's columns, all but its job."""
    return {
        "output": output.text,
        "output_ids": pack_ids(output.ids),
        "num_tokens": output.num_tokens,
        "fingerprint": output.fingerprint,
        "replaced": output.replaced,
        "reasoning": output.reasoning or None,
        "reasoning_tokens": output.reasoning_tokens,
        "log_probs": output.log_probs,
        "tool_calls": write_calls(output.calls),
        "embedding": output.embedding,
    }


def load(session: Session, job_id: UUID) -> Output | None:
    """Load the job's last checkpoint.

    Returns:
        None if it has none.
    """
    found = session.get(Checkpoint, job_id, populate_existing=True)
    if found is None:
        return None
    return Output(
        text=found.output,
        ids=tuple(unpack_ids(found.output_ids).tolist()),
        num_tokens=found.num_tokens,
        fingerprint=found.fingerprint,
        replaced=found.replaced,
        reasoning=found.reasoning or "",
        reasoning_tokens=found.reasoning_tokens,
        log_probs=found.log_probs,
        calls=read_calls(found.tool_calls),
        embedding=found.embedding,
    )


def drop(session: Session, job_ids: Collection[UUID]) -> None:
    """Forget the checkpoints of these jobs."""
    session.execute(delete(Checkpoint).where(Checkpoint.job_id.in_(job_ids)))


def num_saved() -> ColumnElement[int]:
    """Select how many tokens the checkpoint of a job holds, for an UPDATE of `jobs`."""
    saved = select(Checkpoint.num_tokens).where(Checkpoint.job_id == Job.id).scalar_subquery()
    return func.coalesce(saved, 0)
