"""Live output: one Redis reader serves all followers, who fall back to the job's row if Redis is silent."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import redis.asyncio
from redis.exceptions import RedisError

from jobs import live_output, telemetry
from jobs.ids import uuid7
from jobs.live_output import Delta
from jobs.settings import BrokerSettings

_BLOCK_MS: Final = 1000
_RETRY_SECONDS: Final = 1.0
_MAX_DELTAS: Final = 1000  # of one stream in one answer
_START: Final = b"0"


@dataclass(eq=False, slots=True)
class _Listener:
    """A follower of a job; gets each delta once, so that a slow reader holds no output twice."""

    deltas: "asyncio.Queue[Delta]" = field(default_factory=asyncio.Queue)
    read_to: tuple[int, int] = (-1, 0)


class LiveReader:
    """Reads the streams of followed jobs, and the stream of ended jobs, on one connection."""

    def __init__(
        self, settings: BrokerSettings, *, on_ended: Callable[[Collection[UUID]], None] = lambda _: None
    ) -> None:
        """Args: on_ended: called with ended jobs, once their rows show it; may miss some."""
        url, seconds = settings.url.get_secret_value(), settings.socket_timeout_seconds
        options: Any = {"socket_connect_timeout": seconds, "health_check_interval": 0}
        self._broker = redis.asyncio.Redis.from_url(url, socket_timeout=seconds + _BLOCK_MS / 1000, **options)
        self._listeners: dict[UUID, set[_Listener]] = defaultdict(set)
        self._read_to: dict[UUID, bytes] = {}
        # A blocked read is woken by an entry in a stream of this process's own.
        self._wake_stream = f"longbatch:live:wake:{uuid7().hex}"
        self._wake_read_to = b"$"
        self._on_ended = on_ended
        self._forgetting: set[asyncio.Task[None]] = set()
        self._ended_to: bytes | None = None
        self._is_away = False
        self._waking: asyncio.Task[None] | None = None
        self._is_wake_due = False

    @property
    def num_listeners(self) -> int:
        """Number of followers of all jobs."""
        return sum(map(len, self._listeners.values()))

    async def deltas(self, job_id: UUID) -> AsyncGenerator[Delta, None]:
        """Yield the job's output from its beginning and as it is generated, without end.

        Yields nothing while Redis is unreachable, and deltas may overlap: see `jobs.live_output`.
        """
        mine = _Listener()
        # A later follower reads from the beginning too; the others do not get the old deltas again.
        self._listeners[job_id].add(mine)
        self._read_to[job_id] = _START
        self._wake_reader()
        try:
            while True:
                yield await mine.deltas.get()
        finally:
            self._listeners[job_id].discard(mine)
            if not self._listeners[job_id]:
                del self._listeners[job_id], self._read_to[job_id]

    async def announce(self, ended: Collection[UUID]) -> None:
        """Tell the readers of all processes that jobs have ended, if Redis works."""
        with suppress(RedisError, OSError):
            await self._broker.eval(live_output.ANNOUNCE, 1, *live_output.announcement(ended))

    async def forget(self, job_ids: Collection[UUID]) -> None:
        """Remove the live output of these jobs, if Redis works; otherwise it expires.

        Now, and once more when their workers have published their last words, which follow their ends.
        """
        if job_ids:
            await self._unlink(job_ids)
            self._forgetting.add(task := asyncio.create_task(self._forget_later(job_ids)))
            task.add_done_callback(self._forgetting.discard)

    async def _forget_later(self, job_ids: Collection[UUID]) -> None:
        await asyncio.sleep(live_output.LAST_WORDS.total_seconds())
        await self._unlink(job_ids)

    async def _unlink(self, job_ids: Collection[UUID]) -> None:
        with suppress(RedisError, OSError):
            await self._broker.unlink(*map(live_output.stream_key, job_ids))

    async def run(self) -> None:
        """Read the streams until cancelled."""
        me = asyncio.current_task()
        try:
            # The client can lose a cancellation that arrives while it connects or reads a response.
            while me is None or not me.cancelling():
                try:
                    await self._read()
                except Exception as error:  # noqa: BLE001  # the loop must outlive any one failure
                    if not self._is_away:
                        telemetry.logger().warning(
                            telemetry.LOOP_FAILED, loop="live-output", error=type(error).__name__
                        )
                    self._is_away = True
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._is_away = False
        finally:
            for task in self._forgetting:
                task.cancel()
            if self._waking is not None:
                self._waking.cancel()
            await self._broker.aclose()

    def _wake_reader(self) -> None:
        """Wake the reader from a task of its own, so that no follower waits for Redis."""
        self._is_wake_due = True
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake_all())

    async def _wake_all(self) -> None:
        while self._is_wake_due:
            self._is_wake_due = False
            with suppress(RedisError, OSError):
                await self._broker.xadd(self._wake_stream, {"": ""}, maxlen=1)
                await self._broker.expire(self._wake_stream, live_output.EXPIRES)

    async def _read(self) -> None:
        if self._ended_to is None:
            newest: Any = await self._broker.xrevrange(live_output.ENDED_KEY, count=1)
            self._ended_to = newest[0][0] if newest else _START
        asked = dict(self._read_to)
        streams: Any = {live_output.stream_key(job_id): position for job_id, position in asked.items()}
        streams |= {self._wake_stream: self._wake_read_to, live_output.ENDED_KEY: self._ended_to}
        job_ids = {live_output.stream_key(job_id).encode(): job_id for job_id in asked}
        found: Any = await self._broker.xread(streams, count=_MAX_DELTAS, block=_BLOCK_MS)
        for key, entries in found or ():
            job_id = job_ids.get(key)
            if key == live_output.ENDED_KEY.encode():
                self._ended_to = entries[-1][0]
                self._on_ended({live_output.ended_job(fields) for _, fields in entries})
            elif job_id is None:
                self._wake_read_to = entries[-1][0]
            # Unless a new follower has reset the position to the beginning meanwhile.
            elif self._read_to.get(job_id) == asked[job_id]:
                self._read_to[job_id] = entries[-1][0]
                for entry_id, fields in entries:
                    self._deliver(job_id, _position(entry_id), live_output.decode(fields))

    def _deliver(self, job_id: UUID, place: tuple[int, int], delta: Delta) -> None:
        for listener in self._listeners.get(job_id, ()):
            if place > listener.read_to:
                listener.read_to = place
                listener.deltas.put_nowait(delta)


def _position(entry_id: bytes) -> tuple[int, int]:
    """Parse an entry's id into its position in the stream."""
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)
