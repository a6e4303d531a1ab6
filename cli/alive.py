"""`python -m cli.alive`: whether this container's process answers, for the image's HEALTHCHECK.

Imports nothing of ours, as it starts every few seconds.
"""

import ssl
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from os import environ
from pathlib import Path
from typing import Final, NamedTuple

_TIMEOUT_SECONDS: Final = 3
_EVERYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104  # what processes listen on, not what we do
_LOOPBACK: Final = "127.0.0.1"
_TRITON: Final = "tritonserver"


class Probe(NamedTuple):
    """Where a process answers as long as it works."""

    host: str
    port: int
    path: str
    is_tls: bool = False


def main() -> int:
    """Return 0 if the process answers or has no port, otherwise 1."""
    probe = probe_of(container_command(Path("/proc")), environ)
    return 0 if probe is None or answers(probe) else 1


def container_command(processes: Path) -> list[str]:
    """Read the command of the first process that runs Triton or a module of Python; an init may be before it.

    Args:
        processes: the folder /proc.
    """
    numbers = sorted(int(each.name) for each in processes.iterdir() if each.name.isdigit())
    for number in numbers:
        try:
            words = (processes / str(number) / "cmdline").read_text(errors="replace").split("\0")
        except OSError:  # it has just ended, or is another user's
            continue
        if Path(words[0]).name == _TRITON:
            return [_TRITON, *words[1:]]
        if "-m" in words[1:-1]:
            return words[words.index("-m") + 1 :]
    return []


def probe_of(command: Sequence[str], environment: Mapping[str, str]) -> Probe | None:
    """Find where the process of this command answers.

    Args:
        command: its module and arguments.
        environment: its variables.

    Returns:
        None if it has no port: migrations, commands, a worker without metrics.
    """
    module = command[0] if command else ""
    if module == "api":
        port = environment.get("LONGBATCH_API__PORT", "8080")
        is_tls = bool(environment.get("LONGBATCH_API__TLS_CERTIFICATE"))
        return Probe(_reached(environment.get("LONGBATCH_API__HOST", "")), int(port), "/health/live", is_tls)
    if module == "worker" and environment.get("LONGBATCH_METRICS__PORT", "0") != "0":
        host = _reached(environment.get("LONGBATCH_METRICS__HOST", ""))
        return Probe(host, int(environment["LONGBATCH_METRICS__PORT"]), "/metrics")
    if module in {"cli.stack.serve_engine", _TRITON}:  # the former becomes the latter
        words = [part for word in command for part in word.split("=", 1)]
        port = words[words.index("--http-port") + 1] if "--http-port" in words else "8000"
        return Probe(_LOOPBACK, int(port), "/v2/health/ready")
    return None


def answers(probe: Probe) -> bool:
    """Ask the process."""
    connection = _connection(probe)
    try:
        connection.request("GET", probe.path)
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _connection(probe: Probe) -> HTTPConnection:
    if not probe.is_tls:
        return HTTPConnection(probe.host, probe.port, timeout=_TIMEOUT_SECONDS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the request stays in the container
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(probe.host, probe.port, timeout=_TIMEOUT_SECONDS, context=context)


def _reached(host: str) -> str:
    return _LOOPBACK if host in _EVERYWHERE else host


if __name__ == "__main__":
    sys.exit(main())
