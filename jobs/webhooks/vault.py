"""Webhook secrets at rest: AES-256-GCM under keys that only Longbatch's processes have."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from jobs.errors import InvalidRequestError, LongbatchError
from jobs.sealing.keys import NAME_BYTES, KeyRing, UnsealableError, name_of, read_keys
from jobs.settings import WebhookSettings

_FORMAT: Final = b"\x01"
_PURPOSE: Final = b"longbatch webhook secret"


class VaultError(LongbatchError):
    """A webhook secret cannot be decrypted: the key that sealed it is no longer configured."""

    code = "secret_unreadable"


class VaultSealError(InvalidRequestError):
    """The server cannot keep webhook secrets: LONGBATCH_WEBHOOKS__ENCRYPTION_KEY is not set."""

    code = "webhook_secrets_not_kept"


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
        old_key = None
        if settings.secret is not None:
            old_key = sha256(_PURPOSE + settings.secret.get_secret_value().encode()).digest()
        return cls(read_keys(settings.encryption_key), old_key)

    @property
    def old_name(self) -> bytes | None:
        """Name of the old key in what it sealed."""
        return None if self.old_key is None else name_of(self.old_key)

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
        return _FORMAT + KeyRing(self.keys[:1]).seal(secret.encode(), _PURPOSE)

    def open(self, sealed: bytes) -> str:
        """Decrypt a secret.

        Raises:
            VaultError: it was sealed under another key, or the bytes were changed.
        """
        ring = KeyRing([*self.keys, *([self.old_key] if self.old_key else [])])
        try:
            return ring.open(sealed[len(_FORMAT) :], _PURPOSE).decode()
        except (UnsealableError, ValueError) as error:  # the latter if it is not text
            raise VaultError from error


def _name_in(sealed: bytes) -> bytes:
    return sealed[len(_FORMAT) : len(_FORMAT) + NAME_BYTES]
