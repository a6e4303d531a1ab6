"""HTTP requests to servers of the stack, which may not be up yet."""

import http.client
import json
from collections.abc import Mapping
from http import HTTPStatus

from cli.stack.ports import LOOPBACK

TIMEOUT_SECONDS = 5.0


def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: object = None,
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[int | None, str]:
    """Send a request, whose body, if there is one, becomes JSON.

    Returns:
        The status and the body; None and nothing: no server answers.
    """
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)
    return exchange(connection, path, method=method, headers=headers, body=body)


def exchange(
    connection: http.client.HTTPConnection,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: object = None,
) -> tuple[int | None, str]:
    """Send a request over a new connection, as `ask` does, and close it."""
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None, ""
    finally:
        connection.close()


def succeeds(port: int, path: str, *, timeout: float = TIMEOUT_SECONDS) -> bool:
    """Return True if a GET of this path succeeds."""
    return ask(port, path, timeout=timeout)[0] == HTTPStatus.OK
