"""The service worker's rounds over tenants that go, or whose content does: bounded parts of each."""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

import redis
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, live_output, telemetry
from jobs.database import database_now, transaction
from jobs.erasure import tenants, zero_retention
from jobs.erasure.parts import Part
from jobs.erasure.zero_retention import Step, Walk
from jobs.files.storage import PartStore
from jobs.files.stores import make_store
from jobs.models import Tenant
from worker.duties import Duty, ServiceContext
from worker.rounds import FailingRows, is_disconnect, move_set

_AT_ONCE: Final = 100  # tenants in a round
_SCANNED: Final = 500  # keys of Redis that one command looks at


class TenantStores:
    """What tenants have outside of the database: the bytes of files, and keys of Redis.

    Redis may be down: what it has of a tenant expires by itself within ten minutes.
    """

    def __init__(self, files: PartStore, broker: redis.Redis) -> None:
        self._files = files
        self._broker = broker
        self._forgotten: deque[tuple[float, list[str]]] = deque()

    @property
    def files(self) -> PartStore:
        """Keeps the bytes of files."""
        return self._files

    def forget_jobs(self, job_ids: Collection[UUID]) -> None:
        """Remove the live output of these jobs, now and in a later round."""
        keys = [live_output.stream_key(each) for each in job_ids]
        self._forgotten.append((time.monotonic(), keys))
        with suppress(redis.RedisError, OSError):
            self._broker.unlink(*keys)

    def forget_last_words(self) -> None:
        """Remove once more what workers published after the ends of jobs that were forgotten before."""
        before = time.monotonic() - live_output.LAST_WORDS.total_seconds()
        while self._forgotten and self._forgotten[0][0] < before:
            _, keys = self._forgotten.popleft()
            with suppress(redis.RedisError, OSError):
                self._broker.unlink(*keys)

    def forget_tenant(self, tenant_id: UUID) -> None:
        """Remove the counts of the tenant's requests."""
        with suppress(redis.RedisError, OSError):
            for key in self._broker.scan_iter(match=f"*{tenant_id.hex}*", count=_SCANNED):
                self._broker.unlink(key)


class TenantErasure:
    """Removes tenants part by part, and skips one that keeps failing."""

    def __init__(self, sessions: sessionmaker[Session], stores: TenantStores, *, keeps_usage: bool) -> None:
        self._sessions = sessions
        self._remove = partial(_remove_part, stores=stores, keeps_usage=keeps_usage)
        self._failing = FailingRows("erasure")

    def run_once(self) -> int:
        """Remove a part of each tenant whose deletion was ordered. Returns how many had one."""
        with transaction(self._sessions) as session:
            aside = self._failing.ids()
            due = session.scalars(tenants.ordered().limit(_AT_ONCE + len(aside))).all()
        num_parts = 0
        for tenant_id in [each for each in due if each not in aside][:_AT_ONCE]:
            rows = tenants.ordered().where(Tenant.id == tenant_id)
            for part in move_set(self._sessions, self._failing, rows, self._remove, limit=1):
                num_parts += part is not None
                if part is not None and part.is_last:
                    telemetry.logger().info(telemetry.TENANT_DELETED, tenant_id=ids.tenant_id(tenant_id))
        return num_parts


class ZeroRetention:
    """Removes what was delivered of tenants without retention, and what has waited too long."""

    def __init__(self, sessions: sessionmaker[Session], stores: TenantStores) -> None:
        self._sessions = sessions
        self._stores = stores
        self._failing = {step: FailingRows("zero-retention") for step in zero_retention.STEPS}
        # Only how far this process has come; another one begins at the beginning.
        self._walks: dict[UUID, Walk] = {}
        self._last = UUID(int=0)

    def run_once(self) -> int:
        """Look at some of these tenants, each in its turn. Returns how many rows lost something."""
        self._stores.forget_last_words()
        with transaction(self._sessions) as session:
            every = session.scalars(zero_retention.due()).all()
        self._walks = {each: self._walks.get(each, Walk()) for each in every}
        in_turn = sorted(every, key=lambda each: (each <= self._last, each))[:_AT_ONCE]
        if not in_turn:
            return 0
        self._last = in_turn[-1]
        num_rows = 0
        for tenant_id, steps in self._find_work(in_turn).items():
            rows = zero_retention.due().where(Tenant.id == tenant_id)
            for step in steps:
                remove = partial(self._remove, step)
                num_rows += sum(move_set(self._sessions, self._failing[step], rows, remove, limit=1))
        return num_rows

    def _find_work(self, tenant_ids: Sequence[UUID]) -> Mapping[UUID, Sequence[Step]]:
        """Find the steps to take; all of them if that fails, as it may for one tenant's sake."""
        try:
            with transaction(self._sessions) as session:
                return zero_retention.find_work(session, tenant_ids)
        except DBAPIError as error:
            if is_disconnect(error):
                raise
            telemetry.log_failure(telemetry.LOOP_FAILED, error, loop="zero-retention")
        return dict.fromkeys(tenant_ids, zero_retention.STEPS)

    def _remove(self, step: Step, session: Session, *, only: Collection[UUID]) -> int:
        (tenant_id,) = only
        now, walk = database_now(session), self._walks[tenant_id]
        return zero_retention.remove_part(session, tenant_id, step, self._stores, walk, now=now)


def duties(context: ServiceContext, broker: redis.Redis) -> list[Duty]:
    """List the duties of deletions and of zero retention.

    While there is work, the next round follows at once. Each has a thread of its own: they wait for file
    stores and Redis, and the end of a deletion reads whole tables; jobs that expire must not wait for that.
    """
    settings, every = context.settings, context.settings.maintenance
    stores = TenantStores(make_store(settings), broker)
    work = TenantErasure(context.sessions, stores, keeps_usage=every.keep_usage_of_deleted)
    content = ZeroRetention(context.sessions, stores)
    return [
        Duty("erasure", work.run_once, every.expire_seconds, wakes=("erasure",)),
        Duty("retention", content.run_once, every.expire_seconds, wakes=("retention",)),
    ]


def _remove_part(
    session: Session, *, only: Collection[UUID], stores: TenantStores, keeps_usage: bool
) -> Part | None:
    (tenant_id,) = only
    return tenants.remove_part(session, tenant_id, stores, keeps_usage=keeps_usage)
