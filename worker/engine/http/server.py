"""An engine's HTTP server: connections and small JSON reads."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from pydantic import SecretStr

from jobs.errors import EngineUnavailableError
from worker.engine.body import body_of
from worker.engine.certificates import trusted
from worker.engine.deadlines import CONNECT_SECONDS
from worker.engine.http import errors
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

    def client(self) -> httpx2.AsyncClient:
        """Make a client with connections of its own, which waits for output without a limit.

        No proxy: the server is the operator's own. Certificates are verified.
        """
        key = self.api_key
        return httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            trust_env=False,
            verify=trusted(),
        )

    async def is_answering(self, path: str) -> bool:
        """Return True if the path answers with success."""
        try:
            status, _ = await self.get(path)
        except (httpx2.HTTPError, TimeoutError):
            return False
        return httpx2.codes.is_success(status)

    async def read(self, path: str) -> Any:  # noqa: ANN401  # JSON of a foreign server
        """Read a JSON document. Returns None if the server has no such path.

        Raises:
            EngineUnavailableError: the server cannot be reached, or refuses.
        """
        try:
            status, said = await self.get(path)
            if status in _ABSENT:
                return None
            if not httpx2.codes.is_success(status):
                raise EngineUnavailableError(said=storable(f"{path}: {said}"))
            return json.loads(said)
        except (httpx2.HTTPError, TimeoutError, ValueError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise EngineUnavailableError(said=storable(f"{self.url}{path}: {reason}")) from error

    async def refusal_of(self, path: str, body: Mapping[str, object]) -> tuple[int, str]:
        """Return the status of a POST that the server is to refuse, and its message.

        Raises:
            EngineUnavailableError: the server cannot be reached.
        """
        try:
            async with (
                asyncio.timeout(_READ_SECONDS),
                self.client() as http,
                http.stream("POST", path, json=body) as answer,
            ):
                said = await body_of(answer, max_bytes=_MAX_BODY_BYTES)
                return answer.status_code, errors.said_by(answer, said)
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise EngineUnavailableError(said=storable(f"{self.url}{path}: {reason}")) from error

    async def get(self, path: str) -> tuple[int, str]:
        """Return the status of a path, and its body or error message.

        Raises:
            httpx2.HTTPError: the server cannot be reached, or does not speak HTTP.
            TimeoutError: it did not answer within a few seconds.
        """
        async with asyncio.timeout(_READ_SECONDS), self.client() as http, http.stream("GET", path) as answer:
            body = await body_of(answer, max_bytes=_MAX_BODY_BYTES)
            if answer.is_success:
                return answer.status_code, body.decode(errors="replace")
            return answer.status_code, errors.said_by(answer, body)
