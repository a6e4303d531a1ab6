"""Batches as a service worker moves them on: short transactions, any number of workers at once."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Final
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from jobs import batch_expansion, batch_results, files, ids, stray_parts, telemetry
from jobs import batches as verbs
from jobs.batch_states import BatchState
from jobs.batch_validation import Validation
from jobs.batch_work import BatchTools
from jobs.database import database_now, transaction
from jobs.errors import LimitError
from jobs.states import JobState
from jobs.storage import FOLDERS, PartStore
from worker.turns import TurnTaker

Sessions = sessionmaker[Session]

# Of 256, drawn at random: any number of workers see all of them within hours.
_FOLDERS_A_ROUND: Final = 8


@dataclass(slots=True)
class Moved:
    """What a round did.

    Attributes:
        num_steps: transactions that changed something.
        any_queued: jobs for engines came in.
        any_preparing: prompts to be counted came in.
    """

    num_steps: int = 0
    any_queued: bool = False
    any_preparing: bool = False


def validate_next(taker: TurnTaker, work: Validation) -> bool:
    """Accept or refuse a batch that is new; False: none waits."""
    return taker.take(work) is not None


def advance(sessions: Sessions, tools: BatchTools, *, is_stopping: Callable[[], bool]) -> Moved:
    """Every batch with something to do is one part further; one that fails harms no other."""
    moved = Moved()
    with transaction(sessions) as session:
        due = batch_results.find_due(session)
    for batch_id, state in due:
        if is_stopping():
            break
        try:
            _advance_one(sessions, tools, batch_id, state, moved)
        except Exception as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise
            telemetry.logger().exception(
                telemetry.LOOP_FAILED, loop="batches", batch_id=ids.batch_id(batch_id)
            )
    return moved


def prune(
    sessions: Sessions, tools: BatchTools, *, retention: timedelta, is_stopping: Callable[[], bool]
) -> None:
    """Files whose life is over, and batches past their retention, are gone."""
    with transaction(sessions) as session:
        now = database_now(session)
    for remove in (
        partial(files.expire, now=now),
        partial(files.prune, store=tools.store, now=now),
        partial(verbs.prune, before=now - retention),
    ):
        while not is_stopping():
            with transaction(sessions) as session:
                if not remove(session):
                    break
    folders = random.sample(FOLDERS, _FOLDERS_A_ROUND)
    sweep_stray_parts(sessions, tools.store, folders=folders, is_stopping=is_stopping)


def sweep_stray_parts(
    sessions: Sessions, store: PartStore, *, folders: Sequence[str], is_stopping: Callable[[], bool]
) -> int:
    """Drop the bytes in these folders that no row names; count them.

    Nothing is dropped where the store is another database's: two that share it would take each other's.
    """
    with transaction(sessions) as session:
        name = stray_parts.owner(session)
    owner = store.owner()
    if owner is None:
        store.claim(name)  # and believed when the next round reads it
        return 0
    if owner != name:
        telemetry.logger().warning(telemetry.PARTS_OF_ANOTHER, owner=owner)
        return 0
    num_swept = 0
    for keys in chain.from_iterable(map(store.list_keys, folders)):
        if is_stopping():
            break
        with transaction(sessions) as session:
            stray = stray_parts.find(session, keys)
        store.drop(stray)
        num_swept += len(stray)
    if num_swept:
        telemetry.logger().info(telemetry.PARTS_SWEPT, num_parts=num_swept)
    return num_swept


def _advance_one(
    sessions: Sessions, tools: BatchTools, batch_id: UUID, state: BatchState, moved: Moved
) -> None:
    if state is BatchState.CANCELLING:
        with transaction(sessions) as session:
            moved.num_steps += batch_results.stop_jobs(session, batch_id) > 0
    if state is not BatchState.FINALIZING:
        jobs = None
        with suppress(LimitError), transaction(sessions) as session:  # full: its lines wait
            jobs = batch_expansion.expand(session, batch_id, tools)
        if jobs is not None:
            moved.num_steps += 1
            moved.any_queued |= any(job.state == JobState.QUEUED for job in jobs)
            moved.any_preparing |= any(job.state == JobState.PREPARING for job in jobs)
    with transaction(sessions) as session:
        moved.num_steps += batch_results.collect(session, batch_id, tools.store, lifetime=tools.lifetime)
