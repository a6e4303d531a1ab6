"""The secret that signs a stack's webhooks, and the key that encrypts others; in the data directory."""

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
    """Return the environment's secret, or the directory's own, created if missing."""
    return environment.get(VARIABLE) or _kept(directory / FILE, prefix="whsec_")


def encryption_key(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the key that encrypts the database's secrets, like `webhook_secret`."""
    return environment.get(KEY_VARIABLE) or _kept(directory / _KEY_FILE)


def _kept(file: Path, *, prefix: str = "") -> str:
    if not file.exists():
        write_private(file, prefix + base64.b64encode(secrets.token_bytes(32)).decode())
    return file.read_text().strip()
