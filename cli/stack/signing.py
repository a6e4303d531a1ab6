"""The secret that a stack signs webhooks with: made once, kept in the data directory."""

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path

from cli.stack.files import write_private

VARIABLE = "LONGBATCH_WEBHOOKS__SECRET"
FILE = "webhook-secret"


def webhook_secret(directory: Path, environment: Mapping[str, str]) -> str:
    """The caller's own secret if there is one, else the one of this directory, made when it is new."""
    if given := environment.get(VARIABLE):
        return given
    file = directory / FILE
    if not file.exists():
        write_private(file, "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())
    return file.read_text().strip()
