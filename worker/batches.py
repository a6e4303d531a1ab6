"""The service worker's rounds over batches and files: short transactions, any number of workers at once."""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs import batches, files, ids, telemetry
from jobs.batches import expansion, results
from jobs.batches.context import BatchTools
from jobs.batches.due import DueBatch, find_due
from jobs.batches.validation import Validation
from jobs.database import database_now, transaction
from jobs.doorbell import BATCHES, SERVICE
from jobs.errors import LimitError
from jobs.files import stray_parts
from jobs.files.storage import FOLDERS, PartStore
from jobs.states import JobState
from jobs.states.batch import BatchState
from worker.duties import Duty, ServiceContext, Woken
from worker.rounds import FailingRows, do_each, is_disconnect, move_each, repeat

Sessions = sessionmaker[Session]

# Out of 256, drawn at random: any number of workers cover all of them within hours.
_FOLDERS_A_ROUND: Final = 8
_OWNER_REMEDY: Final = (
    "nothing is swept: restore the database that owns these bytes or, if this database replaces it and no"
    " other uses them, remove the file or object `owner`"
)


class _ExpansionError(Exception):
    """Expanding a batch's next lines failed; the failure is already recorded."""


@dataclass(slots=True)
class Moved:
    """The work that one round did.

    Attributes:
        num_steps: number of transactions that changed something.
        any_queued: the round queued jobs for engines.
        any_preparing: the round created jobs whose prompts must be counted.
        full: tenants and keys whose quotas it found full. Each look sums all of their unfinished jobs.
    """

    num_steps: int = 0
    any_queued: bool = False
    any_preparing: bool = False
    full: set[UUID] = field(default_factory=set)


def duties(context: ServiceContext) -> list[Duty]:
    """List the duties of batches and files. While there is work, the next round follows at once."""
    settings, every, is_stopping = context.settings, context.settings.maintenance, context.is_stopping
    tools = BatchTools.of(settings, context.counter)
    rounds = BatchMaintenance(context.sessions, tools)
    retention = timedelta(days=settings.batches.retention_days)

    def advance_all() -> int:
        moved = advance(context.sessions, tools, is_stopping=is_stopping)
        if moved.any_preparing:
            context.wake("prepare")
        if moved.any_queued:
            context.wake("inference")
        return moved.num_steps

    validate = partial(context.runner.run_next, Validation(tools, context.lease))
    prune = partial(rounds.prune, retention=retention, is_stopping=is_stopping)
    rung_by = (SERVICE, BATCHES)
    validated: tuple[Woken, ...] = ("validate", "batches", "deliver")
    return [
        Duty("validate", validate, every.batch_seconds, wakes=validated, rung_by=(SERVICE,)),
        Duty("batches", advance_all, every.batch_seconds, wakes=("batches", "deliver"), rung_by=rung_by),
        Duty("prune", prune, every.prune_seconds),
    ]


def advance(sessions: Sessions, tools: BatchTools, *, is_stopping: Callable[[], bool]) -> Moved:
    """Move every batch with work to do one step forward. A failing batch does not affect the others."""
    moved = Moved()
    with transaction(sessions) as session:
        due = find_due(session)
    for batch in due:
        if is_stopping():
            break
        try:
            _advance_one(sessions, tools, batch, moved)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a tokenizer's panic is not an Exception
            if is_disconnect(error):
                raise
            shown = ids.batch_id(batch.id)
            telemetry.log_failure(telemetry.ROW_FAILED, error, loop="batches", batch_id=shown)
            if not isinstance(error, _ExpansionError):
                with transaction(sessions) as session:
                    expansion.put_off(session, batch.id)
    return moved


class BatchMaintenance:
    """Cleanup rounds over all tenants' files and ended batches, which skip rows that keep failing."""

    def __init__(self, sessions: Sessions, tools: BatchTools) -> None:
        self._sessions = sessions
        self._tools = tools
        self._files = FailingRows("files-prune")

    def prune(self, *, retention: timedelta, is_stopping: Callable[[], bool]) -> None:
        """Remove expired files, batches past their retention, and unreferenced stored bytes."""
        with transaction(self._sessions) as session:
            now = database_now(session)
        folders = random.sample(FOLDERS, _FOLDERS_A_ROUND)
        sessions, store = self._sessions, self._tools.store
        remove = partial(files.prune, store=store, now=now)
        # Files one at a time: each has bytes in the store, which may fail to drop them.
        steps = (
            partial(repeat, sessions, partial(files.expire, now=now)),
            partial(move_each, sessions, self._files, files.unread(now), remove),
            partial(repeat, sessions, partial(batches.prune, before=now - retention)),
            partial(sweep_stray_parts, sessions, store, folders=folders),
        )
        do_each([partial(step, is_stopping=is_stopping) for step in steps])


def sweep_stray_parts(
    sessions: Sessions, store: PartStore, *, folders: Sequence[str], is_stopping: Callable[[], bool]
) -> int:
    """Drop the bytes in these folders that no row has referred to for a week.

    Drops nothing if the store belongs to another database: two databases sharing a store would delete
    each other's bytes, and a freshly created database would delete all of them. Returns how many objects
    it dropped.
    """
    with transaction(sessions) as session:
        name = stray_parts.owner(session)
    owner = store.owner()
    if owner is None:
        store.claim(name)  # the next round reads it back and relies on it
        return 0
    if owner != name:
        telemetry.logger().warning(
            telemetry.PARTS_FOREIGN_OWNER, owner=owner, database=name, remedy=_OWNER_REMEDY
        )
        return 0
    with transaction(sessions) as session:
        stray_parts.forget_old(session)
    num_swept = 0
    for keys in chain.from_iterable(map(store.list_keys, folders)):
        if is_stopping():
            break
        with transaction(sessions) as session:
            stray = stray_parts.take(session, keys)
        store.drop(stray)
        num_swept += len(stray)
    if num_swept:
        telemetry.logger().info(telemetry.PARTS_SWEPT, num_parts=num_swept)
    return num_swept


def _advance_one(sessions: Sessions, tools: BatchTools, batch: DueBatch, moved: Moved) -> None:
    """Stop, expand and collect one batch. Ended lines are collected even if reading further ones fails."""

    def stop() -> None:
        with transaction(sessions) as session:
            moved.num_steps += results.stop_jobs(session, batch.id) > 0

    def expand() -> None:
        jobs = None
        try:
            with suppress(LimitError), transaction(sessions) as session:  # queue full: its lines wait
                jobs = expansion.expand(session, batch.id, tools, full=moved.full)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if is_disconnect(error):
                raise
            with transaction(sessions) as session:
                expansion.note_failure(session, batch.id)
            raise _ExpansionError from error
        if jobs is not None:
            moved.num_steps += 1
            moved.any_queued |= any(job.state == JobState.QUEUED for job in jobs)
            moved.any_preparing |= any(job.state == JobState.PREPARING for job in jobs)

    def collect() -> None:
        with transaction(sessions) as session:
            moved.num_steps += results.collect(session, batch.id, tools.store, lifetime=tools.lifetime)

    has_room = not batch.needs_room or moved.full.isdisjoint(batch.quota_owners)
    do_each(
        [
            *([stop] if batch.state is BatchState.CANCELLING else []),
            *([expand] if batch.state is not BatchState.FINALIZING and has_room else []),
            *([] if batch.only_expands else [collect]),
        ]
    )
