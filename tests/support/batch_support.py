"""What tests of batches in the domain need: batches of given lines, and a service worker's rounds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from jobs import batches, files, lifecycle
from jobs.batches import BatchSpec
from jobs.batches.context import BatchTools
from jobs.batches.validation import Validation
from jobs.database import database_now
from jobs.engines import reservations
from jobs.files.storage import PartStore, RowStore
from jobs.models import DEFAULT_TENANT, Job
from jobs.models.batch import Batch
from jobs.settings import LimitSettings
from jobs.states import FinishReason, JobState
from jobs.states.batch import Endpoint
from jobs.states.file import FileState
from openai_support import chat_line, jsonl
from support import CAPACITY, MODEL, WordCounter, claim_one, output_of, register_engine, runner_of
from worker import batches as rounds


def tools(store: PartStore | None = None, **changed: object) -> BatchTools:
    """A service worker's tools that count words."""
    return BatchTools(
        **{
            "store": store or RowStore(),
            "counter": WordCounter(),
            "default_capacity": CAPACITY,
            "model": MODEL,
            "max_lines": 50_000,
            "max_line_bytes": 2**20,
            "default_max_tokens": 64,
            "max_inline_chars": 2048,
            "lifetime": timedelta(days=30),
            "limits": LimitSettings(),
            **changed,
        }  # type: ignore[arg-type]  # named by the caller
    )


def lines(num: int, **body: object) -> list[dict[str, object]]:
    """Small chat lines `line-0`, `line-1`, … for the test model."""
    return [chat_line(f"line-{number}", f"question {number}", model=MODEL, **body) for number in range(num)]


def validate_next(sessions: sessionmaker[Session], given: BatchTools) -> bool:
    """Whether there was a batch that waited to be validated; it is accepted or refused now."""
    return runner_of(sessions).run_next(Validation(given)) is not None


@dataclass
class Service:
    """Batches as callers and a service worker move them.

    Attributes:
        tools: of the worker; a test may change them.
    """

    sessions: sessionmaker[Session]
    tools: BatchTools = field(default_factory=tools)

    def file(self, content: bytes) -> UUID:
        with self.sessions.begin() as session:
            file = files.create(
                session,
                tenant_id=DEFAULT_TENANT,
                purpose="batch",
                filename="in.jsonl",
                state=FileState.GROWING,
            )
            files.append(session, file, [content], self.tools.store)
            file.state = FileState.COMPLETE
        return file.id

    def create(
        self, content: bytes | Sequence[object], *, window: str = "24h", endpoint: Endpoint = Endpoint.CHAT
    ) -> UUID:
        """A batch of these lines, being validated."""
        raw = content if isinstance(content, bytes) else jsonl(content)
        spec = BatchSpec(self.file(raw), endpoint, window)
        with self.sessions.begin() as session:
            return batches.create(session, spec, tenant_id=DEFAULT_TENANT).id

    def accepted(
        self, content: bytes | Sequence[object], *, window: str = "24h", endpoint: Endpoint = Endpoint.CHAT
    ) -> UUID:
        """A batch of these lines, all of them jobs."""
        batch_id = self.create(content, window=window, endpoint=endpoint)
        assert validate_next(self.sessions, self.tools)
        assert self.batch(batch_id).state == "in_progress"
        while not self.batch(batch_id).is_expanded:
            self.advance()
        return batch_id

    def advance(self) -> int:
        """The steps of one round."""
        return rounds.advance(self.sessions, self.tools, is_stopping=lambda: False).num_steps

    def settle(self) -> None:
        """Nothing is left to do at the moment."""
        while self.advance():
            pass

    def batch(self, batch_id: UUID) -> Batch:
        with self.sessions() as session:
            return session.get_one(Batch, batch_id)

    def jobs(self, batch_id: UUID) -> list[Job]:
        with self.sessions() as session:
            query = select(Job).where(Job.batch_id == batch_id).order_by(Job.batch_line)
            return list(session.scalars(query))

    def complete(self, num: int | None = None, *, cached: int | None = None) -> None:
        """So many queued jobs have completed, or all; their engine had so much of each prompt."""
        with self.sessions.begin() as session:
            register_engine(session)
        while num is None or num > 0:
            with self.sessions.begin() as session:
                query = select(Job.id).where(Job.state == JobState.QUEUED).limit(1)
                if session.scalar(query) is None:
                    return
                lease = claim_one(session).lease
                output = replace(output_of("said", num_tokens=3), cached_tokens=cached)
                ending.complete(session, lease, output, FinishReason.STOP)
                reservations.close(session, lease.lease_id)
            if num is not None:
                num -= 1

    def end_window(self, batch_id: UUID) -> None:
        """The batch's window is over, and a maintenance round has seen it."""
        with self.sessions.begin() as session:
            now = database_now(session)
            session.execute(update(Batch).where(Batch.id == batch_id).values(expires_at=now))
            session.execute(update(Job).where(Job.batch_id == batch_id).values(expires_at=now))
        with self.sessions.begin() as session:
            lifecycle.expire(session, now=database_now(session))

    def settle_validation(self) -> None:
        """Every batch that waited has been validated."""
        while validate_next(self.sessions, self.tools):
            pass

    def lose_leases(self) -> None:
        """Whoever validates has died, and never did before."""
        with self.sessions.begin() as session:
            now = database_now(session)
            session.execute(update(Batch).where(Batch.lease_id.is_not(None)).values(lease_expires_at=now))
            session.execute(update(Batch).values(num_validations=0, run_after=None))

    def cancel(self, batch_id: UUID) -> Batch:
        with self.sessions.begin() as session:
            return batches.cancel(session, batch_id, tenant_id=DEFAULT_TENANT)

    def retry(self, batch_id: UUID) -> UUID:
        with self.sessions.begin() as session:
            return batches.retry(session, batch_id, tenant_id=DEFAULT_TENANT).id

    def read(self, file_id: UUID | None) -> list[dict[str, object]]:
        """The lines of a file."""
        if file_id is None:
            return []
        with self.sessions() as session:
            content = b"".join(files.read_chunks(session, file_id, self.tools.store))
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    def outcome(self, batch_id: UUID) -> tuple[list[str], list[str]]:
        """Custom ids in the output file and in the error file, sorted."""
        batch = self.batch(batch_id)
        found = [
            sorted(str(line["custom_id"]) for line in self.read(file_id))
            for file_id in (batch.output_file_id, batch.error_file_id)
        ]
        return found[0], found[1]
