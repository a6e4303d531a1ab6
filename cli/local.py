"""Where verbs find their server and its database: named by the environment, else the local stack."""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import SecretStr

from cli.stack.options import default_directory
from jobs.errors import LongbatchError
from jobs.settings import DatabaseSettings

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


def _ready() -> dict[str, Any]:
    """What the local stack wrote when it was ready; empty: none runs."""
    try:
        found = json.loads((default_directory() / "ready.json").read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: this user has no home
        return {}
    return found if isinstance(found, dict) else {}
