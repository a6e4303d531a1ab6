"""Documents of OpenDocument, Outlook and Excel 97, made on the spot; so is the container of the last two."""

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

_XML: Final = '<?xml version="1.0" encoding="UTF-8"?>'
_NAMES: Final = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text", "table")
)
_SECTOR: Final = 512
_FREE, _END, _OF_FAT, _NONE = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFF


def make_open_document(body: str, *, kind: str = "text", title: str = "A title", manifest: str = "") -> bytes:
    """An OpenDocument file with this body of its content."""
    members = {
        "META-INF/manifest.xml": f"{_XML}<manifest>{manifest}</manifest>",
        "meta.xml": f'{_XML}<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></m>',
        "content.xml": f"{_XML}<office:document-content {_NAMES}><office:body><office:{kind}>{body}"
        f"</office:{kind}></office:body></office:document-content>",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(
            "mimetype", f"application/vnd.oasis.opendocument.{kind}"
        )  # first, and not compressed
        for name, content in members.items():
            archive.writestr(name, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def make_ole(streams: Mapping[str, bytes]) -> bytes:
    """An OLE file of these streams, by their paths; folders are made as they are needed. No mini stream."""
    entries: list[tuple[str, int, int, bytes]] = [("Root Entry", 5, -1, b"")]
    places = {"": 0}
    for path, body in streams.items():
        *folders, name = path.split("/")
        above = ""
        for folder in folders:
            here = f"{above}/{folder}" if above else folder
            if here not in places:
                places[here] = len(entries)
                entries.append((folder, 1, places[above], b""))
            above = here
        entries.append((name, 2, places[above], body))
    sectors: list[bytes] = []
    starts = []
    for _, kind, _, body in entries:
        starts.append(len(sectors) if kind == 2 else 0)
        # Streams of less than 4,096 bytes would lie in the mini stream.
        whole = body.ljust(-(-max(len(body), 4096) // _SECTOR) * _SECTOR, b"\0") if kind == 2 else b""
        sectors += [whole[at : at + _SECTOR] for at in range(0, len(whole), _SECTOR)]
    chains = [
        _END if _ends(number, starts, entries, len(sectors)) else number + 1 for number in range(len(sectors))
    ]
    directory = _directory(entries, starts)
    first_of_directory = len(sectors)
    for at in range(0, len(directory), _SECTOR):
        sectors.append(directory[at : at + _SECTOR])
        chains.append(len(chains) + 1)
    chains[-1] = _END
    num_fat = -(-(len(chains) + 8) // 128)
    first_of_fat = len(sectors)
    chains += [_OF_FAT] * num_fat
    fat = struct.pack(f"<{len(chains)}I", *chains).ljust(num_fat * _SECTOR, b"\xff")
    places_of_fat = [first_of_fat + number for number in range(num_fat)]
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    head += struct.pack("<HHHHH6xII", 0x3E, 3, 0xFFFE, 9, 6, 0, num_fat)
    head += struct.pack("<IIIIIII", first_of_directory, 0, 4096, _END, 0, _END, 0)
    head += struct.pack("<109I", *places_of_fat, *[_FREE] * (109 - num_fat))
    return head + b"".join(sectors) + fat


def _ends(number: int, starts: list[int], entries: list[tuple[str, int, int, bytes]], end: int) -> bool:
    begins = {start for start, entry in zip(starts, entries, strict=True) if entry[1] == 2}
    return number + 1 in begins or number + 1 == end


def _directory(entries: list[tuple[str, int, int, bytes]], starts: list[int]) -> bytes:
    """The entries, the children of each chained to the right: readers walk the tree, whatever its shape."""
    children = [[n for n, entry in enumerate(entries) if entry[2] == above] for above in range(len(entries))]
    right = {first: second for each in children for first, second in pairwise(each)}
    out = b""
    for number, (name, kind, _, body) in enumerate(entries):
        raw = (name + "\0").encode("utf-16-le")
        size = max(len(body), 4096) if kind == 2 else 0
        start = starts[number] if kind == 2 else (_END if kind == 5 else 0)
        links = (_NONE, right.get(number, _NONE), children[number][0] if children[number] else _NONE)
        out += raw.ljust(64, b"\0") + struct.pack("<HBBIII", len(raw), kind, 1, *links)
        out += bytes(36) + struct.pack("<IQ", start, size)
    return out.ljust(-(-len(out) // _SECTOR) * _SECTOR, b"\0")


def make_msg(*, body: str = "", html: bytes = b"", attached: Sequence[str] = ()) -> bytes:
    """A mail from Ann to Bob, sent at the beginning of 2026."""
    texts = {
        "0037": "Grüße from the sea",
        "0C1A": "Ann",
        "5D01": "ann@example.org",
        "0E04": "Bob",
        "1000": body,
    }
    streams = {f"__substg1.0_{name}001F": text.encode("utf-16-le") for name, text in texts.items() if text}
    if html:
        streams["__substg1.0_10130102"] = html
    sent = (datetime(2026, 1, 1, tzinfo=UTC) - datetime(1601, 1, 1, tzinfo=UTC)).total_seconds()
    streams["__properties_version1.0"] = bytes(32) + struct.pack("<IIQ", 0x00390040, 6, int(sent * 10**7))
    for number, name in enumerate(attached):
        folder = f"__attach_version1.0_#{number:08X}"
        streams[f"{folder}/__substg1.0_3707001F"] = name.encode("utf-16-le")
    return make_ole(streams)


def make_xls(
    sheets: Mapping[str, Sequence[Sequence[str | float | None]]], formats: Sequence[str] = ()
) -> bytes:
    """A workbook of Excel 97: BIFF8 records in an OLE file; the numbers of column n have the format n."""
    begin = _record(0x809, struct.pack("<HHHHII", 0x600, 0x10, 0, 0, 0, 0))
    bodies = [begin + _cells(rows) + _record(0x0A, b"") for rows in sheets.values()]
    names = [struct.pack("<BB", len(name), 1) + name.encode("utf-16-le") for name in sheets]
    opening = _record(0x809, struct.pack("<HHHHII", 0x600, 5, 0, 0, 0, 0)) + _record(
        0x42, struct.pack("<H", 1200)
    )
    for number, code in enumerate(formats, 164):
        name = struct.pack("<HHB", number, len(code), 1) + code.encode("utf-16-le")
        opening += _record(0x41E, name) + _record(0xE0, struct.pack("<HHH", 0, number, 1) + bytes(14))
    at = len(opening) + sum(4 + 6 + len(name) for name in names) + 4
    bound = b""
    for name, body in zip(names, bodies, strict=True):
        bound += _record(0x85, struct.pack("<IH", at, 0) + name)
        at += len(body)
    return make_ole({"Workbook": opening + bound + _record(0x0A, b"") + b"".join(bodies)})


def _cells(rows: Sequence[Sequence[str | float | None]]) -> bytes:
    out = b""
    for number, row in enumerate(rows):
        for column, value in enumerate(row):
            if isinstance(value, str):
                raw = struct.pack("<HHHHB", number, column, 0, len(value), 1) + value.encode("utf-16-le")
                out += _record(0x204, raw)
            elif value is not None:
                out += _record(0x203, struct.pack("<HHHd", number, column, column, value))
    return out


def _record(kind: int, body: bytes) -> bytes:
    return struct.pack("<HH", kind, len(body)) + body
