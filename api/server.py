"""Runs the service as one process."""

import contextlib
import ctypes
import gc
import signal
import socket
import sys
from types import FrameType
from typing import Final

import uvicorn
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from api.app import create_app
from api.http.connections import ConnectionLimits, connection_class
from api.http.metrics import HttpMetrics
from api.runtime.body_process import BodyProcess
from api.runtime.tokenizer import preload
from jobs import database, liveness, open_files, telemetry, tls
from jobs import settings as settings_module
from jobs.loopback import is_loopback
from jobs.settings import ApiSettings, Settings
from jobs.tenants import keys
from jobs.traces import configured as traces

# Long polls are answered at once when the server stops; this leaves time to uploads and slow readers.
_GRACE_SECONDS: Final = 2
_USAGE_ERROR: Final = 2
_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h


class ApiServer(uvicorn.Server):
    """Uvicorn that answers all long polls before it stops."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            telemetry.logger().info(telemetry.API_READY, url=f"{scheme}://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer all long polls and stop accepting connections."""
        app = self.config.app
        app.state.services.end_waits()  # type: ignore[union-attr]  # always our own application
        await super().shutdown(sockets)
        telemetry.logger().info(telemetry.API_STOPPED)


def main() -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status."""
    http_metrics = HttpMetrics()
    telemetry.configure(on_event=http_metrics.events.count)
    _release_large_buffers()
    try:
        settings = settings_module.load()
        _check_tls(settings.api)
        _refuse_network_without_keys(settings)
        traces.is_on(settings.traces)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        sys.stderr.write(f"settings: {'; '.join(problems)}\n")
        return _USAGE_ERROR
    except ValueError as error:
        sys.stderr.write(f"settings: {error}\n")
        return _USAGE_ERROR
    return _serve(_within_open_files(settings), http_metrics)


def _serve(settings: Settings, http_metrics: HttpMetrics) -> int:
    preload(settings.tokenizer)  # once for both processes
    gc.freeze()  # a collection would write to the pages that they share
    body_process = BodyProcess.forked()
    config = uvicorn.Config(
        create_app(settings, http_metrics, body_process),
        http=connection_class(_connection_limits(settings)),
        ws="none",  # no route uses WebSockets, and they would escape the limits
        host=settings.api.host,
        port=settings.api.port,
        ssl_certfile=settings.api.tls_certificate,
        ssl_keyfile=settings.api.tls_key,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # no proxy is trusted to name the caller
        server_header=False,
        timeout_keep_alive=settings.api.keep_alive_seconds,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = ApiServer(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)  # uvicorn raises the signal again once it has shut down
    server.run()
    return 0 if server.started else 1


def _within_open_files(settings: Settings) -> Settings:
    """Lower the number of connections if too few files may be open, after the database's and a reserve."""
    available = open_files.raise_for("api", needed=open_files.of_api(settings))
    others = settings.database.pool_size + open_files.RESERVE
    most = max(1, min(settings.api.max_connections, available - others))
    return settings.model_copy(update={"api": settings.api.model_copy(update={"max_connections": most})})


def _connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        head_seconds=settings.api.head_seconds,
        body_seconds=settings.api.body_idle_seconds,
        body_rate=settings.api.min_body_rate,
        read_seconds=settings.api.read_idle_seconds,
        max_connections=settings.api.max_connections,
    )


def _release_large_buffers() -> None:
    """Make glibc return the memory of a large body to the system when it is freed.

    Otherwise glibc raises its threshold to the largest body and keeps such blocks. Measured with 64 uploads
    of 7.5 MB at once: 1.1 times their size at the peak and nothing afterwards; without it 1.55 and 0.9 times.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(liveness.exit_code())


def _check_tls(settings: ApiSettings) -> None:
    """Check the certificate's files before the server needs them.

    Raises:
        ValueError: they cannot be used.
    """
    if settings.tls_certificate and settings.tls_key:
        try:
            tls.check_files(settings.tls_certificate, settings.tls_key)
        except ValueError as error:
            raise ValueError(f"api.tls_certificate, api.tls_key: {error}") from error


def _refuse_network_without_keys(settings: Settings) -> None:
    """Refuse to listen on the network while no API key exists.

    A database that does not answer is no reason to refuse: until it answers, no key is accepted.

    Raises:
        ValueError: other hosts could reach the service, but there is no usable key.
    """
    host = settings.api.host
    if is_loopback(host):
        return
    engine = database.make_engine(settings.database, pool_size=1, name="longbatch-api-start")
    try:
        with Session(engine) as session:
            if keys.any_usable(session):
                return
    except ProgrammingError:
        raise ValueError(
            f"api.host is {host}, but the database has no tables for API keys: run `alembic upgrade head`."
        ) from None
    except OperationalError:
        return
    finally:
        engine.dispose()
    raise ValueError(
        f"api.host is {host}, but there are no API keys yet: create one with `longbatch keys create` (or"
        " `python -m cli keys create`) and start again, or use 127.0.0.1."
    )
