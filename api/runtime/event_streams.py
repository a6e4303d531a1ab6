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
from jobs.tenants import keys, sign_ins
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
        session: the token of the console's session that opened it; None: a key did.
        needed: the scope that the caller's key must keep; None: not known yet.
        refused: set once the key lost that scope, or the session ended: no further event may be sent.
    """

    def __init__(
        self, caller: Caller, release: "Callable[[OpenStream], None]", *, session: str | None = None
    ) -> None:
        self.caller = caller
        self.session = session
        self.needed: Scope | None = None
        self.refused = asyncio.Event()
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
    def opening(self, caller: Caller, *, session: str | None = None) -> Iterator[OpenStream]:
        """Take a place for a stream that outlives this context; an error releases it.

        Args:
            caller: whose stream it is.
            session: the token of the console's session, with which the stream ends; None: a key opened it.

        Raises:
            StreamLimitError: all of the tenant's places are taken.
        """
        if self._num_of[caller.tenant_id] >= self._max_streams:
            message = f"You may have {self._max_streams} event streams open at once; close one, or poll."
            raise StreamLimitError(
                message, limit=self._max_streams, remaining=0, retry_after_seconds=_RETRY_SECONDS
            )
        stream = OpenStream(caller, self._close, session=session)
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

    def end_session(self, token: str) -> None:
        """End the streams that this session has open in this process; others end when they are rechecked."""
        for stream in self._open:
            if stream.session == token:
                stream.refused.set()

    async def _recheck(self) -> None:
        streams = [stream for stream in self._open if stream.needed is not None]
        key_ids = {stream.caller.key_id for stream in streams if stream.session is None}
        tokens = {stream.session for stream in streams if stream.session is not None}
        of_keys: dict[UUID, frozenset[str]] = {}
        of_sessions: dict[str, frozenset[str]] = {}
        if key_ids:
            of_keys = await self._transactions.run_across(partial(keys.usable_scopes, key_ids=key_ids))
        if tokens:
            of_sessions = await self._transactions.run_across(partial(sign_ins.usable_scopes, tokens=tokens))
        for stream in streams:
            key_id, token = stream.caller.key_id, stream.session
            scopes = of_keys.get(key_id) if token is None else of_sessions.get(token)
            if scopes is None or stream.needed not in scopes:
                stream.refused.set()

    def _close(self, stream: OpenStream) -> None:
        if stream not in self._open:
            return
        self._open.remove(stream)
        count_down(self._num_of, stream.caller.tenant_id)
