"""`longbatch doctor`: every part checked by name, in words, with what to do about it."""

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
from cli.client import Client, RefusedError, ServerUnreachableError
from cli.commands.inspect import show
from cli.local import Server
from cli.output import ApiUrl, AsJson, print_json
from jobs import database, doorbell, open_files, settings
from jobs.database import schema
from jobs.diagnostics import Finding
from jobs.errors import LongbatchError
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import ApiSettings, DatabaseSettings, Settings, TritonSettings
from jobs.tenants import isolation

_TIMEOUT_SECONDS: Final = 3.0
_KEEPALIVE: Final = (
    "cannot be seen from outside; a Triton without --grpc-http2-min-recv-ping-interval-without-data=5000"
    " --grpc-keepalive-permit-without-calls=1 ends silent streams after 30 s: start it with them,"
    " or set LONGBATCH_TRITON__FAST_KEEPALIVE=false"
)
_ADVICE: Final = {
    "database": "LONGBATCH_DATABASE__URL; `alembic upgrade head` brings the schema up to date",
    "broker": "LONGBATCH_BROKER__URL; jobs move without it too, some seconds later",
    "triton": "LONGBATCH_TRITON__URL and __HTTP_URL, and the inference worker's log",
    "tokenizer": "LONGBATCH_TOKENIZER__PATH, or the extra `local`",
}


def register(app: typer.Typer) -> None:
    """The application has the verb."""
    app.command("doctor", epilog="Exit codes: 0 every part works, 1 one does not.")(doctor)


def doctor(*, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """Check every part by name: API, database, broker, Triton, tokenizer."""
    findings = list(_examine(local.find_server(api_url)))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            show(finding)
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(1)


def _examine(server: Server) -> Iterator[Finding]:
    """The server's own view; where no server answers, this machine's by its settings."""
    try:
        with Client(server.url, server.api_key) as client:
            yield _look_at_api(server, client)
            yield from _as_the_server_sees_it(client.readiness())
    except (ServerUnreachableError, RefusedError) as error:
        yield Finding("api", "failed", error.message, "`longbatch up` starts one; else see --api-url")
        yield from _as_seen_from_here()
    yield from _engine()
    yield _look_at_open_files()
    yield Finding("triton keepalive", "unknown", _KEEPALIVE)


def _engine() -> Iterator[Finding]:
    """What is wrong with the engine, as far as it is known from here which one it is."""
    side = local.find_engine(None)
    if side.triton == TritonSettings():  # nobody has named one
        return
    from worker.engine.probe import probe  # gRPC takes a moment to import; other verbs need none of it

    try:
        found = list(probe(side, Tokenizer.load(side.tokenizer.path)))
    except LongbatchError as error:
        yield Finding("engine", "unknown", error.message)
        return
    yield from (
        replace(each, name=f"engine: {each.name}")
        for each in found
        if each.status in ("failed", "warning") or each.name in ("entry point", "answer")
    )


def _look_at_api(server: Server, client: Client) -> Finding:
    try:
        version = client.version()
    except RefusedError as error:
        if error.status != httpx2.codes.UNAUTHORIZED:
            raise
        advice = "LONGBATCH_API_KEY; `longbatch keys create` makes one"
        return Finding("api", "failed", f"{server.url} answers, but: {error.message}", advice)
    detail = f"{server.url} serves {version['model']}, version {version['version']}"
    return Finding("api", "ok", detail)


def _as_the_server_sees_it(components: Mapping[str, Mapping[str, object]]) -> Iterator[Finding]:
    for name, component in components.items():
        yield _finding(name, is_ready=bool(component["ready"]), detail=str(component["detail"]))


def _as_seen_from_here() -> Iterator[Finding]:
    try:
        found = settings.load()
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, each["loc"])) for each in error.errors(include_input=False))
        yield Finding("settings", "unknown", f"this shell has none to look further with: {wrong}")
        return
    except ValueError as error:
        yield Finding("settings", "failed", str(error))
        return
    yield from _look_at_webhooks(found)
    looks: dict[str, Callable[[Settings], str]] = {
        "database": _look_at_database,
        "broker": _look_at_broker,
        "triton": _look_at_triton,
        "tokenizer": _look_at_tokenizer,
    }
    for name, look in looks.items():
        try:
            yield _finding(name, is_ready=True, detail=look(found))
        except (LongbatchError, SQLAlchemyError, httpx2.HTTPError, OSError, ValueError) as error:
            reason = error.message if isinstance(error, LongbatchError) else type(error).__name__
            yield _finding(name, is_ready=False, detail=reason)


def _look_at_webhooks(found: Settings) -> Iterator[Finding]:
    """Warn where webhooks have a secret to sign with, but no key to seal secrets under."""
    if found.webhooks.secret is not None and found.webhooks.encryption_key is None:
        detail = "endpoints and secrets of callers are refused: there is no key to seal them under"
        key = "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY=$(openssl rand -base64 32)"
        advice = f"set {key}, the same for API and service workers"
        yield Finding("webhooks", "warning", detail, advice)


def _look_at_open_files() -> Finding:
    """Compare the limit of this account here with what an API process needs by its settings."""
    soft, hard = open_files.limits()
    try:
        api, pool_size = settings.load().api, settings.load().database.pool_size
    except ValueError:  # this shell has none; the defaults are told
        api, pool_size = ApiSettings(), DatabaseSettings.model_fields["pool_size"].default
    needed = api.max_connections + pool_size + open_files.RESERVE
    detail = f"this account may have {hard} here (soft limit {soft}, raised at start); the API needs {needed}"
    if hard >= needed:
        return Finding("open files", "ok", detail)
    advice = "raise the hard limit (ulimit -Hn, LimitNOFILE=), or lower LONGBATCH_API__MAX_CONNECTIONS"
    return Finding("open files", "warning", detail, advice)


def _finding(name: str, *, is_ready: bool, detail: str) -> Finding:
    return Finding(name, "ok" if is_ready else "failed", detail, "" if is_ready else _ADVICE.get(name, ""))


def _look_at_database(found: Settings) -> str:
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


def _look_at_broker(found: Settings) -> str:
    broker = doorbell.connect(found.broker.url.get_secret_value(), socket_timeout=_TIMEOUT_SECONDS)
    if not doorbell.answers(broker):
        raise LongbatchError("it does not answer")
    return "it answers"


def _look_at_triton(found: Settings) -> str:
    if found.triton.http_url is None:
        raise LongbatchError(
            f"set LONGBATCH_TRITON__HTTP_URL to have it asked; gRPC is at {found.triton.url}"
        )
    url = f"{found.triton.http_url.rstrip('/')}/v2/health/ready"
    httpx2.get(url, timeout=_TIMEOUT_SECONDS, trust_env=False).raise_for_status()
    return "it is ready"


def _look_at_tokenizer(found: Settings) -> str:
    return f"it loads, fingerprint {Tokenizer.load(found.tokenizer.path).fingerprint}"
