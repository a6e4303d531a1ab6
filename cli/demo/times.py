"""When the jobs of summaries started and produced output: shown by the demo, not part of the API."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import SecretStr
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs import ids
from jobs.database import make_engine
from jobs.models import Job
from jobs.settings import DatabaseSettings


@dataclass(frozen=True, slots=True)
class Times:
    """The times of the jobs that make one summary.

    Attributes:
        started_at: when the first of them started.
        first_token_at: when the first token of any of them arrived.
    """

    started_at: datetime
    first_token_at: datetime


def times_of(database_url: str) -> Mapping[str, Times]:
    """Read the times of every summary, by its id."""
    engine = make_engine(DatabaseSettings(url=SecretStr(database_url)), name="demo")
    query = (
        select(Job.summary_id, func.min(Job.started_at), func.min(Job.first_token_at))
        .where(Job.summary_id.is_not(None), Job.first_token_at.is_not(None))
        .group_by(Job.summary_id)
    )
    try:
        with Session(engine) as session:
            return {
                ids.summary_id(summary_id): Times(started, first)
                for summary_id, started, first in session.execute(query)
                if summary_id and started and first
            }
    finally:
        engine.dispose()
