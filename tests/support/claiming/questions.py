"""Questions about documents, and the engine that answers them: what runs, has read its prompt, and ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

import numpy as np
from sqlalchemy import select, update
from sqlalchemy.orm import Session

import ending
from claiming import claims
from claiming.claims import FreedSlot
from jobs import leases
from jobs.ids import uuid7
from jobs.leases import JobProgress
from jobs.models import DEFAULT_TENANT, Engine, Job, Reservation
from jobs.prompts.prefixes import digests
from jobs.prompts.store import CountedPrompt, NewText
from jobs.scheduling import engine_load
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.scheduling.sizing import ClaimPolicy
from jobs.starting import Claim
from jobs.states import FinishReason
from support import CAPACITY, ENGINE, POLICY, output_of, spec, submit_one

DOCUMENT = 30_000
SHARED = 29_952 // CAPACITY.tokens_per_block  # blocks that two questions about a document share for certain


def sharing(*, is_credited: bool = True) -> ClaimPolicy:
    """The policy on an engine that reuses prefixes, and has nothing yet."""
    return replace(POLICY, replay=PrefixReplay(is_credited=is_credited))


def ask(
    session: Session,
    document: int,
    *,
    length: int = DOCUMENT,
    tail: int = 60,
    tenant_id: UUID = DEFAULT_TENANT,
    max_tokens: int = 64,
    **fields: object,
) -> Job:
    """Submit a question of `tail` tokens about a document."""
    ids = np.full(length + tail, document, dtype=np.int32)
    ids[length:] = np.resize(np.frombuffer(uuid7().bytes, dtype=np.uint8)[:0:-1], tail)  # its end is random
    counted = CountedPrompt(b"ids", len(ids), "test", prefixes=digests(ids))
    given = spec(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]  # named by the caller
    asked = replace(given, text=NewText(f"question {uuid7()}", counted))
    return submit_one(session, asked, tenant_id=tenant_id)


def interleaved(session: Session, documents: int, questions: int, **fields: object) -> dict[UUID, int]:
    """Submit questions about several documents, question by question; return the document of each job."""
    return {
        ask(session, document, **fields).id: document  # type: ignore[arg-type]  # named by the caller
        for _ in range(questions)
        for document in range(1, documents + 1)
    }


def claim_all(session: Session, policy: ClaimPolicy, engine: str = ENGINE) -> list[Claim]:
    return list(claims.claim_all(session, engine, policy).claims)


def read(session: Session, *running: Claim) -> None:
    """Their first tokens came."""
    leases.report_all(session, [JobProgress(each.lease, 1, POLICY.lease * 0) for each in running])


def end(session: Session, policy: ClaimPolicy, *running: Claim, engine: str = ENGINE) -> list[Claim]:
    """Complete these and start what fits then."""
    for each in running:
        assert ending.complete(session, each.lease, output_of("x"), FinishReason.STOP)
    ended = [FreedSlot(each.lease.lease_id, 3) for each in running]
    return list(claims.claim_all(session, engine, policy, ended=ended).claims)


@dataclass
class Course:
    """What happened: jobs in order of start, and those that shared nothing."""

    order: list[UUID] = field(default_factory=list)
    alone: list[UUID] = field(default_factory=list)

    def note(self, session: Session, started: Sequence[Claim]) -> None:
        self.order += [each.lease.job_id for each in started]
        leases = [each.lease.lease_id for each in started]
        whole = select(Reservation.job_id).where(
            Reservation.lease_id.in_(leases), Reservation.shared_blocks == 0
        )
        self.alone += session.scalars(whole)


def drain_queue(session: Session, policy: ClaimPolicy) -> Course:
    """Run all jobs, the oldest running one ending next."""
    course, running = Course(), claim_all(session, policy)
    course.note(session, running)
    while running:
        read(session, *running)
        more = claim_all(session, policy)
        course.note(session, more)
        first, *rest = [*running, *more]
        after = end(session, policy, first)
        course.note(session, after)
        running = [*rest, *after]
    return course


def unpredicted(policy: ClaimPolicy) -> ClaimPolicy:
    """The policy that reserves `max_tokens`."""
    return replace(policy, prediction=None)


def aged(session: Session, *jobs: Job) -> None:
    """They were submitted together, an hour ago."""
    an_hour_ago = update(Job).values(created_at=jobs[0].created_at - timedelta(hours=1))
    session.execute(an_hour_ago.where(Job.id.in_([job.id for job in jobs])))


def loaded(session: Session) -> EngineLoad:
    return engine_load.read(session, session.get_one(Engine, ENGINE, populate_existing=True))


def booked(session: Session) -> int:
    """Blocks that the engine's reservations take."""
    session.expire_all()
    return CAPACITY.max_blocks - loaded(session).budget.free_blocks


def running_ids(session: Session) -> Sequence[UUID]:
    return session.scalars(select(Reservation.job_id)).all()
