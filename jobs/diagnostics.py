"""Checks of a deployment, one component each, and their results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from jobs import open_files
from jobs.settings import WebhookSettings

Status = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the component.
        status: `warning`: it works, but not as well as it could; `unknown`: it cannot be checked from here.
        detail: what the check found, in words.
        advice: what to do about it; empty if nothing.
        facts: the same by name, for programs; empty if the words are all.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


_ADVICE: Final[Mapping[str, str]] = {
    "database": "check LONGBATCH_DATABASE__URL; `alembic upgrade head` brings the schema up to date",
    "broker": "check LONGBATCH_BROKER__URL; jobs also run without it, some seconds later",
    "engine": "check LONGBATCH_ENGINE__URL or LONGBATCH_TRITON__URL, and the inference worker's log",
    "tokenizer": "set LONGBATCH_TOKENIZER__PATH, or install the extra `local`",
}


def of_component(name: str, *, is_ready: bool, detail: str) -> Finding:
    """Report a component that works or does not, with what to do about that."""
    return Finding(name, "ok" if is_ready else "failed", detail, "" if is_ready else _ADVICE.get(name, ""))


def of_webhooks(webhooks: WebhookSettings) -> Iterator[Finding]:
    """Warn if webhooks have a signing secret, but no key to encrypt secrets with."""
    if webhooks.secret is not None and webhooks.encryption_key is None:
        detail = "requests for endpoints and secrets are refused: there is no key to encrypt them with"
        key = "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY=$(openssl rand -base64 32)"
        advice = f"set {key}, the same for API and service workers"
        yield Finding("webhooks", "warning", detail, advice)


def of_open_files(*, max_connections: int, pool_size: int) -> Finding:
    """Compare this account's limit on open files with what an API process needs."""
    soft, hard = open_files.limits()
    needed = max_connections + pool_size + open_files.RESERVE
    detail = f"this account may open {hard} here (soft limit {soft}, raised at start); the API needs {needed}"
    if hard >= needed:
        return Finding("open files", "ok", detail)
    advice = "raise the hard limit (ulimit -Hn, LimitNOFILE=), or lower LONGBATCH_API__MAX_CONNECTIONS"
    return Finding("open files", "warning", detail, advice)
