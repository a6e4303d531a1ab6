"""Documents and results in object storage: `s3://bucket/prefix` in place of a folder. Needs the extra `s3`.

The region, the keys and a custom endpoint come from the caller's environment (AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL) or from the machine's role; the server never sees them.
"""

import errno
import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from longbatch.documents.sources import SUFFIXES, Skipped, SourceFile, is_leftover, suffix_of
from longbatch.errors import FileChangedError, LongbatchError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_SCHEME: Final = "s3://"
_LISTED_AT_ONCE: Final = 1000
_TIMEOUT: Final = "60s"  # of one request; a whole document is read in one


class BucketError(LongbatchError):
    """The object storage does not answer, or refuses."""

    code = "storage_unavailable"


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A place in object storage.

    Attributes:
        bucket: its name.
        key: of an object, or the folder of many; empty: the whole bucket.
    """

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.key}"

    def contains(self, bucket: str, key: str) -> bool:
        """Return True if this object lies below the folder."""
        return bucket == self.bucket and (not self.key or key.startswith(f"{self.key}/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFile(SourceFile):
    """A document in object storage.

    Attributes:
        client: of its bucket.
        etag: of the version that was listed.
    """

    client: "ObjectStore" = field(repr=False, compare=False)
    etag: str | None

    @contextmanager
    def at_hand(self) -> Iterator[Path]:
        """Copy the document to a temporary file.

        Raises:
            OSError: it cannot be read.
            FileChangedError: it is no longer the version that was listed.
        """
        import obstore

        with tempfile.TemporaryDirectory(prefix="longbatch-") as folder:
            copy = Path(folder) / "document"
            with _errors_as_os_errors(), copy.open("wb") as file:
                try:
                    found = obstore.get(self.client, str(self.path), options={"if_match": self.etag})
                except obstore.exceptions.PreconditionError as error:
                    raise FileChangedError from error
                for block in found.stream():
                    file.write(block)
            yield copy

    def link_from(self, folder: Path) -> str:  # noqa: ARG002  # an address is the same from everywhere
        """Return the document's address."""
        return self.shown


def is_bucket(path: str) -> bool:
    """Return True if the path names a place in object storage."""
    return path.startswith(_SCHEME)


def parse(path: str) -> BucketAddress:
    """Take the address apart.

    Raises:
        BucketError: it names no bucket.
    """
    bucket, _, key = path.removeprefix(_SCHEME).partition("/")
    if not bucket:
        raise BucketError(f"{path} names no bucket: write s3://bucket/prefix")
    return BucketAddress(bucket, key.strip("/"))


@cache
def connect(bucket: str) -> "ObjectStore":
    """Make the client of this bucket, with the credentials of the environment.

    Raises:
        BucketError: the extra `s3` is not installed, or the environment's settings are wrong.
    """
    try:
        import obstore
        from obstore.store import from_url
    except ImportError as error:
        raise BucketError("s3:// addresses need the extra s3: pip install 'longbatch[s3]'") from error
    try:
        # Plain http is for private endpoints, which AWS_ENDPOINT_URL must name.
        return from_url(f"{_SCHEME}{bucket}", client_options={"timeout": _TIMEOUT, "allow_http": True})
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise BucketError(f"cannot use {_SCHEME}{bucket}: {_line(error)}") from error


def find(
    paths: Sequence[str], *, left_out: BucketAddress | None = None, skipped: Skipped | None = None
) -> Iterator[BucketFile]:
    """Yield every document once, as `sources.find` does: an object as named, folders by key.

    Args:
        paths: `s3://…` addresses of objects and folders in one bucket.
        left_out: a folder to skip, because results written there must not become sources.
        skipped: takes down what folders hold besides.

    Raises:
        BucketError: the storage does not answer or refuses, or the paths lie in several buckets.
    """
    places = [parse(path) for path in paths]
    if len({place.bucket for place in places}) > 1:
        raise BucketError("the documents of one command lie in one bucket")
    client = connect(places[0].bucket)
    named = [_find_object(client, place) for place in places]
    folders = [
        posixpath.dirname(place.key) if is_object else place.key
        for place, is_object in zip(places, named, strict=True)
    ]
    base = posixpath.commonpath(folders) if all(folders) else ""
    seen: set[str] = set()
    for place, its_object in zip(places, named, strict=True):
        found = [its_object] if its_object else _below(client, place, left_out, skipped or Skipped())
        for each in found:
            key = each["path"]
            if key in seen:
                continue
            seen.add(key)
            yield BucketFile(
                path=Path(key),
                shown=str(BucketAddress(place.bucket, key)),
                name=Path(posixpath.relpath(key, base or ".")),
                version=_version(each),
                num_bytes=each["size"],
                client=client,
                etag=each["e_tag"],
            )


def store(address: BucketAddress, content: BinaryIO) -> None:
    """Store an object, whole or not at all.

    Raises:
        OSError: the storage does not accept it.
        BucketError: as `connect`.
    """
    import obstore

    client = connect(address.bucket)
    with _errors_as_os_errors():
        obstore.put(client, address.key, content)


class BucketFolder:
    """The folder of results, in object storage."""

    def __init__(self, address: BucketAddress) -> None:
        self._address = address
        self._client = connect(address.bucket)

    def write(self, place: Path, text: str) -> None:
        """Store the text at this place below the folder, whole or not at all.

        Raises:
            OSError: the storage does not accept it.
        """
        import obstore

        with _errors_as_os_errors():
            obstore.put(self._client, self.key_of(place), text.encode())

    def delete(self, place: Path) -> None:
        """Delete what stands at this place, if anything does.

        Raises:
            OSError: the storage refuses.
        """
        import obstore

        with _errors_as_os_errors(), suppress(FileNotFoundError, obstore.exceptions.NotFoundError):
            obstore.delete(self._client, self.key_of(place))

    def link(self, source: SourceFile, place: Path) -> str:  # noqa: ARG002  # an address, not a way
        """Return where the source of a result lies."""
        return source.shown

    def key_of(self, place: Path) -> str:
        """Return the key of the object at this place."""
        return posixpath.join(self._address.key, place.as_posix())


def _find_object(client: "ObjectStore", place: BucketAddress) -> "ObjectMeta | None":
    """Find the object of exactly this key; None: there is none, so it may be a folder."""
    import obstore

    if not place.key:
        return None
    with _errors_named(place):
        try:
            return obstore.head(client, place.key)
        except (FileNotFoundError, obstore.exceptions.NotFoundError):
            return None


def _below(
    client: "ObjectStore", place: BucketAddress, left_out: BucketAddress | None, skipped: Skipped
) -> Iterator["ObjectMeta"]:
    import obstore

    prefix = f"{place.key}/" if place.key else None
    is_empty = True
    with _errors_named(place):
        for page in obstore.list(client, prefix, chunk_size=_LISTED_AT_ONCE):
            for each in page:
                is_empty, key = False, each["path"]
                below = key.removeprefix(prefix or "")
                *folders, name = below.split("/")
                is_hidden = is_leftover(name) or any(part.startswith(".") for part in folders)
                is_result = left_out is not None and left_out.contains(place.bucket, key)
                if is_hidden or is_result or key.endswith("/"):
                    continue
                if suffix_of(key) in SUFFIXES:
                    yield each
                else:
                    skipped.kinds[suffix_of(key) or "without a suffix"] += 1
    if is_empty:
        raise BucketError(f"nothing lies at {place}")


def _version(found: "ObjectMeta") -> str | None:
    """Name the content without reading it; None if the storage gives it no name."""
    return f"{found['e_tag']} {found['size']}" if found["e_tag"] else None


@contextmanager
def _errors_named(place: BucketAddress) -> Iterator[None]:
    import obstore

    try:
        yield
    except (obstore.exceptions.BaseError, OSError, ValueError) as error:  # ValueError: no such key can be
        raise BucketError(f"cannot list {place}: {_line(error)}") from error


@contextmanager
def _errors_as_os_errors() -> Iterator[None]:
    import obstore

    try:
        yield
    except (obstore.exceptions.BaseError, ValueError) as error:  # ValueError: as above
        raise OSError(errno.EIO, _line(error)) from error


def _line(error: Exception) -> str:
    """Return the first line of the storage's error; further ones repeat it for programmers."""
    return str(error).strip().partition("\n")[0]
