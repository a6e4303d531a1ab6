"""One HTTP exchange with a stranger's server that leads to no private address and ends in time."""

import ssl
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final

import httpcore2

from jobs.webhooks import ParsedUrl, WebhookUrlError, check_url
from worker.network import Budget, ExchangeError, Failure, Network, Resolve, resolve_host

_MAX_HEADER_BYTES: Final = 40  # more than any date has
_MAX_RETRY_SECONDS: Final = 10**8  # what waits so long has been given up


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an exchange: exactly one of `status` and `error_code` is set.

    Attributes:
        status: the final HTTP status; the body after it counts for nothing, even where it breaks off.
        error_code: why there is none.
        num_bytes: received, at most `MAX_RESPONSE_BYTES`.
        latency: from the call to its end.
        retry_after: what the answer's header of this name asked for.
    """

    status: int | None
    error_code: Failure | None
    num_bytes: int
    latency: timedelta
    retry_after: timedelta | None = None


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed_hosts: Collection[str],
    deadline: timedelta,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """What came of POSTing the body to a URL, checked again here: the allowed hosts may have changed.

    Args:
        url: where to.
        body: sent as it is.
        headers: as for `exchange`.
        allowed_hosts: hosts that may be private, on plain http and on any port.
        deadline: as for `exchange`.
        resolve: how names become addresses.
        tls: None means the system's certificate authorities.
    """
    try:
        parsed = check_url(url, allowed_hosts=allowed_hosts)
    except WebhookUrlError:
        return Answer(status=None, error_code=Failure.URL_REFUSED, num_bytes=0, latency=timedelta(0))
    return exchange(parsed, body, headers, deadline=deadline, resolve=resolve, tls=tls)


def exchange(
    url: ParsedUrl,
    body: bytes,
    headers: Mapping[str, str],
    *,
    deadline: timedelta,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """What came of POSTing the body, at the latest after `deadline`; failures of the network are values.

    The name is resolved once, every address of it must be public (or its host allowed), and the connection
    goes to one of these very addresses. A redirect is an answer; proxies play no part.

    Args:
        url: where to.
        body: sent as it is.
        headers: besides Host, Content-Length, Accept-Encoding and Connection, which are set here.
        deadline: wall-clock time over everything, from resolving the name to reading the answer.
        resolve: how names become addresses.
        tls: None means the system's certificate authorities.
    """
    started = time.monotonic()
    budget = Budget(ends_at=started + deadline.total_seconds())
    status: int | None = None
    retry_after: timedelta | None = None
    failure: Failure | None = None
    try:
        status, retry_after = _send(
            url, body, headers, network=Network(url, budget, resolve), tls=tls or _system_tls()
        )
    except httpcore2.ProtocolError:
        failure = Failure.PROTOCOL_ERROR
    except ExchangeError as error:
        failure = error.failure
    latency = timedelta(seconds=time.monotonic() - started)
    return Answer(
        status=status,
        error_code=failure,
        num_bytes=budget.num_bytes,
        latency=latency,
        retry_after=retry_after,
    )


def _send(
    url: ParsedUrl, body: bytes, headers: Mapping[str, str], *, network: Network, tls: ssl.SSLContext
) -> tuple[int, timedelta | None]:
    """The status that the server answered with, and when it wants to be asked again."""
    request = httpcore2.Request(
        "POST",
        httpcore2.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
        headers={
            **headers,  # type: ignore[dict-item] # str fits str | bytes, but Mapping's keys are invariant
            "Host": url.authority,
            "Content-Length": str(len(body)),
            "Accept-Encoding": "identity",
            "Connection": "close",
        },
        content=body,
    )
    try:
        connection = httpcore2.HTTPConnection(request.url.origin, ssl_context=tls, network_backend=network)
        response = connection.handle_request(request)
        # Read politely: closing on unread bytes would reset the connection. What they say does not matter.
        with suppress(ExchangeError, httpcore2.ProtocolError):
            for _ in response.iter_stream():
                pass
        return response.status, _retry_after(response.headers)
    finally:
        network.close()


@cache
def _system_tls() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> timedelta | None:
    """RFC 9110, 10.2.3: seconds or a date; None: nothing that can be understood, or the past."""
    given = next((value for name, value in headers if name.lower() == b"retry-after"), b"")[
        :_MAX_HEADER_BYTES
    ]
    text = given.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text), _MAX_RETRY_SECONDS))
    try:
        wanted = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if wanted.tzinfo is None:
        wanted = wanted.replace(tzinfo=UTC)
    return max(wanted - datetime.now(UTC), timedelta(0)) or None
