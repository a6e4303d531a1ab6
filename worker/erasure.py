"""The service worker's round over tenants whose deletion was ordered: one bounded part of each at a time."""

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

import redis
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, live_output, telemetry
from jobs.database import transaction
from jobs.erasure import tenants
from jobs.erasure.parts import Part
from jobs.files.storage import PartStore
from jobs.files.stores import make_store
from jobs.models import Tenant
from worker.duties import Duty, ServiceContext
from worker.rounds import FailingRows, move_set

_AT_ONCE: Final = 100  # tenants in a round
_SCANNED: Final = 500  # keys of Redis that one command looks at


class TenantStores:
    """What tenants have outside of the database: the bytes of files, and keys of Redis.

    Redis may be down: what it has of a tenant expires by itself within ten minutes.
    """

    def __init__(self, files: PartStore, broker: redis.Redis) -> None:
        self._files = files
        self._broker = broker

    @property
    def files(self) -> PartStore:
        """Keeps the bytes of files."""
        return self._files

    def forget_jobs(self, job_ids: Collection[UUID]) -> None:
        """Remove the live output of these jobs."""
        with suppress(redis.RedisError, OSError):
            self._broker.unlink(*(live_output.stream_key(each) for each in job_ids))

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


def duties(context: ServiceContext, broker: redis.Redis) -> list[Duty]:
    """List the duty of deletions. While there is work, the next round follows at once."""
    settings, every = context.settings, context.settings.maintenance
    stores = TenantStores(make_store(settings.files), broker)
    work = TenantErasure(context.sessions, stores, keeps_usage=every.keep_usage_of_deleted)
    return [Duty("expire", work.run_once, every.expire_seconds, wakes=("expire",))]


def _remove_part(
    session: Session, *, only: Collection[UUID], stores: TenantStores, keeps_usage: bool
) -> Part | None:
    (tenant_id,) = only
    return tenants.remove_part(session, tenant_id, stores, keeps_usage=keeps_usage)
