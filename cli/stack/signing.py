"""The secret that a stack signs webhooks with, and the key that seals others; kept in the data directory."""

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path

from cli.stack.files import write_private

VARIABLE = "LONGBATCH_WEBHOOKS__SECRET"
FILE = "webhook-secret"
KEY_VARIABLE = "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"
_KEY_FILE = "webhook-encryption-key"


def webhook_secret(directory: Path, environment: Mapping[str, str]) -> str:
    """The caller's own secret if there is one, else the one of this directory, made when it is new."""
    return environment.get(VARIABLE) or _kept(directory / FILE, prefix="whsec_")


def encryption_key(directory: Path, environment: Mapping[str, str]) -> str:
    """As `webhook_secret`, for the key that seals secrets in the database."""
    return environment.get(KEY_VARIABLE) or _kept(directory / _KEY_FILE)


def _kept(file: Path, *, prefix: str = "") -> str:
    if not file.exists():
        write_private(file, prefix + base64.b64encode(secrets.token_bytes(32)).decode())
    return file.read_text().strip()
