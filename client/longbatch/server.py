"""Which server a client speaks to: the one named, that of the environment, or the local stack."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from longbatch.errors import InvalidKeyError

API_URL: Final = "LONGBATCH_API_URL"
API_KEY: Final = "LONGBATCH_API_KEY"
DEFAULT_API_URL: Final = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server and the key to send to it.

    Attributes:
        api_key: None if no key is known; the server then answers that it needs one.
        certificate: file of the certificate that the server presents, trusted as it is; None: the system's
            authorities decide.
    """

    url: str
    api_key: str | None = field(repr=False)
    certificate: str | None = None


def find_server(api_url: str | None = None, api_key: str | None = None) -> ServerAccess:
    """Find the given server, that of the environment, or the local stack in the default directory.

    The stack's own key is sent to the stack alone; any other server gets LONGBATCH_API_KEY, if set. The
    stack's certificate, which may be self-signed, is trusted for the stack alone.

    Raises:
        InvalidKeyError: the key has characters that no header can carry.
    """
    ready = ready_stack()
    url = api_url or os.environ.get(API_URL) or ready.get("api_url") or DEFAULT_API_URL
    url = url.rstrip("/").removesuffix("/v1")  # which clients of OpenAI's append
    of_stack = ready if url == ready.get("api_url") else {}
    key = (api_key or os.environ.get(API_KEY) or of_stack.get("api_key") or "").strip()
    if key and not (key.isascii() and key.isprintable()):
        raise InvalidKeyError
    return ServerAccess(url, key or None, of_stack.get("tls_certificate"))


def data_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of a user's local stack.

    Raises:
        RuntimeError: this user has no home directory.
    """
    base = environment.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "longbatch"


def ready_stack() -> dict[str, Any]:
    """Read the ready file of the local stack; return an empty dict if no stack runs."""
    try:
        found = json.loads((data_directory() / "ready.json").read_text())
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}
