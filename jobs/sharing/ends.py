"""How twins end: with a copy of their leader's result, or one of them takes its place.

A twin is `blocked` and has a digest. It ends exactly once, as every move out of that state is guarded and
holds its row. Rows that another transaction holds, and those that are too many for the transaction that ends
their leader, are left to the rounds of `settle`, which look only at what is stored: a process killed at any
statement leaves nothing to repair.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from typing import Final
from uuid import UUID

from psycopg.errors import UniqueViolation
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    LargeBinary,
    Select,
    Uuid,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

from jobs import checkpoints, finishing
from jobs.checkpoints import GENERATED
from jobs.database.sealed_columns import has_key
from jobs.job_rows import move
from jobs.models import Checkpoint, Job, Result
from jobs.sealing.content import ContentSealer
from jobs.states import JobState
from jobs.trees.progress import HOPELESS

# Twins that end in the transaction of their leaders: a claim may be waiting for it. The others take a moment.
_AT_ONCE: Final = 32
# Twins that one round ends.
MOST_SETTLED: Final = 500


def follow(session: Session, ended: Sequence[Job]) -> bool:
    """Let twins of these jobs, which have just ended, end as they did, or let one of them run in their place.

    A twin whose row cannot be changed does not keep its leader from ending.

    Returns:
        True if a webhook wants one of the ends.
    """
    leaders = [job for job in ended if job.has_twins]
    has_deliveries, num_left = False, _AT_ONCE
    for leader in leaders:
        if not _is_for_all(leader):
            _hand_on(session, leader)
        elif num_left:
            num_ended, is_wanted = _share(session, leader, limit=num_left)
            num_left -= num_ended
            has_deliveries |= is_wanted
    if kept := [job.id for job in leaders if job.state != JobState.COMPLETED]:
        checkpoints.drop(session, kept)
    return has_deliveries


def _share(session: Session, leader: Job, *, limit: int) -> tuple[int, bool]:
    """End some twins of this job as it ended; see `end_as`."""
    waiting = _twins_of(leader).limit(limit).with_for_update(skip_locked=True)
    try:
        with session.begin_nested():
            return end_as(session, leader, session.scalars(waiting).all())
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        return 0, False


def _hand_on(session: Session, leader: Job) -> None:
    """Let the oldest twin of this job run in its place, from its checkpoint."""
    heir = session.scalar(_twins_of(leader).limit(1).with_for_update(skip_locked=True))
    if heir is not None:
        _promote(session, heir, leader)


@cache
def any_twin() -> Select[bool]:
    """Select whether any twin waits. Most often none does, and `left_alone` takes Postgres 4 ms to plan."""
    return select(exists().where(*_waits(Job)))


@cache  # a round asks twice a second, and building it takes ten times as long as its answer
def left_alone() -> Select[UUID]:
    """Select twins without a leader, and those for which there is an end, by digest and age."""
    first, after, leader, ended, refused, oldest, twin = (aliased(Job) for _ in range(7))
    start = select(first.request_digest.label("digest")).where(*_waits(first)).order_by(first.request_digest)
    walk = select(start.limit(1).subquery().c.digest).cte("walk", recursive=True)
    following = (
        select(after.request_digest)
        .where(*_waits(after), after.request_digest > walk.c.digest)
        .order_by(after.request_digest)
        .limit(1)
    )
    walk = walk.union_all(select(following.scalar_subquery()).where(walk.c.digest.is_not(None)))
    leads = select(leader.id).where(leader.request_digest == walk.c.digest, leader.state.in_(_LEADING))
    waiting = select(oldest.created_at).where(*_waits(oldest), oldest.request_digest == walk.c.digest)
    since = waiting.order_by(oldest.id).limit(1).scalar_subquery()

    def leaves(run: type[Job], *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
        mine = select(run.id).where(run.request_digest == walk.c.digest, run.finalized_at > since)
        return mine.where(*conditions).exists()

    left = or_(leaves(ended, ended.state == _COMPLETED), leaves(refused, *_is_hopeless(refused)))
    alone = select(walk.c.digest).where(walk.c.digest.is_not(None), or_(~leads.exists(), left))
    digests = alone.subquery()
    twins = select(twin.id).where(*_waits(twin), twin.request_digest == digests.c.digest).order_by(twin.id)
    each = twins.limit(MOST_SETTLED).lateral()
    return select(each.c.id).select_from(digests).join(each, literal_column("true"))


def settle(session: Session, only: Sequence[UUID]) -> int:
    """End those of these twins for which there is a result, or let one of each digest run.

    Returns:
        How many ended or became leaders.
    """
    waiting = select(Job).where(Job.id.in_(only), *_waits(Job)).order_by(Job.id)
    twins: dict[bytes, list[Job]] = defaultdict(list)
    for twin in session.scalars(waiting.with_for_update(skip_locked=True)):
        twins[twin.request_digest or b""].append(twin)
    num_moved = 0
    for digest, group in sorted(twins.items()):  # in the order of `arrivals`: no deadlock
        num_moved += _settle_equal(session, digest, group)
    return num_moved


def newest_results(digests: Collection[bytes], sealer: ContentSealer) -> Select[Job]:
    """Select the newest run of each of these requests that left a result, as `_newest` does.

    One whose key the sealer has not is no answer to give.
    """
    given = (
        func.unnest(literal(sorted(digests), ARRAY(LargeBinary()))).table_valued("digest").render_derived()
    )
    mine = select(Result.job_id).where(Result.job_id == Job.id, has_key(Result.output, sealer))
    newest = _newest(Job.request_digest == given.c.digest, Job.state == _COMPLETED, mine.exists()).lateral()
    return select(aliased(Job, newest)).select_from(given).join(newest, literal_column("true"))


def _settle_equal(session: Session, digest: bytes, twins: Sequence[Job]) -> int:
    for of_run in ([Job.state == _COMPLETED], _is_hopeless(Job)):
        source = session.scalar(_newest(Job.request_digest == digest, *of_run))
        ended = [twin.id for twin in twins if source and _is_since(source, twin)]
        if source is not None and ended:
            return end_as(session, source, ended)[0]
    return _promote(session, twins[0].id, None)


def _newest(*conditions: ColumnElement[bool]) -> Select[Job]:
    """Select the newest of these runs; the transaction keeps it from deletion.

    One that is just being deleted counts as gone: its deletion may wait for a text that the caller holds.
    """
    newest = select(Job).where(*conditions).order_by(Job.finalized_at.desc()).limit(1)
    return newest.with_for_update(read=True, key_share=True, skip_locked=True)


def end_as(session: Session, leader: Job, twin_ids: Sequence[UUID]) -> tuple[int, bool]:
    """End these twins as their leader ended, with usage and events of their own; the caller holds their rows.

    Returns:
        How many ended, and whether a webhook wants one of the ends.
    """
    ended = _copy_end(session, leader, twin_ids)
    return len(ended), finishing.record(session, ended)


def _copy_end(session: Session, leader: Job, twin_ids: Sequence[UUID]) -> list[Job]:
    which = Job.id.in_(twin_ids)
    if leader.state == JobState.FAILED:
        counted = func.coalesce(Job.prompt_tokens, leader.prompt_tokens)
        copied = {"error": leader.error, "request_digest": None}  # it is no run
        return move(session, "share_failure", which, prompt_tokens=counted, **copied)
    twins = move(
        session,
        "share",
        which,
        prompt_tokens=leader.prompt_tokens,
        cached_tokens=leader.prompt_tokens,  # no engine computed any of it
        completion_tokens=leader.completion_tokens,
        finish_reason=leader.finish_reason,
        request_digest=None,  # it is no run: the age of an answer counts from its run's end
        # It used no engine, so `engine_name` stays null and no speed is measured by it.
        started_at=func.greatest(Job.created_at, leader.started_at),
        first_token_at=func.greatest(Job.created_at, leader.first_token_at),
    )
    columns = [getattr(Result, name) for name in GENERATED]
    ids = func.unnest(literal([twin.id for twin in twins], ARRAY(Uuid())))
    copies = select(ids, *columns).where(Result.job_id == leader.id)
    session.execute(insert(Result).from_select(["job_id", *GENERATED], copies))
    return twins


def _promote(session: Session, heir_id: UUID, leader: Job | None) -> int:
    """Make this twin the leader, unless another transaction has just made one.

    It spends no more attempts or rescues than its leader left: the request may be what kills workers.
    """
    try:
        with session.begin_nested():
            heir = session.get_one(Job, heir_id, populate_existing=True)
            given: dict[str, object] = {}
            length = heir.prompt_tokens
            if leader is not None:
                length = length or leader.prompt_tokens
                _take_over_output(session, heir, leader)
                if leader.state == JobState.FAILED:
                    given = {"attempt": max(0, leader.attempt - 1), "num_rescues": leader.num_rescues}
            if length is not None:
                given |= {"prompt_tokens": length, "reserved_tokens": length + heir.max_tokens}
            others = select(func.max(Job.rank)).where(*_waits(Job), Job.request_digest == heir.request_digest)
            given |= {"has_twins": True, "rank": session.scalar(others)}
            given["completion_tokens"] = checkpoints.num_saved()
            return len(move(session, "unblock" if length is None else "promote", Job.id == heir_id, **given))
    except DBAPIError as error:
        is_late = isinstance(error.orig, UniqueViolation)
        if is_late or (leader is not None and not error.connection_invalidated):
            return 0  # a leader ends whatever becomes of its twins: a round tries again
        raise


def _take_over_output(session: Session, heir: Job, leader: Job) -> None:
    """Copy the leader's checkpoint, if a run can continue from it."""
    names = [*GENERATED, "num_tokens", "fingerprint"]
    columns = [getattr(Checkpoint, name) for name in names]
    saved = select(literal(heir.id), *columns).where(
        Checkpoint.job_id == leader.id, Checkpoint.fingerprint != ""
    )
    session.execute(insert(Checkpoint).from_select(["job_id", *names], saved))


def _is_for_all(leader: Job) -> bool:
    """Return True if another run of the request would end in the same way."""
    failed_hopelessly = leader.error is not None and leader.error.get("code") in HOPELESS
    return leader.state == JobState.COMPLETED or failed_hopelessly


def _is_hopeless(job: type[Job]) -> list[ColumnElement[bool]]:
    """Match runs that failed as any other one would, in the words of their index."""
    return [
        job.request_digest.is_not(None),
        job.state == literal_column("'failed'"),
        job.error["code"].as_string().in_(sorted(HOPELESS)),
    ]


def _is_since(source: Job, twin: Job) -> bool:
    return source.finalized_at is not None and source.finalized_at > twin.created_at


def _twins_of(leader: Job) -> Select[UUID]:
    waiting = select(Job.id).where(*_waits(Job), Job.request_digest == leader.request_digest)
    return waiting.order_by(Job.id)


def _waits(job: type[Job]) -> tuple[ColumnElement[bool], ...]:
    """Match twins, in the words of their index."""
    return (job.request_digest.is_not(None), job.state == literal_column("'blocked'"))


_COMPLETED: Final[ColumnElement[str]] = literal_column("'completed'")
_LEADING: Final[Sequence[ColumnElement[str]]] = [
    literal_column(f"'{state}'") for state in ("preparing", "queued", "running")
]
