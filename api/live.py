"""Output as it is generated: one reader for everybody who listens, and the job's row when Redis is silent."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import redis.asyncio
from redis.exceptions import RedisError

from jobs import live, telemetry
from jobs.ids import uuid7
from jobs.live import Piece
from jobs.settings import BrokerSettings

_BLOCK_MS: Final = 1000
_RETRY_SECONDS: Final = 1.0
_MAX_PIECES: Final = 1000  # of one stream in one answer
_START: Final = b"0"


class LiveReader:
    """Reads the streams of jobs that somebody listens to, and which jobs have ended, on one connection."""

    def __init__(self, settings: BrokerSettings, *, on_ended: Callable[[Collection[UUID]], None]) -> None:
        """Args: on_ended: told of jobs whose rows say now how they ended; of some perhaps never."""
        url, seconds = settings.url.get_secret_value(), settings.socket_timeout_seconds
        options: Any = {"socket_connect_timeout": seconds, "health_check_interval": 0}
        self._broker = redis.asyncio.Redis.from_url(url, socket_timeout=seconds + _BLOCK_MS / 1000, **options)
        self._listeners: dict[UUID, set[asyncio.Queue[Piece]]] = defaultdict(set)
        self._read_to: dict[UUID, bytes] = {}
        # A blocked read is woken by an entry in a stream of this process's own.
        self._bell = f"longbatch:live:bell:{uuid7().hex}"
        self._heard = b"$"
        self._on_ended = on_ended
        self._ended_to: bytes | None = None
        self._is_away = False

    async def pieces(self, job_id: UUID) -> AsyncGenerator[Piece, None]:
        """What the job has generated since it began and goes on to generate; without end.

        Nothing comes while Redis is away, and pieces may overlap: see `live.Piece`.
        """
        mine: asyncio.Queue[Piece] = asyncio.Queue()
        # Who comes later reads from the beginning too: the others see old pieces again and drop them.
        self._listeners[job_id].add(mine)
        self._read_to[job_id] = _START
        with suppress(RedisError, OSError):
            await self._broker.xadd(self._bell, {"": ""}, maxlen=1)
            await self._broker.expire(self._bell, live.EXPIRES)
        try:
            while True:
                yield await mine.get()
        finally:
            self._listeners[job_id].discard(mine)
            if not self._listeners[job_id]:
                del self._listeners[job_id], self._read_to[job_id]

    async def run(self) -> None:
        """Reads until cancelled."""
        try:
            while True:
                try:
                    await self._read()
                except (RedisError, OSError) as error:
                    if not self._is_away:
                        telemetry.logger().warning(
                            telemetry.LOOP_FAILED, loop="live", error=type(error).__name__
                        )
                    self._is_away = True
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    self._is_away = False
        finally:
            await self._broker.aclose()

    async def _read(self) -> None:
        if self._ended_to is None:
            newest: Any = await self._broker.xrevrange(live.ENDED_KEY, count=1)
            self._ended_to = newest[0][0] if newest else _START
        asked = dict(self._read_to)
        streams: Any = {live.stream_key(job_id): position for job_id, position in asked.items()}
        streams |= {self._bell: self._heard, live.ENDED_KEY: self._ended_to}
        job_ids = {live.stream_key(job_id).encode(): job_id for job_id in asked}
        found: Any = await self._broker.xread(streams, count=_MAX_PIECES, block=_BLOCK_MS)
        for key, entries in found or ():
            job_id = job_ids.get(key)
            if key == live.ENDED_KEY.encode():
                self._ended_to = entries[-1][0]
                self._on_ended({UUID(fields[b"job"].decode()) for _, fields in entries})
            elif job_id is None:
                self._heard = entries[-1][0]
            # Somebody who came meanwhile has asked for the beginning again.
            elif self._read_to.get(job_id) == asked[job_id]:
                self._read_to[job_id] = entries[-1][0]
                for _, fields in entries:
                    self._tell(job_id, live.decode(fields))

    def _tell(self, job_id: UUID, piece: Piece) -> None:
        for listener in self._listeners.get(job_id, ()):
            listener.put_nowait(piece)
