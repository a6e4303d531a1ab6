"""Webhook secrets at rest: AES-256-GCM under keys that only Longbatch's processes have."""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from jobs.errors import InvalidRequestError, LongbatchError
from jobs.settings import WebhookSettings

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12  # NIST SP 800-38D
NAME_BYTES: Final = 4
_FORMAT: Final = b"\x01"
_PURPOSE: Final = b"longbatch webhook secret"


class VaultError(LongbatchError):
    """A webhook secret cannot be decrypted: the key that sealed it is no longer configured."""

    code = "secret_unreadable"


class VaultSealError(InvalidRequestError):
    """The server cannot keep webhook secrets: LONGBATCH_WEBHOOKS__ENCRYPTION_KEY is not set."""

    code = "webhook_secrets_not_kept"


class VaultKeyError(LongbatchError):
    """LONGBATCH_WEBHOOKS__ENCRYPTION_KEY must be the base64 of 32 random bytes; commas separate several."""

    code = "invalid_encryption_key"


@dataclass(frozen=True, slots=True)
class Vault:
    """Seals secrets under the first of its keys and opens what any of them sealed.

    Attributes:
        keys: the newest first, 32 bytes each; empty: nothing can be sealed.
        old_key: sealed secrets in an earlier release that had no key of its own; derived from the configured
            secret, which callers can read. It only opens what that release left, and seals nothing.
    """

    keys: Sequence[bytes]
    old_key: bytes | None = None

    @classmethod
    def of(cls, settings: WebhookSettings) -> Self | None:
        """Build the vault from the settings; return None if they configure no webhooks.

        Raises:
            VaultKeyError: a key is invalid.
        """
        if settings.encryption_key is None and settings.secret is None:
            return None
        encoded = settings.encryption_key.get_secret_value().split(",") if settings.encryption_key else []
        old_key = None
        if settings.secret is not None:
            old_key = sha256(_PURPOSE + settings.secret.get_secret_value().encode()).digest()
        return cls([_key(each) for each in encoded], old_key)

    @property
    def old_name(self) -> bytes | None:
        """Name of the old key in what it sealed."""
        return None if self.old_key is None else _name(self.old_key)

    def is_outdated(self, sealed: bytes) -> bool:
        """Return True if callers can derive this secret's key and it can be resealed."""
        return bool(self.keys) and self.old_key is not None and _name_in(sealed) == self.old_name

    def seal(self, secret: str) -> bytes:
        """Encrypt a secret for storage.

        Raises:
            VaultSealError: no key is configured.
        """
        if not self.keys:
            raise VaultSealError
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return (
            _FORMAT
            + _name(self.keys[0])
            + nonce
            + AESGCM(self.keys[0]).encrypt(nonce, secret.encode(), _PURPOSE)
        )

    def open(self, sealed: bytes) -> str:
        """Decrypt a secret.

        Raises:
            VaultError: it was sealed under another key, or the bytes were changed.
        """
        head = len(_FORMAT) + NAME_BYTES
        nonce, rest = sealed[head : head + _NONCE_BYTES], sealed[head + _NONCE_BYTES :]
        for key in (*self.keys, *([self.old_key] if self.old_key else [])):
            if _name(key) == _name_in(sealed):
                try:
                    return AESGCM(key).decrypt(nonce, rest, _PURPOSE).decode()
                except (InvalidTag, ValueError) as error:  # also if truncated or not text
                    raise VaultError from error
        raise VaultError


def new_key() -> str:
    """Create a key in the format of the setting."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _key(encoded: str) -> bytes:
    try:
        key = base64.b64decode(
            encoded.strip(), altchars=b"-_" if set(encoded) & set("-_") else None, validate=True
        )
    except ValueError as error:
        raise VaultKeyError from error
    if len(key) != KEY_BYTES:
        raise VaultKeyError
    return key


def _name_in(sealed: bytes) -> bytes:
    return sealed[len(_FORMAT) : len(_FORMAT) + NAME_BYTES]


def _name(key: bytes) -> bytes:
    """Hash a key into a name that distinguishes it and reveals nothing about it."""
    return sha256(b"name of " + key).digest()[:NAME_BYTES]
