"""Private files of the data directory, among them the secrets of webhooks."""

import base64
import secrets
from collections.abc import Mapping
from pathlib import Path

from longbatch.whole_files import write_whole

SIGNING_VARIABLE = "LONGBATCH_WEBHOOKS__SECRET"
SIGNING_FILE = "webhook-secret"
ENCRYPTION_VARIABLE = "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"
_ENCRYPTION_FILE = "webhook-encryption-key"


def webhook_secret(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the environment's secret that signs webhooks, or the directory's own, created if missing."""
    return environment.get(SIGNING_VARIABLE) or _kept(directory / SIGNING_FILE, prefix="whsec_")


def encryption_key(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the key that encrypts the database's secrets, like `webhook_secret`."""
    return environment.get(ENCRYPTION_VARIABLE) or _kept(directory / _ENCRYPTION_FILE)


def kept_encryption_key(directory: Path, environment: Mapping[str, str]) -> str | None:
    """Return the key as `encryption_key` does, but create none."""
    is_known = bool(environment.get(ENCRYPTION_VARIABLE)) or (directory / _ENCRYPTION_FILE).exists()
    return encryption_key(directory, environment) if is_known else None


def _kept(file: Path, *, prefix: str = "") -> str:
    if not file.exists():
        write_whole(file, prefix + base64.b64encode(secrets.token_bytes(32)).decode())
    return file.read_text().strip()
