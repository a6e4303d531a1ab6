"""The text of msg files, as Outlook saves mail: headers, body, mails within, and the names of attachments."""

import io
import struct
from collections import defaultdict
from typing import Any, Final

from worker.extract.draft import TextBuilder, refuse_corrupt
from worker.extract.letter import MAX_DEPTH, Letter, letter_text, nested_text
from worker.extract.mapi import (
    BINARY,
    STRING8,
    TAGS,
    UNICODE,
    MapiMessage,
    mapi_body,
    mapi_headers,
    mapi_text,
)

_PROPERTIES: Final = "__properties_version1.0"
_ATTACHMENT: Final = "__attach_version1.0_"
# Bytes before the properties of a message, of one within another, and of an attachment.
_OUTER_HEAD, _INNER_HEAD, _ATTACHMENT_HEAD = 32, 24, 8
_PROPERTY: Final = struct.Struct("<II8s")  # tag, flags, value or size
_LONG_NAME, _SHORT_NAME, _DISPLAY_NAME, _CONTENT_ID = 0x3707, 0x3704, 0x3001, 0x3712
_NAMES: Final = (_LONG_NAME, _SHORT_NAME, _DISPLAY_NAME)
_DATA, _METHOD, _MIME = 0x37010102, 0x37050003, 0x370E
_OBJECT: Final = "__substg1.0_3701000D"
_BY_REFERENCE: Final = frozenset({2, 3, 4, 7})
_FILE_TAGS: Final = frozenset(
    {name << 16 | kind for name in (*_NAMES, _CONTENT_ID, _MIME) for kind in (STRING8, UNICODE)}
    | {_DATA, _METHOD}
)
_MAX_ATTACHMENTS: Final = 1000  # of a whole file


def read_msg(data: bytes, draft: TextBuilder) -> None:
    """Read a msg, its plain text if that is complete, and the mails attached to it."""
    import olefile

    if not olefile.isOleFile(data=data):
        refuse_corrupt("The message is truncated or damaged.")
    with olefile.OleFileIO(io.BytesIO(data)) as file:
        if not file.exists(_PROPERTIES):
            if file.exists("WordDocument") or file.exists("PowerPoint Document"):
                refuse_corrupt("The file is no Outlook message, but a Word or PowerPoint 97-2003 file.")
            refuse_corrupt("The file is not an Outlook message.")
        reader = _Reader(file, draft)
        draft.write(reader.message_text("", _OUTER_HEAD, depth=0))


class _Reader:
    """Reads the messages of one msg file.

    Attributes:
        draft: takes title, warnings and files.
    """

    def __init__(self, file: Any, draft: TextBuilder) -> None:  # noqa: ANN401  # the library is untyped
        self.draft = draft
        self._file = file
        self._num_attachments = 0
        self._streams: dict[str, list[str]] = defaultdict(list)  # names of each folder
        self._folders: dict[str, dict[str, None]] = defaultdict(dict)  # in the order of their numbers
        for *folders, name in sorted(file.listdir()):
            above = "".join(f"{each}/" for each in folders)
            self._streams[above].append(name)
            for depth, each in enumerate(folders):
                self._folders["".join(f"{folder}/" for folder in folders[:depth])][each] = None

    def message_text(self, folder: str, num_head: int, *, depth: int) -> str:
        """Return the text of the message in a folder, with its headers."""
        message = MapiMessage(self._values(folder, num_head, TAGS))
        letter = Letter()
        headers = mapi_headers(message, self.draft)
        if not depth:
            self.draft.set_title(headers["Subject"])
        nested = [
            self._attachment_text(f"{folder}{each}/", letter, depth)
            for each in self._folders[folder]
            if each.startswith(_ATTACHMENT)
        ]
        texts = (mapi_body(message, letter, self.draft).strip("\n"), *nested)
        body = "\n\n".join(text for text in texts if text.strip())
        return letter_text(headers, body, letter, self.draft)

    def _attachment_text(self, folder: str, letter: Letter, depth: int) -> str:
        """Add an attachment to the letter; return the text of a mail."""
        self._num_attachments += 1
        if self._num_attachments > _MAX_ATTACHMENTS:
            message = f"The mail has more than {_MAX_ATTACHMENTS:,} attachments; the others were not read."
            self.draft.warn("parts_not_read", message)
            return ""
        file = MapiMessage(self._values(folder, _ATTACHMENT_HEAD, _FILE_TAGS))
        name = next((text for each in _NAMES if (text := mapi_text(file, each, self.draft).strip())), "")
        inner = f"{folder}{_OBJECT}/"
        if _PROPERTIES in self._streams.get(inner, ()):
            return self._nested_text(inner, depth)
        name = name or f"attachment-{self._num_attachments}.bin"
        data = file.values.get(_DATA)
        if data is not None:
            letter.add_file(name, data, content_id=mapi_text(file, _CONTENT_ID, self.draft))
            return ""
        letter.add_file(name, b"", is_read=True)
        where = "is stored elsewhere" if self._method(file) in _BY_REFERENCE else "has no content of its own"
        self.draft.warn("attachments_not_read", f"The attachment {name} {where} and was not read.")
        return ""

    def _nested_text(self, folder: str, depth: int) -> str:
        if depth >= MAX_DEPTH:
            message = f"The mail has more than {MAX_DEPTH} levels; the others were not read."
            self.draft.warn("parts_not_read", message)
            return ""
        return nested_text(self.message_text(folder, _INNER_HEAD, depth=depth + 1))

    def _values(self, folder: str, num_head: int, tags: frozenset[int]) -> dict[int, bytes]:
        """Return the wanted properties of a folder."""
        values: dict[int, bytes] = {}
        for name in self._streams.get(folder, ()):
            if name == _PROPERTIES:
                raw = self._read(folder + name)
                for at in range(num_head, len(raw) - _PROPERTY.size + 1, _PROPERTY.size):
                    tag, _, value = _PROPERTY.unpack_from(raw, at)
                    if tag in tags and tag & 0xFFFF not in {STRING8, UNICODE, BINARY}:
                        values[tag] = value
                continue
            try:
                tag = int(name.removeprefix("__substg1.0_"), 16)
            except ValueError:
                continue
            if tag in tags:
                values[tag] = self._read(folder + name)
        return values

    def _read(self, path: str) -> bytes:
        """Return a stream; empty, with a warning, if it is damaged."""
        try:
            data: bytes = self._file.openstream(path).read()
        except (OSError, ValueError):
            self.draft.warn("parts_damaged", "A part of the mail is damaged and was not read.")
            return b""
        return data

    def _method(self, file: MapiMessage) -> int:
        return int.from_bytes(file.values.get(_METHOD, b"")[:4], "little")
