"""A connection to Redis for commands that nobody waits for: they are sent at once, and answered later."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.connection import Connection


class BrokerLine:
    """Sends from any thread without waiting: one message of up to 100 kB at a time fits the socket's buffer.

    A thread of its owner connects it, and reads the answers; nobody sends before that. Whoever sends, or
    loses it, has the owner's lock.
    """

    def __init__(self, broker: redis.Redis) -> None:
        self._broker = broker
        self.connection: Connection | None = None
        self._asked: Connection | None = None  # where the last message went
        self._num_asked = 0

    @property
    def is_awaited(self) -> bool:
        """Whether an answer is to come: nothing else may be sent before it is read."""
        return self._asked is not None

    def connect(self) -> None:
        """Connect, unless it is connected or the broker does not answer."""
        if self.connection is None:
            with suppress(redis.RedisError, OSError):
                self.connection = self._broker.connection_pool.get_connection()

    def send(self, commands: Sequence[Sequence[Any]]) -> bool:
        """Send these commands; return False if they are lost."""
        if self.connection is None:
            return False
        try:
            packed = self.connection.pack_commands(commands)  # type: ignore[no-untyped-call]  # as below
            # Nothing that waits for an answer.
            self.connection.send_packed_command(packed, check_health=False)  # type: ignore[no-untyped-call]  # the library leaves it so
        except (redis.RedisError, OSError):
            self.lose()
            return False
        self._asked, self._num_asked = self.connection, len(commands)
        return True

    def answers(self) -> list[Any]:
        """Wait for the answers to what was sent.

        Raises:
            redis.RedisError, OSError: it may be lost; `lose` the line.
        """
        if (asked := self._asked) is None:
            return []
        found = [asked.read_response() for _ in range(self._num_asked)]
        self._asked = None  # only here: nobody sends while an answer is awaited
        return found

    def lose(self) -> None:
        """Give the connection up."""
        lost, self.connection, self._asked = self.connection, None, None
        if lost is not None:
            lost.disconnect()  # type: ignore[no-untyped-call]  # as above
            self._broker.connection_pool.release(lost)
