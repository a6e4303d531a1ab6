"""File bytes in object storage (S3-compatible, or another that `obstore` supports); needs the extra `s3`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from jobs.errors import UnavailableError
from jobs.files.storage import (
    HEAD_BYTES,
    LISTED_AT_ONCE,
    OWNER_NAME,
    BytesLostError,
    RowStore,
    StoredPart,
    opened,
    pack,
    sealed,
    unpack,
)
from jobs.ids import uuid7
from jobs.sealing.content import ContentSealer

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

# A part is put while its batch is locked, so this is below the time after which Postgres ends an idle
# transaction.
_TIMEOUT: Final = "10s"
_RETRIES_FOR: Final = timedelta(seconds=10)
_MAX_RETRIES: Final = 3


class ObjectStore(RowStore):
    """Parts as objects below a URL such as `s3://bucket/prefix`.

    The region, the keys and a custom endpoint come from AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
    and AWS_ENDPOINT_URL, or from the machine's role.
    """

    def __init__(self, url: str, sealer: ContentSealer | None = None) -> None:
        self._sealer = sealer
        self._client = _connect(url)
        self._is_bulk = url.startswith("s3")  # one request deletes many objects and ignores missing ones

    def put(self, raw: bytes) -> StoredPart:
        """Store the bytes, compressed and sealed, as an object.

        Raises:
            UnavailableError: the storage does not accept it; try again.
        """
        key = uuid7().hex
        self._write(key, pack(raw))
        return StoredPart(len(raw), key=key)

    def get(self, part: StoredPart) -> bytes:
        """Return the bytes of a part; a part stored in a row before is read from there.

        Raises:
            BytesLostError: the object does not exist.
            UnavailableError: the storage does not answer; try again.
            ContentUnreadableError: no key opens it.
        """
        return super().get(part) if part.key is None else unpack(self._read(part.key))

    def head(self, key: str) -> bytes:
        """Return the first bytes of a part as it is stored; raise as `get` does."""
        import obstore

        with _translated(), _telling_lost():
            # Of a part that is shorter it returns what there is.
            return obstore.get_range(self._client, _path(key), start=0, length=HEAD_BYTES).to_bytes()

    def reseal(self, key: str) -> None:
        """Seal a part as the settings say now; raise as `get` and `put` do."""
        self._write(key, self._read(key))

    def _write(self, key: str, packed: bytes) -> None:
        import obstore

        with _translated():
            obstore.put(self._client, _path(key), sealed(packed, key, self._sealer))

    def _read(self, key: str) -> bytes:
        import obstore

        with _translated(), _telling_lost():
            stored = obstore.get(self._client, _path(key)).bytes().to_bytes()
        return opened(stored, key, self._sealer)

    def drop(self, keys: Sequence[str]) -> None:
        """Delete the objects; missing ones are no error.

        Raises:
            UnavailableError: the storage does not answer; try again.
        """
        import obstore

        with _translated():
            if self._is_bulk and keys:
                obstore.delete(self._client, [_path(key) for key in keys])
                return
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._client, _path(key))

    def list_keys(self, folder: str) -> Iterator[list[str]]:
        """List the keys of one of FOLDERS, up to LISTED_AT_ONCE at a time.

        Raises:
            UnavailableError: the storage does not answer; try again.
        """
        import obstore

        with _translated():
            for found in obstore.list(self._client, f"{folder}/", chunk_size=LISTED_AT_ONCE):
                names = [each["path"].rpartition("/")[2] for each in found]
                yield [name.removesuffix(".zst") for name in names if name.endswith(".zst")]

    def owner(self) -> str | None:
        """Return the name of the database that owns these parts, or None if unclaimed.

        Raises:
            UnavailableError: the storage does not answer; try again.
        """
        import obstore

        with _translated():
            try:
                return obstore.get(self._client, OWNER_NAME).bytes().to_bytes().decode()
            except FileNotFoundError:
                return None

    def claim(self, owner: str) -> None:
        """Claim these parts for a database (see `PartStore.claim`).

        Raises:
            UnavailableError: the storage does not answer; try again.
        """
        import obstore

        with _translated():
            obstore.put(self._client, OWNER_NAME, owner.encode())


@contextmanager
def _translated() -> Iterator[None]:
    """Translate the storage's errors.

    Raises:
        UnavailableError: the storage does not answer, or refuses.
    """
    import obstore

    try:
        yield
    except (obstore.exceptions.BaseError, OSError) as error:
        raise UnavailableError("The object storage does not answer; try again.") from error


@contextmanager
def _telling_lost() -> Iterator[None]:
    """Translate a missing object.

    Raises:
        BytesLostError: the object does not exist.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise BytesLostError from error


def _connect(url: str) -> "Client":
    from obstore.store import from_url

    if url.startswith("file:"):
        return from_url(url, mkdir=True)
    return from_url(
        url,
        # Plain http is for private endpoints, which AWS_ENDPOINT_URL must name.
        client_options={"timeout": _TIMEOUT, "allow_http": True},
        retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRIES_FOR},
    )


def _path(key: str) -> str:
    return f"{key[-2:]}/{key}.zst"
