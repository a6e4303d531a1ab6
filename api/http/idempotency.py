"""What a request says about being sent twice: an Idempotency-Key, or an SDK's own count of its retries."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

from fastapi import Depends, Header, Request

from api.http.dependencies import CallerDep, PartsDep
from jobs.tenants.idempotency import Once

# OpenAI's clients send no key, but how often they sent this before. They give up within minutes.
_RETRIES_FOR: Final = timedelta(minutes=15)

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[ -~]+$",
        description="printable ASCII; the same key and body give the same answer for 24 hours",
    ),
]


@dataclass(frozen=True, slots=True)
class Promise:
    """What the caller promises about this request.

    Attributes:
        key: the caller's own; None: none.
        num_retries: that the caller's library counts; None: it says nothing.
        sender: the API key and the route: equal bodies from elsewhere are other requests.
        valid_for: of the caller's own key.
    """

    key: str | None
    num_retries: int | None
    sender: str
    valid_for: timedelta

    @property
    def is_given(self) -> bool:
        """Whether there is any."""
        return self.key is not None or self.num_retries is not None

    def once(self, request_sha256: bytes) -> Once | None:
        """The promise for a request with this content; None: there is none, every request counts."""
        if self.key is not None:
            return Once(self.key, request_sha256, self.valid_for)
        if not self.is_given:
            return None
        key = f"retry\n{self.sender}\n{request_sha256.hex()}"
        return Once(key, request_sha256, _RETRIES_FOR, is_first=self.num_retries == 0)


async def find_promise(
    request: Request, caller: CallerDep, parts: PartsDep, key: IdempotencyKey = None
) -> Promise:
    """The promise that stands in the request's headers."""
    count = request.headers.get("x-stainless-retry-count", "")
    return Promise(
        key=key,
        num_retries=int(count) if count.isdecimal() and len(count) < 4 else None,
        sender=f"{caller.key_id.hex} {request.method} {request.url.path}",
        valid_for=timedelta(hours=parts.settings.jobs.idempotency_hours),
    )


PromiseDep = Annotated[Promise, Depends(find_promise)]
