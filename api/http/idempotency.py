"""Idempotency of requests: from an Idempotency-Key, or from the retry count that an SDK sends."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, TypeVar
from uuid import UUID

from fastapi import Depends, Header, Request
from sqlalchemy.orm import Session

from api.http.dependencies import caller_of, services_of
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently

T = TypeVar("T")

# OpenAI's clients send a retry count instead of a key. They give up within minutes.
_RETRIES_FOR: Final = timedelta(minutes=15)

IdempotencyKeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[ -~]+$",
        description="Printable ASCII. The same key and body return the same response for 24 hours.",
    ),
]


@dataclass(frozen=True, slots=True)
class IdempotencyHeaders:
    """The idempotency that the caller asks for with this request.

    Attributes:
        key: the caller's Idempotency-Key; None if there is none.
        num_retries: retries counted by the caller's library; None if it sends no count.
        sender: API key and route; an equal body from another sender is a different request.
        valid_for: how long the caller's key is remembered.
    """

    key: str | None
    num_retries: int | None
    sender: str
    valid_for: timedelta

    @property
    def is_given(self) -> bool:
        """Whether the request carries a key or a retry count."""
        return self.key is not None or self.num_retries is not None

    def for_request(self, request_sha256: bytes) -> IdempotencyGuard | None:
        """Return the guard that makes a request with this content run once.

        Returns:
            None: the request asks for no idempotency, so each one counts.
        """
        if self.key is not None:
            return IdempotencyGuard(self.key, request_sha256, self.valid_for)
        if not self.is_given:
            return None
        key = f"retry\n{self.sender}\n{request_sha256.hex()}"
        return IdempotencyGuard(key, request_sha256, _RETRIES_FOR, is_first_try=self.num_retries == 0)

    def run(
        self,
        session: Session,
        request_sha256: bytes,
        make: Callable[[Session], T],
        *,
        tenant_id: UUID,
        kind: RequestKind[T],
    ) -> tuple[T, bool]:
        """Make what this request asks for, or return what an earlier copy of it made.

        Returns:
            What was made, and True if an earlier request made it.
        """
        guard = self.for_request(request_sha256)
        return run_idempotently(session, guard, make, tenant_id=tenant_id, kind=kind)


_NOT_GIVEN: Final = IdempotencyHeaders(None, None, "", timedelta())


async def read_idempotency_headers(request: Request, key: IdempotencyKeyHeader = None) -> IdempotencyHeaders:
    """Read the idempotency of the request from its headers."""
    count = request.headers.get("x-stainless-retry-count", "")
    if key is None and not count:
        return _NOT_GIVEN
    services, caller = services_of(request), caller_of(request)
    return IdempotencyHeaders(
        key=key,
        num_retries=int(count) if count.isdecimal() and len(count) < 4 else None,
        sender=f"{caller.key_id.hex} {request.method} {request.scope['path']}",
        valid_for=timedelta(hours=services.settings.jobs.idempotency_hours),
    )


IdempotencyDep = Annotated[IdempotencyHeaders, Depends(read_idempotency_headers)]
