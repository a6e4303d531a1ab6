"""An engine's HTTP server: connections and small JSON reads."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from pydantic import SecretStr

from jobs.errors import EngineUnavailableError
from worker.engine.http import errors
from worker.engine.sessions import BROKEN, beginning, is_success, reason_of, redirect_of, session
from worker.engine.storable import storable

_READ_SECONDS: Final = 3.0
_ABSENT: Final = frozenset({404, 405, 501})
# Of a document about the server; the largest lists some hundred slots.
_MAX_BODY_BYTES: Final = 2**22


@dataclass(frozen=True, slots=True)
class HttpServer:
    """Where an engine is served.

    Attributes:
        url: http://host:port or https://host:port, without a path of the engine's own.
        api_key: sent as a bearer token; None if the server needs none.
    """

    url: str
    api_key: SecretStr | None = None

    def session(self) -> aiohttp.ClientSession:
        """Make a session with the server's key; see `sessions.session`."""
        key = self.api_key
        return session(
            self.url, headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else None
        )

    async def is_answering(self, path: str) -> bool:
        """Return True if the path answers with success."""
        try:
            status, _ = await self.get(path)
        except BROKEN:
            return False
        return is_success(status)

    async def read(self, path: str) -> Any:  # noqa: ANN401  # JSON of a foreign server
        """Read a JSON document. Returns None if the server has no such path.

        Raises:
            EngineUnavailableError: the server cannot be reached, or refuses.
        """
        try:
            status, said = await self.get(path)
            if status in _ABSENT:
                return None
            if not is_success(status):
                raise EngineUnavailableError(said=storable(f"{path}: {said}"))
            return json.loads(said)
        except (*BROKEN, ValueError, RecursionError) as error:
            raise EngineUnavailableError(said=storable(f"{self.url}{path}: {reason_of(error)}")) from error

    async def refusal_of(self, path: str, body: Mapping[str, object]) -> tuple[int, str]:
        """Return the status of a POST that the server is to refuse, and its message.

        Raises:
            EngineUnavailableError: the server cannot be reached.
        """
        try:
            return await self._ask("POST", path, json=body)
        except BROKEN as error:
            raise EngineUnavailableError(said=storable(f"{self.url}{path}: {reason_of(error)}")) from error

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status of a path, and its body or error message.

        Raises:
            aiohttp.ClientError: the server cannot be reached, or does not speak HTTP.
            TimeoutError: it did not answer within a few seconds.
        """
        return await self._ask("GET", path)

    async def _ask(self, method: str, path: str, **options: Any) -> tuple[int, str]:  # noqa: ANN401  # aiohttp's
        async with (
            asyncio.timeout(_READ_SECONDS),
            self.session() as http,
            http.request(method, path, allow_redirects=False, **options) as answer,
        ):
            body = await beginning(answer, max_bytes=_MAX_BODY_BYTES)
            if is_success(answer.status):
                return answer.status, body.decode(errors="replace")
            said = errors.said_by(body, reason=answer.reason or "", redirect=redirect_of(answer))
            return answer.status, said
