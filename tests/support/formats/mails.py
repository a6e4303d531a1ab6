"""Mails made on the spot: parts of MIME, mboxes, Outlook's messages and winmail.dat."""

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from formats.old_formats import make_ole

HEAD: Final = (
    "From: Ann <ann@example.org>\nTo: Bob <bob@example.org>\nSubject: Grass\n"
    "Date: Mon, 02 Mar 2026 10:00:00 +0100\nMIME-Version: 1.0\n"
)
PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(40)


def part(content: str | bytes, kind: str = "text/plain; charset=utf-8", *headers: str) -> bytes:
    """A part with this content as it is."""
    raw = content.encode() if isinstance(content, str) else content
    lines = [f"Content-Type: {kind}", *headers]
    return "\n".join(lines).encode() + b"\n\n" + raw


def packed(content: bytes, kind: str, *headers: str) -> bytes:
    """A part in base64."""
    return part(base64.encodebytes(content), kind, "Content-Transfer-Encoding: base64", *headers)


def several(subtype: str, *parts: bytes, boundary: str | None = None, parameters: str = "") -> bytes:
    """A part of several."""
    mark = boundary or f"b{abs(hash(parts)):x}"
    body = b"".join(b"--" + mark.encode() + b"\n" + each + b"\n" for each in parts)
    return part(body + f"--{mark}--\n".encode(), f'multipart/{subtype}; boundary="{mark}"{parameters}')


def mail(content: bytes, *, head: str = HEAD) -> bytes:
    """A whole mail of one part."""
    return head.encode() + content


def make_msg_of(values: Mapping[int, bytes], files: Sequence[Mapping[int, bytes]] = ()) -> bytes:
    """A msg file with these properties."""
    streams = _streams("", values, 32)
    for number, file in enumerate(files):
        streams |= _streams(f"__attach_version1.0_#{number:08X}/", file, 8)
    return make_ole(streams)


def make_msg_with_mail(
    values: Mapping[int, bytes], inner: Mapping[int, bytes], *, num_levels: int = 1
) -> bytes:
    """A msg file to which a mail is attached, and to that another, and so on."""
    streams = _streams("", values, 32)
    folder = ""
    for _ in range(num_levels):
        folder += "__attach_version1.0_#00000000/"
        streams |= _streams(folder, {0x37050003: struct.pack("<Q", 5)}, 8)
        folder += "__substg1.0_3701000D/"
        streams |= _streams(folder, inner, 24)
    return make_ole(streams)


def make_tnef(
    values: Mapping[int, bytes], files: Sequence[tuple[str, bytes]] = (), *, code_page: int = 1252
) -> bytes:
    """A winmail.dat with these properties and files."""
    out = b"\x78\x9f\x3e\x22\x01\x00"
    out += _attribute(1, 0x00069007, struct.pack("<II", code_page, 0))
    out += _attribute(1, 0x00069003, _properties(values))
    for name, data in files:
        out += _attribute(2, 0x00069002, bytes(14))
        out += _attribute(2, 0x00018010, name.encode(f"cp{code_page}") + b"\0")
        out += _attribute(2, 0x0006800F, data)
    return out


def make_tnef_with_mail(values: Mapping[int, bytes], inner: bytes) -> bytes:
    """A winmail.dat to which another is attached."""
    interface = bytes.fromhex("0703020000000000c000000000000046")
    out = make_tnef(values) + _attribute(2, 0x00069002, bytes(14))
    return out + _attribute(2, 0x00069005, _properties({0x3701000D: interface + inner}))


def _streams(folder: str, values: Mapping[int, bytes], num_head: int) -> dict[str, bytes]:
    fixed = bytes(num_head)
    streams = {}
    for tag, value in values.items():
        if tag & 0xFFFF in {0x1E, 0x1F, 0x102}:
            streams[f"{folder}__substg1.0_{tag:08X}"] = value
        else:
            fixed += struct.pack("<II8s", tag, 6, value)
    streams[f"{folder}__properties_version1.0"] = fixed
    return streams


def _attribute(level: int, number: int, value: bytes) -> bytes:
    return struct.pack("<BII", level, number, len(value)) + value + struct.pack("<H", sum(value) & 0xFFFF)


def _properties(values: Mapping[int, bytes]) -> bytes:
    out = struct.pack("<I", len(values))
    for tag, value in values.items():
        out += struct.pack("<HH", tag & 0xFFFF, tag >> 16)
        if tag & 0xFFFF in {0x0D, 0x1E, 0x1F, 0x102}:
            out += struct.pack("<II", 1, len(value)) + value + bytes(-len(value) % 4)
        else:
            out += value
    return out
