"""The tables of what jobs generate: checkpoints while they run, results once they end."""

from typing import Final
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base
from jobs.database.sealed_columns import SealedBytes, SealedNote, SealedText

# Of both tables: SQL copies between them.
OUTPUT: Final = SealedText("results.output")
# To read outputs of several jobs: one that cannot be decrypted stops no other.
OUTPUT_NOTE: Final = SealedNote(OUTPUT.place)
OUTPUT_IDS: Final = SealedBytes("results.output_ids")
REASONING: Final = SealedText("results.reasoning")
LOG_PROBS: Final = SealedBytes("results.log_probs")
TOOL_CALLS: Final = SealedText("results.tool_calls")
EMBEDDING: Final = SealedBytes("results.embedding")


class GeneratedColumns:
    """What a result and a checkpoint both hold of a job's output."""

    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    output: Mapped[str] = mapped_column(OUTPUT)
    output_ids: Mapped[bytes] = mapped_column(OUTPUT_IDS)
    replaced: Mapped[bool] = mapped_column(server_default=text("false"))
    reasoning: Mapped[str | None] = mapped_column(REASONING)
    reasoning_tokens: Mapped[int] = mapped_column(server_default="0")
    log_probs: Mapped[bytes | None] = mapped_column(LOG_PROBS)
    tool_calls: Mapped[str | None] = mapped_column(TOOL_CALLS)
    embedding: Mapped[bytes | None] = mapped_column(EMBEDDING)


class Result(GeneratedColumns, Base):
    """What a job generated: all of it if it completed, a part of it if it ended otherwise.

    Made from the checkpoint in the transaction that ends the job; never changes. A job that ended without
    output has none.

    Attributes:
        job_id: the job. Deleted with it.
        output: the visible text, after detokenization and stop strings.
        output_ids: the generated ids, int32 little-endian, zstd-compressed.
        replaced: the text held characters that Postgres cannot store; U+FFFD replaces them.
        reasoning: what the model thought before the visible text. Null: nothing.
        reasoning_tokens: how many of the generated tokens were thinking, its tags included.
        log_probs: of the tokens, as `answers.log_probs` packs them: up to 8 bytes for each of them and of
            their alternatives, `MAX_SCORES` in all. Null: the request asked for none.
        tool_calls: the calls of functions as JSON (`prompts.tools.calls`). Null: none.
        embedding: the vector of its input, float32 little-endian. Null: the job generates text.
    """

    __tablename__ = "results"


class Checkpoint(GeneratedColumns, Base):
    """What an unfinished job has generated. Its next run goes on from here, on any engine.

    Its worker saves it while the job runs and when it gives the job back. It becomes the result when the job
    ends.

    Attributes:
        job_id: the job. Deleted with it.
        output: the visible text so far, after detokenization and stop strings; a partial result shows it.
        output_ids: the generated ids, int32 little-endian, zstd-compressed.
        num_tokens: number of generated ids, from 0.
        fingerprint: names the tokenizer that made the ids. A worker with another one starts the job over.
        replaced: as in `Result`.
        reasoning: as in `Result`.
        reasoning_tokens: as in `Result`.
        log_probs: as in `Result`.
        tool_calls: as in `Result`.
        embedding: as in `Result`.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (CheckConstraint("num_tokens >= 0", name="num_tokens"),)

    num_tokens: Mapped[int]
    fingerprint: Mapped[str]
