"""Each store keeps parts, whatever happened to them before."""

import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from jobs.errors import UnavailableError
from jobs.files.object_storage import ObjectStore
from jobs.files.storage import (
    FOLDERS,
    BytesLostError,
    DirectoryStore,
    PartStore,
    RowStore,
    StoredPart,
)


class Bucket(BaseHTTPRequestHandler):
    """As much of S3's protocol as three requests need; unsigned ones are refused."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        self.objects[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            self._list(f"{url.path}/{query['prefix'][0]}")
            return
        found = self.objects.get(self.path)
        self._answer(404 if found is None else 200, found or b"")

    def do_POST(self) -> None:
        assert "?delete" in self.path
        names = re.findall(r"<Key>(.*?)</Key>", self.rfile.read(int(self.headers["Content-Length"])).decode())
        for name in names:
            self.objects.pop(f"/bucket/{name}", None)
        deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, prefix: str) -> None:
        names = sorted(name.removeprefix("/bucket/") for name in self.objects if name.startswith(prefix))
        contents = "".join(
            f"<Contents><Key>{name}</Key><Size>1</Size>"
            "<LastModified>2026-01-31T12:00:00.000Z</LastModified></Contents>"
            for name in names
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
        self._answer(200, body.encode())

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: bytes = b"") -> None:
        signed = self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 Credential=canary/")
        self.send_response(status if signed else 403)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sat, 31 Jan 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an S3-compatible server, named and signed for by the environment."""
    Bucket.objects = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    yield "s3://bucket/some/prefix"
    server.shutdown()
    thread.join()
    server.server_close()


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


def test_objects_stand_below_the_prefix(endpoint: str) -> None:
    part = ObjectStore(endpoint).put(b"abc")
    assert part.key is not None
    assert list(Bucket.objects) == [f"/bucket/some/prefix/{part.key[-2:]}/{part.key}.zst"]


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
