"""Open streams of server-sent events: limits their number per tenant, and rechecks their keys."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final
from uuid import UUID

from api.runtime.api_keys import Caller
from api.runtime.compute import count_down
from api.runtime.database import Transactions
from jobs import telemetry
from jobs.errors import LimitError
from jobs.settings import ApiSettings
from jobs.tenants import keys
from jobs.tenants.keys import Scope

# A stream may end at any time, but a tenant at the limit has more likely forgotten to close some.
_RETRY_SECONDS: Final = 10


class StreamLimitError(LimitError):
    """You have reached your limit of open event streams."""

    code = "stream_limit_exceeded"
    limited = "streams"


class OpenStream:
    """A stream's place among those of its tenant, held from before its first event until after its last.

    Attributes:
        needed: the scope that the caller's key must keep; None: not known yet.
        is_refused: whether the key lost that scope, so that no further event may be sent.
    """

    def __init__(self, caller: Caller, release: "Callable[[OpenStream], None]") -> None:
        self.caller = caller
        self.needed: Scope | None = None
        self.is_refused = False
        self._release = release

    def release(self) -> None:
        """Release the place; idempotent."""
        self._release(self)


class EventStreams:
    """The open streams of this process."""

    def __init__(self, transactions: Transactions, settings: ApiSettings) -> None:
        self._transactions = transactions
        self._max_streams = settings.max_streams
        self._recheck_seconds = settings.recheck_seconds
        self._open: set[OpenStream] = set()
        self._num_of: Counter[UUID] = Counter()

    @contextmanager
    def opening(self, caller: Caller) -> Iterator[OpenStream]:
        """Take a place for a stream that outlives this context; an error releases it.

        Raises:
            StreamLimitError: all of the tenant's places are taken.
        """
        if self._num_of[caller.tenant_id] >= self._max_streams:
            message = f"You may have {self._max_streams} event streams open at once; close one, or poll."
            raise StreamLimitError(
                message, limit=self._max_streams, remaining=0, retry_after_seconds=_RETRY_SECONDS
            )
        stream = OpenStream(caller, self._close)
        self._open.add(stream)
        self._num_of[caller.tenant_id] += 1
        try:
            yield stream
        except BaseException:
            stream.release()
            raise

    async def run(self) -> None:
        """Recheck the keys of all open streams periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._recheck_seconds)
            try:
                await self._recheck()
            except Exception as error:  # noqa: BLE001  # the loop must outlive any one failure
                telemetry.logger().warning(
                    telemetry.LOOP_FAILED, loop="event-streams", error=type(error).__name__
                )

    async def _recheck(self) -> None:
        key_ids = {stream.caller.key_id for stream in self._open}
        if not key_ids:
            return
        scopes = await self._transactions.run_across(partial(keys.usable_scopes, key_ids=key_ids))
        for stream in self._open:
            # A stream opened since the query has a key verified a moment ago.
            if stream.caller.key_id in key_ids and stream.needed is not None:
                stream.is_refused = stream.needed not in scopes.get(stream.caller.key_id, frozenset())

    def _close(self, stream: OpenStream) -> None:
        if stream not in self._open:
            return
        self._open.remove(stream)
        count_down(self._num_of, stream.caller.tenant_id)
