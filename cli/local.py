"""Where verbs find their server and its database: named by the environment, else the local stack."""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import SecretStr

from cli.stack.options import default_directory
from jobs.errors import LongbatchError
from jobs.settings import DatabaseSettings, EngineSide

DEFAULT_API_URL: Final = "http://127.0.0.1:8080"


class NoDatabaseError(LongbatchError):
    """No database is named: set LONGBATCH_DATABASE__URL, or start the local stack with `longbatch up`."""

    code = "no_database"


@dataclass(frozen=True, slots=True)
class Server:
    """A server and the key to send to it.

    Attributes:
        api_key: None: none is known; the server will say that it wants one.
    """

    url: str
    api_key: str | None = field(repr=False)


def find_server(api_url: str | None) -> Server:
    """The given server, else the running local stack in its default directory.

    The stack's own key goes to the stack alone; to another server goes LONGBATCH_API_KEY, if it is set.
    """
    ready = _ready()
    url = api_url or ready.get("api_url") or DEFAULT_API_URL
    of_stack = ready.get("api_key") if url.rstrip("/") == ready.get("api_url") else None
    return Server(url, os.environ.get("LONGBATCH_API_KEY") or of_stack)


def find_database() -> DatabaseSettings:
    """The database that the environment names, else that of the running local stack.

    Raises:
        NoDatabaseError: there is neither.
    """
    url = os.environ.get("LONGBATCH_DATABASE__URL") or _ready().get("database_url")
    if not url:
        raise NoDatabaseError
    return DatabaseSettings(url=SecretStr(url))


def find_engine(url: str | None, *, metrics_url: str | None = None, model: str | None = None) -> EngineSide:
    """How an engine is fed: by the options, else by the environment, else that of the running local stack.

    Raises:
        ValueError: a value of the environment is wrong.
    """
    ready = {} if url or "LONGBATCH_TRITON__URL" in os.environ else _ready()
    given = {
        "url": url or ready.get("triton_grpc"),
        "metrics_url": metrics_url or ready.get("triton_metrics"),
        "model_name": model,
    }
    named: dict[str, str | None] = {name: value for name, value in given.items() if value}
    if url and not metrics_url:
        named["metrics_url"] = None  # another server's would mislead
    side = EngineSide()
    # As the stack tells its worker: the local engine keeps nothing of a request that has ended.
    told = {"reuses_prefix": False} if ready.get("triton_grpc") else {}
    return side.model_copy(
        update={
            "triton": side.triton.model_copy(update=named),
            "engine": side.engine.model_copy(update=told),
        }
    )


def _ready() -> dict[str, Any]:
    """What the local stack wrote when it was ready; empty: none runs."""
    try:
        found = json.loads((default_directory() / "ready.json").read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: this user has no home
        return {}
    return found if isinstance(found, dict) else {}
