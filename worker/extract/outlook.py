"""The text of msg files, as Outlook saves mail: the main headers, the body, and the names of attachments."""

import io
import struct
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from worker.extract.draft import TextBuilder, refuse_corrupt
from worker.extract.markup import write_html

_PROPERTIES: Final = "__properties_version1.0"
_HEADER_BYTES: Final = 32  # before the properties of a message
_SENT: Final = 0x00390040  # the property of the time of sending
_EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)
_FROM, _ADDRESS, _TO, _CC, _SUBJECT, _BODY, _HTML = "0C1A", "5D01", "0E04", "0E03", "0037", "1000", "1013"
_NAMES: Final = ("3707", "3704")  # of an attachment: long, short
_MOST_ATTACHMENTS: Final = 1000


def read_msg(data: bytes, draft: TextBuilder) -> None:
    """Read a msg, its plain text if it has one. Mails attached to it are named, not opened."""
    import olefile

    if not olefile.isOleFile(data=data):
        refuse_corrupt("The message is truncated or damaged.")
    with olefile.OleFileIO(io.BytesIO(data)) as file:
        if not file.exists(_PROPERTIES):
            refuse_corrupt("The file is not an Outlook message.")
        subject = _text(file, _SUBJECT)
        draft.set_title(subject)
        sender, address = _text(file, _FROM), _text(file, _ADDRESS)
        headers = {
            "From": f"{sender} <{address}>" if address and address != sender else sender,
            "To": _text(file, _TO),
            "Cc": _text(file, _CC),
            "Date": _sent_at(file),
            "Subject": subject,
        }
        draft.write("".join(f"{name}: {value}\n" for name, value in headers.items() if value) + "\n")
        if (body := _text(file, _BODY)).strip():
            draft.write(body)
        elif html := _html(file):
            write_html(html, draft)
        if names := _attachments(file):
            draft.write("\n\nAttachments: " + ", ".join(names) + "\n")


def _text(file: Any, name: str, folder: str = "") -> str:  # noqa: ANN401  # the library is untyped
    """Return a property that is text; empty if it is missing."""
    for suffix, encoding in (("001F", "utf-16-le"), ("001E", "cp1252")):
        path = f"{folder}__substg1.0_{name}{suffix}"
        if file.exists(path):
            raw: bytes = file.openstream(path).read()
            return raw.decode(encoding, "replace").rstrip("\0")
    return ""


def _html(file: Any) -> str:  # noqa: ANN401
    path = f"__substg1.0_{_HTML}0102"
    if not file.exists(path):
        return _text(file, _HTML)
    raw: bytes = file.openstream(path).read()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def _sent_at(file: Any) -> str:  # noqa: ANN401
    """Return when the mail was sent, by RFC 3339; empty if it does not say."""
    raw: bytes = file.openstream(_PROPERTIES).read()
    for at in range(_HEADER_BYTES, len(raw) - 15, 16):
        tag, _, ticks = struct.unpack_from("<IIQ", raw, at)
        if tag == _SENT:
            try:
                return (_EPOCH + timedelta(microseconds=ticks // 10)).isoformat(timespec="seconds")
            except OverflowError:
                return ""
    return ""


def _attachments(file: Any) -> list[str]:  # noqa: ANN401
    folders = sorted({path[0] for path in file.listdir() if path[0].startswith("__attach_version1.0_")})
    names = [
        next((name for each in _NAMES if (name := _text(file, each, folder + "/"))), "")
        for folder in folders[:_MOST_ATTACHMENTS]
    ]
    return [name for name in names if name]
