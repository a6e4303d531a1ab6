"""A search of everything that is stored: each column of each table, Redis, and the files of a folder."""

import base64
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import zstandard
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker


@dataclass(frozen=True)
class Marks:
    """What must not be found.

    Attributes:
        words: texts; also as UTF-16, in hexadecimal, in base64, and within what is compressed.
        token_ids: runs of token ids, in a row as int32 or as JSON writes them.
    """

    words: Collection[str]
    token_ids: Collection[tuple[int, ...]] = ()

    def are_in(self, raw: bytes) -> bool:
        """Tell whether one of them is in these bytes, or in what they are the compressed form of."""
        return any(wanted in each for each in _unpacked(raw) for wanted in self._patterns())

    def _patterns(self) -> Iterator[bytes]:
        for word in self.words:
            yield word.encode()
            yield word.encode("utf-16-le")
            yield word.encode().hex().encode()
            yield from _in_base64(word.encode())
        for run in self.token_ids:
            yield struct.pack(f"<{len(run)}i", *run)
            yield ", ".join(map(str, run)).encode()
            yield ",".join(map(str, run)).encode()


def in_database(sessions: sessionmaker[Session], marks: Marks) -> set[str]:
    """The columns, as `table.column`, that hold a mark in any row of any table."""
    found = set()
    with sessions() as session:
        for table in session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")):
            rows = session.execute(text(f'SELECT * FROM "{table}"'))  # noqa: S608  # its own name
            names = list(rows.keys())
            for row in rows:
                found |= {
                    f"{table}.{name}"
                    for name, value in zip(names, row, strict=True)
                    if marks.are_in(_raw(value))
                }
    return found


def in_redis(broker: redis.Redis, marks: Marks) -> set[str]:
    """The keys that hold a mark, or have one in their name."""
    found = set()
    for key in broker.scan_iter(count=1000):
        if marks.are_in(key) or any(marks.are_in(each) for each in _values(broker, key)):
            found.add(key.decode())
    return found


def in_files(folder: Path, marks: Marks) -> set[str]:
    """The files below this folder that hold a mark, or have one in their name."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and (marks.are_in(str(path).encode()) or marks.are_in(path.read_bytes()))
    }


def _values(broker: Any, key: bytes) -> Iterator[bytes]:  # noqa: ANN401  # it answers with many types
    match broker.type(key):
        case b"string":
            yield broker.get(key) or b""
        case b"list":
            yield from broker.lrange(key, 0, -1)
        case b"set":
            yield from broker.smembers(key)
        case b"zset":
            yield from broker.zrange(key, 0, -1)
        case b"hash":
            for name, value in broker.hgetall(key).items():
                yield from (name, value)
        case b"stream":
            for _, fields in broker.xrange(key):
                for name, value in fields.items():
                    yield from (name, value)
        case other:
            assert other == b"none", f"{key!r} is of a kind that nothing here reads: {other!r}"


def _raw(value: object) -> bytes:
    match value:
        case bytes() | memoryview():
            return bytes(value)
        case None:
            return b""
        case _:
            return str(value).encode(errors="surrogatepass")


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """What base64 of a longer text has of these bytes, wherever among its groups of three they begin."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        yield encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]


def _unpacked(raw: bytes) -> Iterator[bytes]:
    yield raw
    if raw.startswith(zstandard.FRAME_HEADER):
        yield zstandard.ZstdDecompressor().decompressobj().decompress(raw)
