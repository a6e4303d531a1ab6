"""Longbatch's own processes in a stack, and the environment that connects them to its servers."""

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin

from cli.stack.api_address import ApiAddress
from cli.stack.ports import LOOPBACK
from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER, Urls
from cli.stack.server import Program

_MODULES = {API: ("api",), INFERENCE_WORKER: ("worker", "inference"), SERVICE_WORKER: ("worker", "service")}
# With the servers' own grace times, below 10 s for the whole stack.
_GRACE = {
    API: timedelta(seconds=3),
    INFERENCE_WORKER: timedelta(seconds=5),
    SERVICE_WORKER: timedelta(seconds=5),
}
# A stack on loopback is a trial: its webhooks may go to this machine. A system service turns that off.
_LOCAL_WEBHOOKS = json.dumps([LOOPBACK, "localhost", "::1"])
# Of the stack's API alone, even if it has none.
_OF_API = {"LONGBATCH_API__TLS_CERTIFICATE", "LONGBATCH_API__TLS_KEY"}
_SHUTDOWN_GRACE_SECONDS = "2"  # for a worker's running jobs; it needs the rest of its grace to release them


def program(
    name: str, env: Mapping[str, str], *, api: ApiAddress, directory: Path, number: int = 1
) -> Program:
    """Describe a process of ours, the first one of its kind or a further one.

    Only the API is probed: workers have no address.
    """
    return Program(
        name=numbered(name, number),
        # -P: no file in the working directory may shadow a module.
        argv=(sys.executable, "-P", "-m", "longbatch_server", *_MODULES[name]),
        env=env,
        directory=directory,
        grace=_GRACE[name],
        answers=(lambda: _is_live(api)) if name == API else (lambda: True),
    )


def numbered(name: str, number: int) -> str:
    """Return the name of the process with this number, from 1 on."""
    return name if number == 1 else f"{name}_{number}"


def environment(base: Mapping[str, str], urls: Urls, *, api: ApiAddress, time_scale: float) -> dict[str, str]:
    """Add the addresses of this stack to the base's variables."""
    found = {
        "LONGBATCH_DATABASE__URL": urls.database_url,
        "LONGBATCH_BROKER__URL": urls.broker_url,
        "LONGBATCH_TRITON__URL": urls.triton_grpc,
        "LONGBATCH_TRITON__HTTP_URL": urls.triton_http,
        "LONGBATCH_TRITON__METRICS_URL": urls.triton_metrics,
        "LONGBATCH_API__HOST": api.host,
        "LONGBATCH_API__PORT": str(api.port),
        "LONGBATCH_API__TLS_CERTIFICATE": str(api.tls.certificate) if api.tls else None,
        "LONGBATCH_API__TLS_KEY": str(api.tls.key) if api.tls else None,
    }
    defaults = {
        "LONGBATCH_ENGINE__TIME_SCALE": str(time_scale),
        "LONGBATCH_JOBS__SHUTDOWN_GRACE_SECONDS": _SHUTDOWN_GRACE_SECONDS,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if api.is_local:
        defaults["LONGBATCH_WEBHOOKS__ALLOWED_HOSTS"] = _LOCAL_WEBHOOKS
    kept = {name: value for name, value in base.items() if name not in _OF_API}
    return {**defaults, **kept, **{name: value for name, value in found.items() if value is not None}}


def not_ready(api: ApiAddress) -> dict[str, str]:
    """Return the components that are not ready, by name, each with details; none if everything is."""
    status, body = api.ask("/health/ready")
    if status == HTTPStatus.OK:
        return {}
    try:
        found = json.loads(body)["components"]
        return {name: each["detail"] for name, each in found.items() if not each["ready"]}
    except (ValueError, LookupError, TypeError):
        return {API: body or "no answer"}


def console_link(urls: Urls, api: ApiAddress) -> str | None:
    """Make a link that signs a browser in to the console once; None if there is no console or no key."""
    if urls.console_url is None or urls.api_key is None:
        return None
    sent = {"Authorization": f"Bearer {urls.api_key}"}
    status, body = api.ask("/console/codes", method="POST", headers=sent)
    if status != HTTPStatus.OK:
        return None
    path: str = json.loads(body)["path"]
    return urljoin(urls.console_url, path)


def _is_live(api: ApiAddress) -> bool:
    return api.ask("/health/live")[0] == HTTPStatus.OK
