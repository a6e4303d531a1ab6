"""As much of S3's protocol as our requests need, over HTTP; unsigned requests are refused."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_LISTED_AT_ONCE = 3
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Bucket:
    """The bucket `bucket`.

    Attributes:
        environment: names the server and signs requests.
        objects: by key.
        gets: keys that were read, in order.
        is_refusing: answer 403 to everything.
        is_read_only: answer 403 to what would change an object.
    """

    environment: Mapping[str, str]
    objects: dict[str, bytes] = field(default_factory=dict)
    gets: list[str] = field(default_factory=list)
    is_refusing: bool = False
    is_read_only: bool = False


@contextmanager
def serving_bucket() -> Iterator[Bucket]:
    """Serve an empty bucket as long as the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_REGION": "here",
        "AWS_ACCESS_KEY_ID": "canary",
        "AWS_SECRET_ACCESS_KEY": "canary",
    }
    bucket = Bucket(MappingProxyType(environment))
    server.bucket = bucket  # type: ignore[attr-defined]  # read by the handler
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def bucket(self) -> Bucket:
        found: Bucket = self.server.bucket  # type: ignore[attr-defined]  # set above
        return found

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def do_PUT(self) -> None:
        body = self._body()
        if self._may():
            self.bucket.objects[self.key] = body
            self._answer(200, etag_of=body)

    def do_HEAD(self) -> None:
        self._get(is_head=True)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" not in query:
            self._get(is_head=False)
        elif self._may():
            self._list(query.get("prefix", [""])[0], after=query.get("continuation-token", [""])[0])

    def do_DELETE(self) -> None:
        if self._may():
            self.bucket.objects.pop(self.key, None)
            self._answer(204)

    def do_POST(self) -> None:
        assert "?delete" in self.path
        body = self._body().decode()
        if self._may():
            names = re.findall(r"<Key>(.*?)</Key>", body)
            for name in names:
                self.bucket.objects.pop(unescape(name), None)
            deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def log_message(self, *_: object) -> None: ...

    def _get(self, *, is_head: bool) -> None:
        if not self._may():
            return
        found = self.bucket.objects.get(self.key)
        if found is None:
            self._answer(404, is_head=is_head)
        elif self.headers.get("If-Match", _etag(found)) != _etag(found):
            self._answer(412)
        else:
            if not is_head:
                self.bucket.gets.append(self.key)
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            if wanted is None:
                self._answer(200, found, etag_of=found, is_head=is_head)
                return
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(found))
            extent = f"bytes {start}-{end - 1}/{len(found)}"
            self._answer(206, found[start:end], etag_of=found, is_head=is_head, extent=extent)

    def _list(self, prefix: str, *, after: str) -> None:
        keys = sorted(key for key in self.bucket.objects if key.startswith(prefix) and key > after)
        listed, left = keys[:_LISTED_AT_ONCE], keys[_LISTED_AT_ONCE:]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.bucket.objects[key])}</Size>"
            f"<ETag>{escape(_etag(self.bucket.objects[key]))}</ETag>"
            "<LastModified>2026-01-31T12:00:00.000Z</LastModified></Contents>"
            for key in listed
        )
        more = f"<NextContinuationToken>{escape(listed[-1])}</NextContinuationToken>" if left else ""
        is_cut = str(bool(left)).lower()
        body = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{more}{contents}</ListBucketResult>"
        self._answer(200, body.encode())

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _may(self) -> bool:
        """Return True if the request is signed; otherwise refuse it."""
        signed = self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 Credential=canary/")
        changes = self.command not in {"GET", "HEAD"}
        if not signed or self.bucket.is_refusing or (self.bucket.is_read_only and changes):
            self._answer(403, is_head=self.command == "HEAD")
            return False
        return True

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        *,
        etag_of: bytes = b"",
        is_head: bool = False,
        extent: str | None = None,
    ) -> None:
        self.send_response(status)
        if extent is not None:
            self.send_header("Content-Range", extent)
        self.send_header("ETag", _etag(etag_of))
        self.send_header("Last-Modified", "Sat, 31 Jan 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(body)


def _etag(content: bytes) -> str:
    return f'"{md5(content).hexdigest()}"'  # noqa: S324  # S3's own choice
