"""The real service as a process of its own, on a random port."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2

import zygote
from jobs.settings import DatabaseSettings
from support import API_KEY, NO_CERTIFICATES, PATIENCE, eventually

REPOSITORY = Path(__file__).resolve().parents[2]
# A secret of the right shape; it signs nothing outside these tests.
WEBHOOK_SECRET = "whsec_" + "dGVzdHMgYXJlIG5vdCBzZWNyZXQsIG5vdCBldmVuIHRoaXM="
# Of open files: an ordinary account's, with which the service starts.
SOFT_FILES = 1024


class ApiProcess:
    """`python -m api`; usable once constructed.

    Attributes:
        url: where it listens.
        lines: what it has written so far.
    """

    def __init__(self, database: DatabaseSettings, broker_url: str, **variables: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
        for kept in ("LONGBATCH_CACHE_DIR",):
            if kept in os.environ:
                inherited[kept] = os.environ[kept]
        self.process = zygote.start(
            zygote.API,
            env=inherited
            | {
                "LONGBATCH_DATABASE__URL": database.url.get_secret_value(),
                "LONGBATCH_BROKER__URL": broker_url,
                "LONGBATCH_API__PORT": "0",
            }
            | variables,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            soft_files=SOFT_FILES,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        try:
            self.url = self._read_url()
            self._reader.start()
        except BaseException:
            self._end()
            raise

    def client(self, *, timeout: float = PATIENCE, api_key: str | None = API_KEY) -> httpx2.Client:
        """A client with the tests' key, another one, or none."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        return httpx2.Client(
            base_url=self.url, timeout=timeout, trust_env=False, headers=headers, verify=NO_CERTIFICATES
        )

    def stop(self, *, timeout: float = PATIENCE) -> int:
        self.process.terminate()
        try:
            return self.process.wait(timeout)
        finally:
            self._end()

    def _end(self) -> None:
        """Kill what still runs, and read what it wrote."""
        self.process.kill()
        self.process.wait()
        if self._reader.ident is not None:
            self._reader.join(PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read_url(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if '"api.ready"' in line:
                found: str = json.loads(line)["url"]
                return found
        raise AssertionError(f"the service did not start: {''.join(self.lines)}")

    def _collect(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)


class Serve(Protocol):
    """Starts a service on the run's own database and broker."""

    def __call__(self, **variables: str) -> AbstractContextManager[ApiProcess]:
        """Serve with these variables as long as the context lasts."""


@contextmanager
def serving(database: DatabaseSettings, broker_url: str, **variables: str) -> Iterator[ApiProcess]:
    """The service with these variables, all of it ready; at the end it stops as it was asked to."""
    process = ApiProcess(database, broker_url, **variables)
    try:
        with process.client() as client:
            eventually(lambda: client.get("/health/ready").json()["components"]["tokenizer"]["ready"])
        yield process
    except BaseException:
        process.stop()
        raise
    assert process.stop() == 0


QUOTA_CODES = {"token_limit_exceeded", "job_limit_exceeded", "storage_limit_exceeded"}


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    """The error in the answer, whose shape is checked first."""
    body = answer.json()
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    of_quota = {"limit", "limit_of"} if error["code"] in QUOTA_CODES else set()
    assert set(error) == {"message", "type", "param", "code"} | of_quota
    if answer.status_code == 429:
        assert error["type"] in {
            "requests",
            "tokens",
            "jobs",
            "streams",
            "connections",
            "destinations",
            "bytes",
        }
        assert int(answer.headers["retry-after"]) >= 1
    else:
        assert error["type"] == ("server_error" if answer.status_code >= 500 else "invalid_request_error")
    assert error["message"]
    return error
