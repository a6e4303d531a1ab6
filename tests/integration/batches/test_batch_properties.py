"""Each line ends once, and so does each batch, whatever happens between a look at them and the steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

import ending
from batch_support import Service, tools
from jobs import lifecycle
from jobs.batches import expansion
from jobs.batches.due import find_due
from jobs.engines import reservations
from jobs.errors import ConflictError
from jobs.models import DEFAULT_TENANT, Job
from jobs.settings import LimitSettings
from jobs.states import JobState
from openai_support import chat_line, jsonl
from support import ERROR, MODEL, claim_one, register_engine
from worker import batches as rounds

NUM_WORKERS = 3
# What a line asks for besides: answers, more than one, more than there may be jobs, and what is refused.
BODIES: tuple[dict[str, object], ...] = (
    {},
    {},
    {},
    {"n": 2, "temperature": 1},
    {"n": 4, "temperature": 1},
    {"max_tokens": -1},
    {"model": "absent"},
)


@dataclass
class Story:
    """A batch, and what happens to it by chance."""

    chance: random.Random
    sessions: sessionmaker[Session]
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        limits = LimitSettings(max_jobs=self.chance.choice([3, 100]))
        self.workers = [tools(limits=limits) for _ in range(NUM_WORKERS)]  # each reads ahead for itself
        self.service = Service(self.sessions, self.workers[0])
        self.names = [f"line-{number}" for number in range(self.chance.randint(1, 12))]
        lines = [jsonl([self.line(name)]) for name in self.names]
        blank = [b"\n" * self.chance.randint(0, 1) for _ in lines]
        with self.sessions.begin() as session:
            register_engine(session)
        self.batch_id = self.service.create(b"".join(map(bytes.__add__, lines, blank)))
        self.service.settle_validation()

    def line(self, name: str) -> object:
        return chat_line(name, name, **({"model": MODEL} | self.chance.choice(BODIES)))

    def complete(self) -> None:
        self.service.complete(self.chance.randint(1, 3))

    def fail(self) -> None:
        with self.sessions.begin() as session:
            if session.scalar(select(Job.id).where(Job.state == JobState.QUEUED).limit(1)) is not None:
                lease = claim_one(session).lease
                ending.fail(session, lease, ERROR)
                reservations.close(session, lease.lease_id)

    def cancel_job(self) -> None:
        with self.sessions.begin() as session:
            job_id = session.scalar(select(Job.id).where(Job.finalized_at.is_(None)).limit(1))
            if job_id is not None:
                lifecycle.cancel(session, job_id=job_id, tenant_id=DEFAULT_TENANT)

    def cancel(self) -> None:
        try:
            self.service.cancel(self.batch_id)
        except ConflictError:
            assert self.service.batch(self.batch_id).is_terminal

    def end_window(self) -> None:
        self.service.end_window(self.batch_id)

    def happen(self) -> None:
        kinds: list[Callable[[], None]] = [self.complete, self.fail, self.cancel_job, self.cancel]
        self.chance.choices([*kinds, self.end_window], [8, 3, 3, 1, 1])[0]()

    def advance(self) -> None:
        """Do a worker's round, during which something may happen, and which may kill the worker."""
        worker, moved = self.chance.choice(self.workers), rounds.Moved()
        with self.sessions.begin() as session:
            due = find_due(session)
        for batch in due:
            if self.chance.random() < 0.5:
                self.happen()
            if self.chance.random() < 0.15:
                return
            rounds._advance_one(self.sessions, worker, batch, moved)

    def come_to_an_end(self) -> None:
        for _ in range(100):
            if self.service.batch(self.batch_id).is_terminal:
                return
            self.advance()
            self.complete()


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_ends_with_each_of_its_lines_once(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    monkeypatch.setattr(expansion, "_MAX_LINES", chance.choice([1, 2, 3]))
    story = Story(chance, sessions)
    for _ in range(chance.randint(3, 20)):
        chance.choice([story.happen, story.advance])()
    story.come_to_an_end()
    batch = story.service.batch(story.batch_id)
    assert batch.is_terminal, (batch.state, batch.num_ended, batch.num_lines)
    completed, others = story.service.outcome(story.batch_id)
    assert sorted(completed + others) == sorted(story.names)
    assert (batch.num_completed, batch.num_failed + batch.num_stopped) == (len(completed), len(others))
