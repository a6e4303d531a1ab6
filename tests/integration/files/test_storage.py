"""Each store keeps parts, whatever happened to them before."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bucket_support import Bucket, serving_bucket
from jobs.errors import StorageFullError, UnavailableError
from jobs.files.object_storage import ObjectStore
from jobs.files.storage import (
    FOLDERS,
    BytesLostError,
    DirectoryStore,
    PartStore,
    RowStore,
    StoredPart,
)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of an S3-compatible server, named and signed for by the environment."""
    with serving_bucket() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def endpoint(bucket: Bucket) -> str:  # noqa: ARG001  # serves what is there
    return "s3://bucket/some/prefix"


@pytest.fixture(params=["directory", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, endpoint: str) -> PartStore:
    if request.param == "directory":
        return DirectoryStore(tmp_path)
    return ObjectStore(f"file://{tmp_path}" if request.param == "file" else endpoint)


def test_a_part_is_kept_outside_its_row_until_it_is_dropped(store: PartStore) -> None:
    raw = b"some bytes " * 1000
    part = store.put(raw)
    assert (part.num_bytes, part.content) == (len(raw), None)
    assert store.get(part) == raw
    other = store.put(raw)
    assert part.key is not None
    store.drop([part.key])
    store.drop([part.key])
    with pytest.raises(BytesLostError):
        store.get(part)
    assert store.get(other) == raw


def test_parts_in_rows_are_found_by_every_store(store: PartStore) -> None:
    assert store.get(RowStore().put(b"abc")) == b"abc"


def test_a_part_that_is_kept_elsewhere_is_not_in_its_row() -> None:
    with pytest.raises(BytesLostError):
        RowStore().get(StoredPart(3, key="somewhere"))


def test_objects_stand_below_the_prefix(endpoint: str, bucket: Bucket) -> None:
    part = ObjectStore(endpoint).put(b"abc")
    assert part.key is not None
    assert list(bucket.objects) == [f"some/prefix/{part.key[-2:]}/{part.key}.zst"]


def test_storage_that_refuses_is_an_error_that_can_be_tried_again(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody else")
    with pytest.raises(UnavailableError):
        ObjectStore(endpoint).put(b"abc")


def test_a_folder_s_parts_are_listed(store: PartStore) -> None:
    keys = {store.put(b"abc").key for _ in range(20)}
    listed = [key for folder in FOLDERS for piece in store.list_keys(folder) for key in piece]
    assert sorted(listed) == sorted(keys, key=str)


def test_a_store_is_claimed_by_one_database(store: PartStore) -> None:
    assert store.owner() is None
    store.claim("one")
    assert store.owner() == "one"


def test_a_name_is_on_the_disk_before_a_row_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power a file whose folder was not synced is not there, whatever it held."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "new" / "root"
    store = DirectoryStore(root)
    key = store.put(b"abc").key
    assert key is not None
    folder = root / key[-2:]
    assert {tmp_path, tmp_path / "new", root} <= set(synced)
    assert synced[-2:] == [folder / f"{key}.zst", folder]


def test_a_directory_on_a_full_disk_keeps_no_half_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    store = DirectoryStore(tmp_path)
    store.put(b"makes its folders")
    before = sorted(tmp_path.rglob("*.zst"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(StorageFullError):
            store.put(b"abc")
    assert sorted(tmp_path.rglob("*.zst")) == before
