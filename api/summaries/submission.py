"""Requests about documents, stored once: of summaries, answers and extractions; and how their rows stop."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from api.runtime.traces import traced
from jobs import summaries
from jobs.doorbell import SERVICE
from jobs.models import JsonObject, Summary
from jobs.states.summary import Purpose
from jobs.tenants import quotas, stored_bytes
from jobs.tenants.idempotency import RequestKind
from jobs.validation import Closed

T = TypeVar("T")
Create = Callable[[Session], list[Summary]]


@dataclass(frozen=True, slots=True)
class Submission(Generic[T]):
    """A checked request about documents.

    Attributes:
        asked: by the caller.
        webhook_url: where its events go, besides the tenant's endpoints; None: nowhere else.
        create: makes its rows.
        describe: returns the public shape of rows.
        kind: of the request, for its idempotency key.
        later_fields: of the request that releases before did not have, and hashed the same request without.
    """

    asked: Closed
    webhook_url: str | None
    create: Create
    describe: Callable[[Session, list[Summary]], list[T]]
    kind: RequestKind[list[Summary]]
    later_fields: Collection[str] = ()

    async def store(
        self, services: Services, *, tenant_id: UUID, idempotency: IdempotencyHeaders
    ) -> tuple[list[T], bool]:
        """Store it, and wake those who plan it.

        Returns:
            The public shapes of its rows, and True if an earlier request with the same key made them.
        """
        await services.admit_callback(self.webhook_url, tenant_id=tenant_id)
        digest, create = self._digest(), traced(self.create)

        def run(session: Session) -> tuple[list[T], bool]:
            made, replayed = idempotency.run(session, digest, create, tenant_id=tenant_id, kind=self.kind)
            return self.describe(session, made), replayed

        found = await services.transact(run)
        services.doorbell.ring(SERVICE)
        return found

    def _digest(self) -> bytes:
        """Hash what the request means."""
        unset = {name for name in self.later_fields if not getattr(self.asked, name)}
        fields = self.asked.model_dump(mode="json", exclude=unset)
        return sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def within_storage(create: Create, services: Services, *, tenant_id: UUID) -> Create:
    """Let `create` make rows only if their tenant may keep what they ask.

    It is stored with each document, so a small request may store megabytes. The function that is returned
    raises `LimitError`.
    """

    def run(session: Session) -> list[Summary]:
        limits = quotas.read_limits(session, tenant_id, services.settings.limits)
        if not limits.max_stored_bytes:
            return create(session)
        before = stored_bytes.read(session, tenant_id)
        made = create(session)
        more = max(0, stored_bytes.read(session, tenant_id) - before)  # less if others delete meanwhile
        quotas.admit_stored(session, tenant_id, more, limits=limits)
        return made

    return run


async def cancel_rows(services: Services, row_id: UUID, *, tenant_id: UUID, purpose: Purpose) -> None:
    """Cancel a row of this purpose, and some of its jobs at once; a service worker stops the others.

    Raises:
        NotFoundError: the tenant has none of this id.
    """
    await services.transact(summaries.cancel, summary_id=row_id, tenant_id=tenant_id, purpose=purpose)
    # In its own transaction, because it must lock the rows of jobs first; a service worker repeats it.
    await services.transact(summaries.stop_jobs, summary_id=row_id, tenant_id=tenant_id)
    services.doorbell.ring(SERVICE)


def request_kind(name: str) -> RequestKind[list[Summary]]:
    """Return the kind of request whose idempotency keys bear this name."""
    return RequestKind(name, record=_ids_to_record, find=_find_recorded)


def _ids_to_record(made: list[Summary]) -> JsonObject:
    return {_IDS: [each.id.hex for each in made]}


def _find_recorded(session: Session, recorded: UUID | JsonObject) -> list[Summary] | None:
    """Find the rows of an earlier request.

    Returns:
        None: at least one no longer exists, so all are made again.
    """
    listed = recorded.get(_IDS) if isinstance(recorded, dict) else None
    if not isinstance(listed, list):
        return None
    found = [session.get(Summary, UUID(hex=each)) for each in listed]
    kept = [each for each in found if each is not None]
    return kept if len(kept) == len(found) else None


_IDS: Final = "summary_ids"  # of any purpose
