"""What a claim reads does not grow with the jobs that only another engine can hold."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from claiming import claims
from jobs.engines.capacity import Capacity
from jobs.states import Lane
from support import CAPACITY, ENGINE, POLICY, register_engine, spec, submit_one

SMALL = Capacity(
    max_batch_size=4, max_blocks=512, tokens_per_block=64, max_input_len=8000, max_seq_len=16_384
)
LARGE = replace(CAPACITY, max_input_len=127_000, max_blocks=8192, max_seq_len=262_144)
MANY = 3000
DAY = timedelta(days=1)


def fill(session: Session, prompt_tokens: int, *, max_tokens: int, window: timedelta | None) -> None:
    """Submit one job, and many like it."""
    job = submit_one(session, spec(prompt_tokens, max_tokens=max_tokens, window=window))
    session.flush()
    names = session.scalars(
        text(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'jobs'::regclass AND attnum > 0"
            " AND NOT attisdropped AND attname <> 'id'"
        )
    ).all()
    columns = ", ".join(names)
    session.execute(
        text(
            f"INSERT INTO jobs (id, {columns})"  # noqa: S608  # names of columns
            f" SELECT gen_random_uuid(), {columns} FROM jobs, generate_series(1, :many) WHERE id = :id"
        ),
        {"many": MANY, "id": job.id},
    )
    session.execute(text("ANALYZE jobs"))  # as autovacuum does; what tests before left behind misleads plans


def read_by(session: Session, look: Callable[[], object]) -> int:
    """Rows of `jobs` that were fetched meanwhile, by whatever plan."""
    fetched = text(
        "SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)"
        " FROM pg_stat_xact_user_tables WHERE relname = 'jobs'"
    )
    before = session.scalar(fetched)
    look()
    return int(session.scalar(fetched) - before)


@pytest.mark.parametrize("window", [None, DAY])
@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "too_small"),
    [
        (50_000, 64, SMALL),  # by the length of its prompts
        (100, 20_000, SMALL),  # by what they may generate
        (100_000, 64, CAPACITY),  # by a hair
    ],
)
def test_jobs_that_only_another_engine_can_hold_are_passed_over_unread(
    session: Session, prompt_tokens: int, max_tokens: int, too_small: Capacity, window: timedelta | None
) -> None:
    register_engine(session, "large", LARGE)
    register_engine(session, capacity=too_small)
    fill(session, prompt_tokens, max_tokens=max_tokens, window=window)
    mine = submit_one(session, spec(100, window=window))
    assert read_by(session, lambda: claims.claim_all(session, ENGINE, POLICY)) < 100
    session.refresh(mine)
    assert mine.state == "running"
    assert claims.claim(session, "large", POLICY) is not None


def test_a_job_that_waits_for_an_answer_is_found_without_reading_the_batch_lines_that_expire(
    session: Session,
) -> None:
    register_engine(session)
    fill(session, 1000, max_tokens=64, window=DAY)
    asking = submit_one(session, spec(100, lane=Lane.INTERACTIVE, window=timedelta(hours=1)))
    assert read_by(session, lambda: claims.claim_all(session, ENGINE, POLICY, limit=1)) < 300
    session.refresh(asking)
    assert asking.state == "running"
