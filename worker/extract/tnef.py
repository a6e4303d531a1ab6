"""The text of winmail.dat, in which Outlook packs a mail for Exchange (TNEF).

Own code, because the only library keeps nothing of a file with one bad value, and strips zeros from files.
"""

import struct
from collections.abc import Iterator
from typing import Final

from worker.extract.draft import TextBuilder
from worker.extract.letter import MAX_DEPTH, Letter, letter_text, nested_text
from worker.extract.mapi import (
    BINARY,
    BODY,
    STRING8,
    SUBJECT,
    TAGS,
    UNICODE,
    MapiMessage,
    decoded_by_page,
    mapi_body,
    mapi_headers,
)

_SIGNATURE: Final = b"\x78\x9f\x3e\x22"
_ATTACHMENT_LEVEL: Final = 2
# Attributes, by the lower half of their number.
_SUBJECT, _BODY, _PROPERTIES, _CODE_PAGE = 0x8004, 0x800C, 0x9003, 0x9007
_BEGIN_FILE, _FILE_TITLE, _FILE_DATA, _FILE_PROPERTIES = 0x9002, 0x8010, 0x800F, 0x9005
# Properties of a file.
_LONG_NAME, _SHORT_NAME, _DISPLAY_NAME, _DATA, _CONTENT_ID = 0x3707, 0x3704, 0x3001, 0x3701, 0x3712
_FILE_TAGS: Final = frozenset(
    {
        name << 16 | kind
        for name in (_LONG_NAME, _SHORT_NAME, _DISPLAY_NAME, _CONTENT_ID)
        for kind in (STRING8, UNICODE)
    }
    | {_DATA << 16 | BINARY, _DATA << 16 | 0x000D}
)
_EMBEDDED: Final = bytes.fromhex("0703020000000000c000000000000046")  # the interface of a message
_FIXED: Final = {
    2: 4,
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 8,
    0xA: 4,
    0xB: 4,
    0x14: 8,
    0x40: 8,
    0x48: 16,
}  # bytes, padded
_VARIABLE: Final = frozenset({0xD, STRING8, UNICODE, BINARY})
_MULTIPLE: Final = 0x1000
_NAMED: Final = 0x8000
_MAX_FILES: Final = 1000


class _DamagedError(Exception):
    """The bytes do not have the form of the format."""


def read_tnef(data: bytes, letter: Letter, draft: TextBuilder, depth: int) -> tuple[dict[str, str], str]:
    """Return headers and body of a packed mail, and add its files to the letter; damage is a warning."""
    message = MapiMessage()
    files: list[MapiMessage] = []
    try:
        for level, name, value in _attributes(memoryview(data)):
            if name == _BEGIN_FILE and len(files) <= _MAX_FILES:
                files.append(MapiMessage(code_page=message.code_page))
            if level == _ATTACHMENT_LEVEL:
                _read_file_attribute(name, value, files)
            else:
                _read_attribute(name, value, message)
    except (_DamagedError, struct.error):
        draft.warn(
            "parts_damaged", "The mail's content is packed in winmail.dat, a part of which is damaged."
        )
    if len(files) > _MAX_FILES:
        draft.warn(
            "parts_not_read", f"winmail.dat has more than {_MAX_FILES:,} files; the others were not read."
        )
    files = files[:_MAX_FILES]
    nested = [_read_file(file, number, letter, draft, depth) for number, file in enumerate(files, 1)]
    texts = (mapi_body(message, letter, draft).strip("\n"), *nested)
    body = "\n\n".join(text for text in texts if text.strip())
    if not body and not files:
        draft.warn("parts_not_read", "The mail has a winmail.dat without text or files that can be read.")
    return mapi_headers(message, draft), body


def _attributes(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield level, number and value of each attribute."""
    if bytes(data[:4]) != _SIGNATURE:
        raise _DamagedError
    at = 6
    while at + 9 <= len(data):
        level, number, length = struct.unpack_from("<BII", data, at)
        if level not in {1, 2}:
            if any(data[at : at + 256]):
                raise _DamagedError
            return
        value = data[at + 9 : at + 9 + length]
        yield level, number & 0xFFFF, value
        if len(value) < length:
            raise _DamagedError
        at += 9 + length + 2  # a checksum
    if at > len(data) or any(data[at:]):
        raise _DamagedError


def _read_attribute(name: int, value: memoryview, message: MapiMessage) -> None:
    if name == _CODE_PAGE and len(value) >= 4:
        message.code_page = struct.unpack_from("<I", value)[0]
    elif name == _SUBJECT:
        message.values.setdefault(SUBJECT << 16 | STRING8, bytes(value))
    elif name == _BODY:
        message.values.setdefault(BODY << 16 | STRING8, bytes(value))
    elif name == _PROPERTIES:
        message.values.update(_properties(value, TAGS))


def _read_file_attribute(name: int, value: memoryview, files: list[MapiMessage]) -> None:
    if not files:
        return
    if name == _FILE_TITLE:
        files[-1].values.setdefault(_SHORT_NAME << 16 | STRING8, bytes(value))
    elif name == _FILE_DATA:
        files[-1].values[_DATA << 16 | BINARY] = bytes(value)
    elif name == _FILE_PROPERTIES:
        files[-1].values.update(_properties(value, _FILE_TAGS))


def _properties(data: memoryview, tags: frozenset[int]) -> dict[int, bytes]:
    """Return the wanted properties; what comes after damage is left out."""
    found: dict[int, bytes] = {}
    (num,) = struct.unpack_from("<I", data)
    at = 4
    try:
        for _ in range(num):
            kind, name = struct.unpack_from("<HH", data, at)
            at += 4
            if name >= _NAMED:
                at = _after_name(data, at)
            value, at = _value(data, at, kind)
            if name << 16 | kind in tags:
                found[name << 16 | kind] = bytes(value)
    except struct.error:
        pass
    return found


def _value(data: memoryview, at: int, kind: int) -> tuple[memoryview, int]:
    """Return the last value of a property, and where the next property starts."""
    num = 1
    if kind & _MULTIPLE or kind in _VARIABLE:
        (num,) = struct.unpack_from("<I", data, at)
        at += 4
    kind &= ~_MULTIPLE
    value = data[:0]
    for _ in range(num):
        if kind in _VARIABLE:
            (length,) = struct.unpack_from("<I", data, at)
            value = data[at + 4 : at + 4 + length]
            at += 4 + length + -length % 4
        elif kind in _FIXED:
            value = data[at : at + _FIXED[kind]]
            at += _FIXED[kind]
        else:
            raise struct.error
        if at > len(data) + 3:
            raise struct.error
    return value, at


def _after_name(data: memoryview, at: int) -> int:
    """Return where the value of a named property starts."""
    (kind, length) = struct.unpack_from("<II", data, at + 16)
    return at + 24 if kind == 0 else at + 24 + length + -length % 4


def _read_file(file: MapiMessage, number: int, letter: Letter, draft: TextBuilder, depth: int) -> str:
    """Add a file to the letter; return the text of a mail in its place."""
    embedded = file.values.get(_DATA << 16 | 0x000D, b"")
    if embedded.startswith(_EMBEDDED):
        return _nested(embedded[len(_EMBEDDED) :], draft, depth)
    data = file.values.get(_DATA << 16 | BINARY, embedded)
    names = (_text(file, each, draft) for each in (_LONG_NAME, _SHORT_NAME, _DISPLAY_NAME))
    name = next((each for each in names if each), f"attachment-{number}.bin")
    if data:
        letter.add_file(name, data, content_id=_text(file, _CONTENT_ID, draft))
    else:
        draft.warn(
            "attachments_not_read", f"The attachment {name} of winmail.dat has no content that can be read."
        )
    return ""


def _nested(data: bytes, draft: TextBuilder, depth: int) -> str:
    if depth >= MAX_DEPTH:
        draft.warn("parts_not_read", f"The mail has more than {MAX_DEPTH} levels; the others were not read.")
        return ""
    inner = Letter()
    headers, body = read_tnef(data, inner, draft, depth + 1)
    return nested_text(letter_text(headers, body, inner, draft))


def _text(file: MapiMessage, name: int, draft: TextBuilder) -> str:
    raw = file.values.get(name << 16 | UNICODE)
    if raw is not None:
        return raw.decode("utf-16-le", "replace").rstrip("\0")
    return decoded_by_page(file.values.get(name << 16 | STRING8, b"").rstrip(b"\0"), file.code_page, draft)
