"""An engine's HTTP server: connections and small JSON reads."""

from dataclasses import dataclass
from typing import Any, Final

import httpx2
from pydantic import SecretStr

from jobs.errors import EngineUnavailableError
from worker.engine.deadlines import CONNECT_SECONDS
from worker.engine.http import errors
from worker.engine.storable import storable

_READ_SECONDS: Final = 3.0


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
        )

    async def is_answering(self, path: str) -> bool:
        """Return True if the path answers with success."""
        async with self.client() as http:
            try:
                return (await http.get(path, timeout=_READ_SECONDS)).is_success
            except httpx2.HTTPError:
                return False

    async def read(self, path: str) -> Any:  # noqa: ANN401  # JSON of a foreign server
        """Read a JSON document. Returns None if the server has no such path.

        Raises:
            EngineUnavailableError: the server cannot be reached, or refuses.
        """
        async with self.client() as http:
            try:
                answer = await http.get(path, timeout=_READ_SECONDS)
                if answer.status_code in {404, 405, 501}:
                    return None
                if not answer.is_success:
                    raise EngineUnavailableError(said=storable(f"{path}: {errors.said_by(answer)}"))
                return answer.json()
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
                raise EngineUnavailableError(said=storable(f"{self.url}{path}: {error}")) from error
