"""`longbatch doctor`: checks each component and says what to do about a failure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Final

import httpx2
import typer
from pydantic import ValidationError
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from cli import local
from cli.commands.inspect import show
from jobs import database, diagnostics, doorbell, settings
from jobs.database import schema
from jobs.diagnostics import Finding, of_component
from jobs.errors import LongbatchError
from jobs.prompts.estimates import HOW_COUNTED
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import ApiSettings, DatabaseSettings, Settings, TritonSettings
from jobs.tenants import isolation
from longbatch.cli.output import ApiUrl, AsJson, print_json
from longbatch.client import Client
from longbatch.errors import ApiError, ServerUnreachableError

_TIMEOUT_SECONDS: Final = 3.0
_KEEPALIVE: Final = (
    "not visible from outside; a Triton without --grpc-http2-min-recv-ping-interval-without-data=5000"
    " --grpc-keepalive-permit-without-calls=1 closes silent streams after 30 s: start it with these flags,"
    " or set LONGBATCH_TRITON__FAST_KEEPALIVE=false"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor", epilog="Exit codes: 0 no check failed, 1 a check failed.")(doctor)


def doctor(*, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """Check each component: API, database, broker, engine, tokenizer."""
    findings = list(_examine(api_url))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            show(finding)
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(1)


def _examine(api_url: str | None) -> Iterator[Finding]:
    """Report the server's own view; without a server, check by this shell's settings."""
    num_ours = None
    try:
        with Client(api_url) as client:
            yield _check_api(client)
            yield from _server_findings(client.readiness())
            num_ours = _num_reserved(client)
    except (ServerUnreachableError, ApiError) as error:
        yield Finding("api", "failed", error.message, "start one with `longbatch up`, or set --api-url")
        yield from _local_findings()
    yield from _check_engine(num_ours)
    yield _check_open_files()
    if not _is_http(local.find_engine(None).engine.url):
        yield Finding("triton keepalive", "unknown", _KEEPALIVE)


def _num_reserved(client: Client) -> int | None:
    """Return how many requests of ours the engine has; None if there are several, or the key may not ask."""
    try:
        engines = client.call("GET", "/v1/engines")["data"]
    except ApiError:
        return None
    return int(engines[0]["slots_booked"]) if len(engines) == 1 else None


def _check_engine(num_ours: int | None) -> Iterator[Finding]:
    """Probe the engine, if its address is known here."""
    side = local.find_engine(None)
    if side.triton == TritonSettings() and side.engine.url is None:  # no address is configured
        return
    from worker.engine.probe import (
        inspect as inspect_engine,
    )  # gRPC takes a moment to import; other commands do not need it

    try:
        found = list(inspect_engine(side, Tokenizer.load(side.tokenizer.path), num_ours=num_ours))
    except LongbatchError as error:
        yield Finding("engine: server", "unknown", error.message)
        return
    yield from (
        replace(each, name=f"engine: {each.name}")
        for each in found
        if each.status in ("failed", "warning") or each.name in ("server", "entry point", "answer")
    )


def _is_http(engine_url: str | None) -> bool:
    return engine_url is not None and not engine_url.startswith("grpc://")


def _check_api(client: Client) -> Finding:
    try:
        version = client.version()
    except ApiError as error:
        if error.status != httpx2.codes.UNAUTHORIZED:
            raise
        advice = "LONGBATCH_API_KEY; `longbatch keys create` makes one"
        return Finding("api", "failed", f"{client.api_url} answers, but: {error.message}", advice)
    detail = f"{client.api_url} serves {version['model']}, version {version['version']}"
    return Finding("api", "ok", detail)


def _server_findings(components: Mapping[str, Mapping[str, object]]) -> Iterator[Finding]:
    for name, component in components.items():
        yield of_component(name, is_ready=bool(component["ready"]), detail=str(component["detail"]))


def _local_findings() -> Iterator[Finding]:
    try:
        found = settings.load()
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, each["loc"])) for each in error.errors(include_input=False))
        yield Finding("settings", "unknown", f"this shell lacks the settings for further checks: {wrong}")
        return
    except ValueError as error:
        yield Finding("settings", "failed", str(error))
        return
    yield from diagnostics.of_webhooks(found.webhooks)
    checks: dict[str, Callable[[Settings], str]] = {
        "database": _check_database,
        "broker": _check_broker,
        "engine": _check_server,
        "tokenizer": _check_tokenizer,
    }
    for name, check in checks.items():
        try:
            yield of_component(name, is_ready=True, detail=check(found))
        except (LongbatchError, SQLAlchemyError, httpx2.HTTPError, OSError, ValueError) as error:
            reason = error.message if isinstance(error, LongbatchError) else type(error).__name__
            yield of_component(name, is_ready=False, detail=reason)


def _check_open_files() -> Finding:
    """Compare this account's limit on open files with what an API process needs."""
    try:
        api, pool_size = settings.load().api, settings.load().database.pool_size
    except ValueError:  # this shell has no settings: report the defaults
        api, pool_size = ApiSettings(), DatabaseSettings.model_fields["pool_size"].default
    return diagnostics.of_open_files(max_connections=api.max_connections, pool_size=pool_size)


def _check_database(found: Settings) -> str:
    engine: Engine = database.make_engine(found.database, pool_size=1, name="longbatch-doctor")
    try:
        with Session(engine) as session:
            current = schema.current(session)
            binding = isolation.describe(isolation.is_bound(session))
    finally:
        engine.dispose()
    if current != schema.head():
        raise LongbatchError(f"its schema is at {current}, this version needs {schema.head()}")
    return f"its schema is at {current}; {binding}"


def _check_broker(found: Settings) -> str:
    broker = doorbell.connect(found.broker.url.get_secret_value(), socket_timeout=_TIMEOUT_SECONDS)
    if not doorbell.is_reachable(broker):
        raise LongbatchError("it does not answer")
    return "it answers"


def _check_server(found: Settings) -> str:
    if _is_http(found.engine.url):
        return f"{found.engine.url} is checked below"
    if found.triton.http_url is None:
        raise LongbatchError(f"set LONGBATCH_TRITON__HTTP_URL to check it; gRPC is at {found.triton.url}")
    url = f"{found.triton.http_url.rstrip('/')}/v2/health/ready"
    httpx2.get(url, timeout=_TIMEOUT_SECONDS, trust_env=False).raise_for_status()
    return "it is ready"


def _check_tokenizer(found: Settings) -> str:
    loaded = Tokenizer.load(found.tokenizer.path)
    return f"it loads; {HOW_COUNTED}" if loaded.is_estimate else f"it loads, fingerprint {loaded.fingerprint}"
