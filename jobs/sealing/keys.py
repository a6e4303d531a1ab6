"""Keys that seal what is stored: how the setting writes them, their names, and AES-256-GCM under them."""

import base64
import os
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Final

from jobs.errors import LongbatchError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from pydantic import SecretStr

KEY_BYTES: Final = 32
NAME_BYTES: Final = 4
NONCE_BYTES: Final = 12  # NIST SP 800-38D
TAG_BYTES: Final = 16
SALT_BYTES: Final = 16
# What a salted value has besides its content and the format that its owner writes before it.
OVERHEAD_BYTES: Final = NAME_BYTES + SALT_BYTES + TAG_BYTES


class VaultKeyError(LongbatchError):
    """LONGBATCH_WEBHOOKS__ENCRYPTION_KEY must be the base64 of 32 random bytes; commas separate several."""

    code = "invalid_encryption_key"


class UnsealableError(LongbatchError):
    """A sealed value cannot be opened: its key is not configured, or its bytes were changed."""


class KeyRing:
    """Seals bytes under the first of its keys, and opens what any of them sealed. It never shows its keys.

    Sealed bytes are the key's name, a random nonce, the ciphertext and its tag: for the few secrets of
    webhooks, as one key takes 2^32 random nonces at most. Salted ones have a random salt in place of the
    nonce, of which each value gets a key and a nonce of its own: for any number of values.

    Source: NIST SP 800-38D, section 8.3, for the bound; RFC 7693 for BLAKE2b with a key.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Args: keys: the newest first, 32 bytes each; at least one where anything is sealed."""
        self.names: Final = tuple(name_of(key) for key in keys)
        self._keys = dict(zip(self.names, keys, strict=True))

    def seal(self, content: bytes, purpose: bytes) -> bytes:
        """Encrypt under the newest key; only `open` with the same purpose reads it."""
        nonce = os.urandom(NONCE_BYTES)
        name = self.names[0]
        return name + nonce + _cipher(self._keys[name]).encrypt(nonce, content, purpose)

    def seal_salted(self, content: bytes, purpose: bytes) -> bytes:
        """Encrypt under a key that the newest one gives this value; only `open_salted` reads it."""
        salt = os.urandom(SALT_BYTES)
        name = self.names[0]
        cipher, nonce = _derived(self._keys[name], salt, purpose)
        return name + salt + cipher.encrypt(nonce, content, purpose)

    def open(self, sealed: bytes, purpose: bytes) -> bytes:
        """Decrypt what `seal` made.

        Raises:
            UnsealableError: under another key, or for another purpose, or the bytes were changed.
        """
        key, nonce = self._key_of(sealed), sealed[NAME_BYTES : NAME_BYTES + NONCE_BYTES]
        return _decrypted(_cipher(key), nonce, sealed[NAME_BYTES + NONCE_BYTES :], purpose)

    def open_salted(self, sealed: bytes, purpose: bytes) -> bytes:
        """Decrypt what `seal_salted` made; raise as `open` does."""
        key, salt = self._key_of(sealed), sealed[NAME_BYTES : NAME_BYTES + SALT_BYTES]
        cipher, nonce = _derived(key, salt, purpose)
        return _decrypted(cipher, nonce, sealed[NAME_BYTES + SALT_BYTES :], purpose)

    def _key_of(self, sealed: bytes) -> bytes:
        key = self._keys.get(sealed[:NAME_BYTES])
        if key is None:
            raise UnsealableError
        return key


def read_keys(setting: "SecretStr | None") -> list[bytes]:
    """Decode the keys of the setting, the newest first; none: it is not set.

    Raises:
        VaultKeyError: a key is invalid.
    """
    return [_key(each) for each in setting.get_secret_value().split(",")] if setting else []


def new_key() -> str:
    """Create a key in the format of the setting."""
    return base64.b64encode(os.urandom(KEY_BYTES)).decode()


def name_of(key: bytes) -> bytes:
    """Hash a key into a name that distinguishes it and reveals nothing about it."""
    return sha256(b"name of " + key).digest()[:NAME_BYTES]


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


def _derived(key: bytes, salt: bytes, purpose: bytes) -> tuple["AESGCM", bytes]:
    """Derive the key and the nonce of one value."""
    made = blake2b(salt + purpose, key=key, digest_size=KEY_BYTES + NONCE_BYTES).digest()
    return _cipher(made[:KEY_BYTES]), made[KEY_BYTES:]


def _decrypted(cipher: "AESGCM", nonce: bytes, encrypted: bytes, purpose: bytes) -> bytes:
    _, invalid_tag = _library()
    try:
        return cipher.decrypt(nonce, encrypted, purpose)
    except (invalid_tag, ValueError) as error:  # the latter if it is truncated
        raise UnsealableError from error


def _cipher(key: bytes) -> "AESGCM":
    aesgcm, _ = _library()
    return aesgcm(key)


@cache
def _library() -> tuple[type["AESGCM"], type[Exception]]:
    """Import it where there is a key: most commands need none, and it takes milliseconds."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM, InvalidTag
