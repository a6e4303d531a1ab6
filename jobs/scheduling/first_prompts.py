"""Jobs that an idle engine probably starts, read with who waits, and as their runs need them.

So their requests can go as soon as they are chosen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Integer, LargeBinary, Text, Uuid, bindparam, column, text
from sqlalchemy.orm import Session

from jobs import telemetry
from jobs.database.direct import IN_INDEX_ORDER, Query, Rows
from jobs.database.hot import PREPARED
from jobs.models import Job
from jobs.prompts import store
from jobs.prompts.store import CountedPrompt, Counter
from jobs.scheduling.candidates import CLASS, ONE_TENANT
from jobs.starting import StartedJob
from jobs.states import Lane

# Most tokens of a prompt that is read while an engine's row is locked: some 64 KB.
MAX_TOKENS: Final = 16_384
_MAX_JOBS: Final = 4  # not a parameter: the planner would expect a tenth of the queue, and read all texts

_COLUMNS: Final = ", ".join(StartedJob._fields)
_OF_PROMPT: Final = (("id", Uuid), ("token_ids", LargeBinary), ("num_tokens", Integer), ("body", LargeBinary))
# The first of the tenant that `candidates.FIRST_OF_ONE` finds.
FIRST_PROMPTS: Final = (
    text(f"""
    {IN_INDEX_ORDER.decode()}
    SELECT {", ".join(f"texts.{name}" for name, _ in _OF_PROMPT)}, first.* FROM (
        SELECT {_COLUMNS} FROM jobs
        WHERE state = 'queued' AND model = :model AND lane = :lane AND tenant_id = {ONE_TENANT}
        ORDER BY {CLASS}, rank DESC, id LIMIT {_MAX_JOBS}
    ) AS first JOIN texts ON texts.id = first.text_id
    WHERE first.prompt_tokens <= :max_tokens AND texts.fingerprint = :fingerprint
        AND texts.token_ids IS NOT NULL AND texts.num_tokens IS NOT NULL
    """)  # noqa: S608  # built from constants
    .bindparams(
        *(bindparam(name, type_=Text()) for name in ("model", "lane", "fingerprint")),
        bindparam("max_tokens", type_=Integer()),
    )
    .columns(
        *(column(name, kind) for name, kind in _OF_PROMPT),
        *(Job.__table__.c[name] for name in StartedJob._fields),
    )
    .execution_options(**PREPARED)
)


@dataclass(frozen=True, slots=True)
class FirstPrompts:
    """Reads these jobs for whoever sends their requests.

    Attributes:
        counter: has counted their prompts.
        keep: called with what was read: the jobs by id, and prompts by the ids of their texts.
    """

    counter: Counter
    keep: Callable[[Mapping[UUID, StartedJob], Mapping[UUID, CountedPrompt]], object]

    def asking(self, model: str) -> Query:
        """Return the query for the first few batch jobs."""
        given = {
            "model": model,
            "lane": Lane.BATCH.value,
            "fingerprint": self.counter.fingerprint,
            "max_tokens": MAX_TOKENS,
        }
        return Query(FIRST_PROMPTS, given)

    def take(self, session: Session, rows: Rows) -> None:
        """Keep what the rows of the query hold, without a prompt that cannot be read: its job fails alone."""
        jobs, prompts = dict[UUID, StartedJob](), dict[UUID, CountedPrompt]()
        for row in rows:
            job, of_prompt = StartedJob(*row[len(_OF_PROMPT) :]), row[: len(_OF_PROMPT)]
            try:
                prompts |= store.opened_counts(session, [of_prompt], self.counter)
                jobs[job.id] = job
            except Exception as error:  # noqa: BLE001  # one bad prompt must not stop the others
                name = type(error).__name__
                telemetry.logger().warning(telemetry.LOOP_FAILED, loop="first-prompts", error=name)
        self.keep(jobs, prompts)
