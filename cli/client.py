"""A small client of the HTTP API: retries what is safe to repeat, and puts every error on one line."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

import httpx2

from jobs.errors import LongbatchError
from jobs.ids import uuid7
from jobs.states import TERMINAL

if TYPE_CHECKING:  # it imports SQLAlchemy, which takes most of a second
    from jobs.views import JobObject, JobWithQueueObject

_TIMEOUT_SECONDS: Final = 30.0
# Length of a long poll; the server allows 60 s, but proxies in between often end a request after a minute.
_POLL_SECONDS: Final = 25
_MAX_TRIES: Final = 2
_BACKOFF_SECONDS: Final = 0.5  # doubles with every try
# Enough to wait through a restart of the server, which takes seconds.
_MAX_WAIT_TRIES: Final = 8
_UNAVAILABLE: Final = 503
_MAX_PAUSE_SECONDS: Final = 5.0


class ServerUnreachableError(LongbatchError):
    """No server is responding; start one with `longbatch up`, or check --api-url."""

    code = "server_unreachable"


class RefusedError(LongbatchError):
    """The server refused the request.

    Attributes:
        status: HTTP status.
        server_code: the error's `code` in the server's reply.
        retry_after: seconds to wait before the next try; None if the server gave none.
        is_final: the server says that no repetition will help.
    """

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        server_code: str,
        param: str | None = None,
        retry_after: float | None = None,
        is_final: bool = False,
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.server_code = server_code
        self.retry_after = retry_after
        self.is_final = is_final


class Client:
    """A client of one server. Repeats safe calls while the server is unavailable."""

    def __init__(self, api_url: str, api_key: str | None = None) -> None:
        self._api_url = api_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx2.Client(
                base_url=api_url, timeout=_TIMEOUT_SECONDS, trust_env=False, headers=headers
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise ServerUnreachableError(f"{api_url!r} is not a valid server URL") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def submit(self, body: Mapping[str, object], *, key: str | None = None) -> "JobObject":
        """Submit a job. An idempotency key keeps retries from creating a second one."""
        headers = {"Idempotency-Key": key or str(uuid7())}
        return cast("JobObject", self._send("POST", "/v1/jobs", json=body, headers=headers))

    def job(self, job_id: str, **request: Any) -> "JobWithQueueObject":  # noqa: ANN401  # of `_send`
        """Fetch the job in its current state."""
        return cast("JobWithQueueObject", self._send("GET", f"/v1/jobs/{_quoted(job_id)}", **request))

    def wait(self, job_id: str, *, on_change: "Callable[[JobWithQueueObject], None]") -> "JobWithQueueObject":
        """Poll until the job ends and return it; `on_change` gets every earlier reply."""
        job = self.job(job_id)
        while job["state"] not in TERMINAL:
            on_change(job)
            timeout = _POLL_SECONDS + _TIMEOUT_SECONDS
            job = self.job(job_id, params={"wait": _POLL_SECONDS}, timeout=timeout, max_tries=_MAX_WAIT_TRIES)
        return job

    def events(self, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and data of each event until the stream ends.

        Reconnects after a restart of the server; text continues after what was received.

        Args:
            path: the path of the event stream.
        """
        last_id, tries = "", 0
        while True:
            try:
                headers = {"Last-Event-ID": last_id} if last_id else {}
                timeout = httpx2.Timeout(_TIMEOUT_SECONDS)
                with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
                    if not answer.is_success:
                        answer.read()
                        _content(answer)
                    for identifier, name, fields in _events(answer.iter_lines()):
                        last_id, tries = identifier, 0
                        yield name, fields
            except httpx2.TransportError as error:
                tries += 1
                if tries >= _MAX_WAIT_TRIES:
                    raise self._unreachable(error) from error
                time.sleep(min(_BACKOFF_SECONDS * 2**tries, _MAX_PAUSE_SECONDS))
            else:
                return

    def result(self, job_id: str) -> dict[str, Any]:
        """Fetch the output of a job that has ended."""
        return self._send("GET", f"/v1/jobs/{_quoted(job_id)}/result")

    def attempts(self, job_id: str) -> dict[str, Any]:
        """Fetch the runs of a job, oldest first."""
        found: dict[str, Any] = self._send("GET", f"/v1/jobs/{_quoted(job_id)}/attempts")
        return found

    def list_jobs(self, query: Mapping[str, str | int]) -> dict[str, Any]:
        """Fetch a page of jobs, newest first."""
        return self._send("GET", "/v1/jobs", params=query)

    def cancel(self, job_id: str) -> "JobObject":
        """Cancel a job, or ask a running one to stop; an ended one stays as it is."""
        return cast("JobObject", self._send("POST", f"/v1/jobs/{_quoted(job_id)}/cancel"))

    def cancel_matching(self, filters: Mapping[str, object]) -> int:
        """Cancel the jobs that match all filters; running ones are asked to stop.

        Returns:
            How many were cancelled or asked to stop.
        """
        return int(self._send("POST", "/v1/jobs/cancel", json=filters)["cancelled"])

    def webhooks(self, method: str, *path: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        """Call a webhook route, `/v1/` and the parts of `path`. Retries reads only."""
        route = "/v1/" + "/".join(_quoted(each) for each in path)
        max_tries = _MAX_TRIES if method == "GET" else 1
        return self._send(method, route, max_tries=max_tries, **request)

    def audit(self, query: Mapping[str, object]) -> dict[str, Any]:
        """Fetch a page of the audit log."""
        return self._send("GET", "/v1/audit", params=query)

    def send_document(self, path: Path, *, kind: str | None = None) -> dict[str, Any]:
        """Upload a file and return its document; a second upload gives the same one."""
        params = {"filename": path.name} | ({} if kind is None else {"kind": kind})
        for tries in range(1, _MAX_TRIES + 1):
            with path.open("rb") as content:
                try:
                    return self._send(
                        "POST",
                        "/v1/documents",
                        max_tries=1,
                        params=params,
                        content=content,
                        headers={"Content-Type": "application/octet-stream"},
                    )
                except (ServerUnreachableError, RefusedError) as error:
                    is_away = not isinstance(error, RefusedError) or error.status == _UNAVAILABLE
                    if tries == _MAX_TRIES or not is_away:
                        raise
            time.sleep(_BACKOFF_SECONDS)
        raise AssertionError("the last try returns or raises")

    def documents(self, method: str, *path: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        """Call a document route, `/v1/documents/` and the parts of `path`."""
        route = "/".join(["/v1/documents", *(_quoted(each) for each in path)])
        return self._send(method, route, **request)

    def document_text(self, document_id: str, params: Mapping[str, int]) -> Iterator[bytes]:
        """Yield the UTF-8 text of a document as it arrives."""
        path = f"/v1/documents/{_quoted(document_id)}/text"
        try:
            with self._http.stream("GET", path, params=params) as answer:
                if not answer.is_success:
                    answer.read()
                    _content(answer)
                yield from answer.iter_bytes()
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def version(self) -> dict[str, Any]:
        """Fetch the server's version and model."""
        return self._send("GET", "/v1/version", max_tries=1)

    def console_link(self) -> dict[str, str]:
        """Make a link that signs a browser in to the console once: `url`, and when it `expires_at`."""
        made = self._send("POST", "/console/codes", max_tries=1)
        return {"url": self._api_url.rstrip("/") + made["path"], "expires_at": made["expires_at"]}

    def readiness(self) -> dict[str, Any]:
        """Fetch each component of the server by name, with `ready` and `detail`."""
        try:
            answer = self._http.get("/health/ready")
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        found: dict[str, Any] = answer.json()["components"]
        return found

    def send_once(self, method: str, path: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        """Send a request without retries, for callers with a retry policy of their own.

        Raises:
            ServerUnreachableError: no complete reply arrived.
            RefusedError: the reply is an error.
        """
        return self._send(method, path, max_tries=1, **request)

    def _send(
        self,
        method: str,
        path: str,
        *,
        max_tries: int = _MAX_TRIES,
        **request: Any,  # noqa: ANN401  # JSON
    ) -> dict[str, Any]:
        for tries in range(1, max_tries + 1):
            try:
                answer = self._http.request(method, path, **request)
            except httpx2.TransportError as error:
                if tries == max_tries:
                    raise self._unreachable(error) from error
            else:
                if answer.status_code != _UNAVAILABLE or tries == max_tries:
                    return _content(answer)
            time.sleep(_BACKOFF_SECONDS * 2 ** (tries - 1))
        raise AssertionError("the last try returns or raises")

    def _unreachable(self, error: Exception) -> ServerUnreachableError:
        reason = str(error) or type(error).__name__
        return ServerUnreachableError(
            f"no Longbatch server answers at {self._api_url} ({reason}): start one with `longbatch up`,"
            " or point to yours with --api-url or LONGBATCH_API_URL"
        )


def _content(answer: httpx2.Response) -> dict[str, Any]:
    """Return the JSON of a reply.

    Raises:
        RefusedError: the reply is an error, or does not come from a Longbatch server.
    """
    try:
        content: dict[str, Any] = answer.json()
        if answer.is_success:
            return content
        error = content["error"]
        raise RefusedError(
            error["message"],
            status=answer.status_code,
            server_code=error["code"],
            param=error["param"],
            retry_after=_seconds(answer.headers.get("retry-after")),
            is_final=answer.headers.get("x-should-retry") == "false",
        )
    except (ValueError, KeyError, TypeError):
        message = f"status {answer.status_code} from something that is not a Longbatch server"
        raise RefusedError(message, status=answer.status_code, server_code="unknown") from None


def _seconds(header: str | None) -> float | None:
    """Parse a Retry-After header in seconds; return None for a date or no header."""
    return float(header) if header is not None and header.isdecimal() else None


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the id, name and data of each complete event."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"])
            fields = {}


def _quoted(job_id: str) -> str:
    """Make the id safe as one path segment; an invalid id gets the server's 404."""
    return "".join(char if char.isalnum() or char in "_-" else "." for char in job_id) or "."
