"""Callers' content as it is stored: sealed or plain, and every value says by itself which it is.

A sealed value begins with `SEALED`. A plain value that happens to begin like that, or like the escape itself,
is stored after `ESCAPE`, whether or not content is sealed, so that no caller and no model can write a value
that is taken for a sealed one.
"""

import binascii
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Never, Self, TypeVar

from jobs.errors import LongbatchError
from jobs.sealing.keys import (
    NAME_BYTES,
    OVERHEAD_BYTES,
    KeyRing,
    UnsealableError,
    read_keys,
)
from jobs.settings import Settings

Shown = TypeVar("Shown")

SEALED: Final = "\x01sealed:"
ESCAPE: Final = "\x01plain:"
_SEALED_BYTES: Final = SEALED.encode()
_ESCAPE_BYTES: Final = ESCAPE.encode()
_MARKED: Final = (SEALED, ESCAPE)
_MARKED_BYTES: Final = (_SEALED_BYTES, _ESCAPE_BYTES)
# In text the key's name is in hexadecimal, then a colon, then base64 without padding.
NAME_CHARS: Final = 2 * NAME_BYTES
# What sealing adds to bytes; to the bytes under the base64 of a text; and before that base64.
ADDED_BYTES: Final = len(_SEALED_BYTES) + OVERHEAD_BYTES
TEXT_OVERHEAD_BYTES: Final = OVERHEAD_BYTES - NAME_BYTES
TEXT_HEAD_CHARS: Final = len(SEALED) + NAME_CHARS + 1
_PURPOSE: Final = b"longbatch content "


class ContentUnreadableError(LongbatchError):
    """Stored content cannot be read: its key is not configured, or its bytes were changed."""

    code = "content_unreadable"

    def as_stored(self) -> dict[str, object]:
        """Return the error as a row shows it."""
        return {"code": self.code, "message": self.message}


class StoredChangedError(ContentUnreadableError):
    """Stored content cannot be read: its bytes were changed."""


@contextmanager
def intact(faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """Read stored content; any of these faults shows that it is not what was stored.

    Raises:
        StoredChangedError: it is not.
    """
    try:
        yield
    except faults as error:
        raise StoredChangedError from error


class Unreadable:
    """Stands for content that cannot be decrypted, in a row that is of use without it; any use fails.

    Attributes:
        error: why it cannot be decrypted.
    """

    def __init__(self, error: ContentUnreadableError) -> None:
        self.error: Final = error

    def _fail(self, *_: object) -> Never:
        raise self.error

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __str__ = __format__ = __getattr__ = _fail


def shown(content: Shown | None) -> Shown | None:
    """Return content to be shown beside other rows; None: it cannot be decrypted."""
    return None if isinstance(content, Unreadable) else content


def require_readable(content: Shown) -> Shown:
    """Return content that is of no use without its value.

    Raises:
        ContentUnreadableError: it cannot be decrypted.
    """
    if isinstance(content, Unreadable):
        raise content.error
    return content


def fault_of(content: object) -> dict[str, object] | None:
    """Return why content cannot be decrypted, as a row shows it; None: it can be."""
    return content.error.as_stored() if isinstance(content, Unreadable) else None


class ContentSealer:
    """Seals content on its way into the database, and opens it on its way out.

    Attributes:
        seals: new content is encrypted. If False, only what is sealed already is opened.
    """

    def __init__(self, keys: Sequence[bytes] = (), *, seals: bool = False) -> None:
        """Set up.

        Args:
            keys: the newest first.
            seals: encrypt new content, which needs a key.

        Raises:
            ValueError: it should seal without a key.
        """
        if seals and not keys:
            raise ValueError("content cannot be encrypted without a key")
        self._ring = KeyRing(keys)
        self.seals: Final = seals

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Make the one that the settings ask for.

        Raises:
            VaultKeyError: a key is invalid.
        """
        keys = read_keys(settings.webhooks.encryption_key)
        return cls(keys, seals=settings.database.encrypt_content)

    @property
    def num_added_bytes(self) -> int:
        """How much longer new content gets that is bytes."""
        return ADDED_BYTES if self.seals else 0

    @property
    def key_names(self) -> Sequence[str]:
        """The names of its keys, in hexadecimal, the newest first."""
        return [name.hex() for name in self._ring.names]

    def seal_bytes(self, content: bytes, place: str) -> bytes:
        """Return the bytes to store; place: such as `results.output_ids`, opened as that alone."""
        if self.seals:
            return _SEALED_BYTES + self._ring.seal_salted(content, _purpose(place))
        return _ESCAPE_BYTES + content if content.startswith(_MARKED_BYTES) else content

    def open_bytes(self, stored: bytes, place: str) -> bytes:
        """Return the content of stored bytes.

        Raises:
            ContentUnreadableError: they cannot be opened.
        """
        if stored.startswith(_SEALED_BYTES):
            return self._open(stored[len(_SEALED_BYTES) :], place)
        return stored.removeprefix(_ESCAPE_BYTES)

    def seal_text(self, content: str, place: str) -> str:
        """Return the text to store."""
        if self.seals:
            return self._as_text(content.encode(), place)
        return ESCAPE + content if content.startswith(_MARKED) else content

    def open_text(self, stored: str, place: str) -> str:
        """Return the content of a stored text.

        Raises:
            ContentUnreadableError: it cannot be opened.
        """
        if stored.startswith(SEALED):
            return self._open(_from_text(stored), place).decode()
        return stored.removeprefix(ESCAPE)

    def seal_json(self, content: object, place: str) -> object:
        """Return the JSON to store: a text if it is sealed."""
        if self.seals:
            return self._as_text(
                json.dumps(content, ensure_ascii=False).encode(errors="surrogatepass"), place
            )
        return ESCAPE + content if isinstance(content, str) and content.startswith(_MARKED) else content

    def open_json(self, stored: object, place: str) -> object:
        """Return the content of stored JSON.

        Raises:
            ContentUnreadableError: it cannot be opened.
        """
        if not isinstance(stored, str):
            return stored
        if stored.startswith(SEALED):
            return json.loads(self._open(_from_text(stored), place))
        return stored.removeprefix(ESCAPE)

    def is_outdated(self, stored: bytes | str) -> bool:
        """Return True if a key other than the newest sealed it, or if it is plain and content is sealed."""
        name = key_name(stored)
        if name is None:
            return self.seals
        return self._ring.names[:1] != (bytes.fromhex(name),)

    def _as_text(self, content: bytes, place: str) -> str:
        sealed = self._ring.seal_salted(content, _purpose(place))
        encoded = binascii.b2a_base64(sealed[NAME_BYTES:], newline=False).rstrip(b"=").decode()
        return f"{SEALED}{sealed[:NAME_BYTES].hex()}:{encoded}"

    def _open(self, sealed: bytes, place: str) -> bytes:
        try:
            return self._ring.open_salted(sealed, _purpose(place))
        except UnsealableError as error:
            name = sealed[:NAME_BYTES].hex()
            raise _unreadable(name, is_known=bytes.fromhex(name) in self._ring.names) from error


# Of an engine that nobody gave a sealer: it stores content as it is, and opens nothing that is sealed.
PLAIN: Final = ContentSealer()


def key_name(stored: bytes | str) -> str | None:
    """Return the name of the key that sealed it, in hexadecimal.

    Returns:
        None if it is plain.
    """
    if isinstance(stored, bytes):
        if not stored.startswith(_SEALED_BYTES):
            return None
        return stored[len(_SEALED_BYTES) : len(_SEALED_BYTES) + NAME_BYTES].hex()
    return stored[len(SEALED) :][:NAME_CHARS] if stored.startswith(SEALED) else None


def _from_text(stored: str) -> bytes:
    """Decode a sealed text into what the ring opens."""
    name, _, encoded = stored[len(SEALED) :].partition(":")
    try:
        return bytes.fromhex(name) + binascii.a2b_base64(
            encoded + "=" * (-len(encoded) % 4), strict_mode=True
        )
    except (binascii.Error, ValueError) as error:
        raise _unreadable(None, is_known=False) from error


def _unreadable(name: str | None, *, is_known: bool) -> ContentUnreadableError:
    if name is None or is_known:
        return ContentUnreadableError(
            "Stored content cannot be decrypted: its bytes were changed.", details={"key": name}
        )
    return ContentUnreadableError(
        f"Stored content cannot be decrypted: the key {name} that sealed it is not configured here.",
        details={"key": name},
    )


def _purpose(place: str) -> bytes:
    return _PURPOSE + place.encode()
