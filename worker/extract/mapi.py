"""Messages of Outlook, which msg files and winmail.dat store as the same numbered properties."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from worker.extract.alternatives import choose
from worker.extract.draft import ExtractionError, TextBuilder, clean
from worker.extract.letter import Letter, decode_body, decode_declared, decode_html, html_text
from worker.extract.rich_text import read_rtf
from worker.extract.rtf_html import html_of_rtf

# Types of properties, in the lower half of a tag.
STRING8: Final = 0x001E
UNICODE: Final = 0x001F
BINARY: Final = 0x0102
_LONG: Final = 0x0003
_TIME: Final = 0x0040
# Properties, by the upper half of a tag.
SUBJECT, BODY, HTML, RTF = 0x0037, 0x1000, 0x1013, 0x1009
CLASS, TO, CC, BCC = 0x001A, 0x0E04, 0x0E03, 0x0E02
_SENDER_NAMES: Final = (0x0C1A, 0x0042)
_SENDER_ADDRESSES: Final = (0x5D01, 0x5D02, 0x0C1F, 0x0065)
_TIMES: Final = (0x0039, 0x0E06)  # sent, delivered
_START, _END = 0x0060, 0x0061  # of a meeting
_MESSAGE_CODE_PAGE, _INTERNET_CODE_PAGE = 0x3FFD, 0x3FDE
_TEXTS: Final = (SUBJECT, BODY, CLASS, TO, CC, BCC, *_SENDER_NAMES, *_SENDER_ADDRESSES)
# Every tag that is read: others need no memory.
TAGS: Final = frozenset(
    {name << 16 | kind for name in (*_TEXTS, HTML) for kind in (STRING8, UNICODE)}
    | {name << 16 | BINARY for name in (HTML, RTF, BODY)}
    | {name << 16 | _TIME for name in (*_TIMES, _START, _END)}
    | {name << 16 | _LONG for name in (_MESSAGE_CODE_PAGE, _INTERNET_CODE_PAGE)}
)
_ASCII_PAGE: Final = 20127
_EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)
_MAX_RTF_BYTES: Final = 2**25  # compressed; a second each 3 MB
# Code pages of Windows whose number is no name of an encoding.
_CODE_PAGES: Final = {
    932: "shift_jis",
    936: "gbk",
    949: "euc-kr",
    950: "big5",
    1200: "utf-16le",
    10000: "macintosh",
    20127: "us-ascii",
    20866: "koi8-r",
    20932: "euc-jp",
    20936: "gbk",
    21866: "koi8-u",
    38598: "iso-8859-8-i",
    50220: "iso-2022-jp",
    50221: "iso-2022-jp",
    50222: "iso-2022-jp",
    50225: "iso-2022-kr",
    51932: "euc-jp",
    51936: "gbk",
    51949: "euc-kr",
    52936: "hz-gb-2312",
    54936: "gb18030",
    65000: "utf-7",
    65001: "utf-8",
    **{28590 + part: f"iso-8859-{part}" for part in range(1, 17)},
}


@dataclass(slots=True)
class MapiMessage:
    """A message's properties.

    Attributes:
        values: the bytes of each property, by its tag: number and type.
        code_page: of its texts that are not Unicode, where no property has one; None if unknown.
    """

    values: dict[int, bytes] = field(default_factory=dict)
    code_page: int | None = None


def mapi_headers(message: MapiMessage, draft: TextBuilder) -> dict[str, str]:
    """Return the main headers; those that are missing are empty."""
    name = _first_text(message, _SENDER_NAMES, draft)
    addresses = (mapi_text(message, each, draft) for each in _SENDER_ADDRESSES)
    address = next((each for each in addresses if "@" in each), "")
    return {
        "From": f"{name} <{address}>" if name and address and address != name else name or address,
        "To": mapi_text(message, TO, draft),
        "Cc": mapi_text(message, CC, draft),
        "Bcc": mapi_text(message, BCC, draft),
        "Date": next((sent for each in _TIMES if (sent := _time(message, each))), ""),
        "Subject": " ".join(clean(mapi_text(message, SUBJECT, draft)).split()),
    }


def mapi_body(message: MapiMessage, letter: Letter, draft: TextBuilder) -> str:
    """Return the text of the body: of its plain form, HTML or RTF, whichever tells most."""
    plain = mapi_text(message, BODY, draft) or _plain_bytes(message, draft)
    source = _html(message, draft)
    if not source and not plain.strip() and (compressed := message.values.get(RTF << 16 | BINARY)):
        rtf = _decompressed(compressed, draft)
        source = html_of_rtf(rtf) or ""
        plain = plain if source else rtf_text(rtf, draft)
    if source:
        letter.html.append(source)
    body = choose([plain.replace("\r\n", "\n"), html_text(source, draft) if source else ""])
    meeting = [
        f"{label}: {moment}"
        for label, each in (("Start", _START), ("End", _END))
        if (moment := _time(message, each))
    ]
    return "\n".join(meeting) + "\n\n" + body if meeting else body


def mapi_text(message: MapiMessage, name: int, draft: TextBuilder) -> str:
    """Return a property that is text; empty if it is missing."""
    if (raw := message.values.get(name << 16 | UNICODE)) is not None:
        return raw.decode("utf-16-le", "replace").rstrip("\0")
    raw = message.values.get(name << 16 | STRING8, b"").rstrip(b"\0")
    return decoded_by_page(raw, code_page_of(message), draft)


def code_page_of(message: MapiMessage) -> int | None:
    """Return the code page of texts that are not Unicode; None if unknown."""
    pages = (_number(message, each) for each in (_MESSAGE_CODE_PAGE, _INTERNET_CODE_PAGE))
    return next((page for page in pages if page), message.code_page)


def decoded_by_page(raw: bytes, code_page: int | None, draft: TextBuilder) -> str:
    """Decode text in a code page of Windows."""
    if not raw:
        return ""
    if code_page is None:
        return decode_body(raw, draft)
    return decode_declared(raw, _CODE_PAGES.get(code_page, f"cp{code_page}"), draft)


def rtf_text(data: bytes, draft: TextBuilder) -> str:
    """Return the text of an RTF body; empty, with a warning, if it is damaged."""
    scratch = TextBuilder(draft.limits)
    try:
        read_rtf(data, scratch)
    except (ExtractionError, ValueError, LookupError, TypeError, AttributeError):
        draft.warn("parts_damaged", "The RTF body of the mail is damaged and was not read.")
    for warning in scratch.warnings:
        if warning not in draft.warnings:
            draft.warnings.append(warning)
    return scratch.text()


def filetime(ticks: int) -> str:
    """Return a time of Windows by RFC 3339; empty if it is out of range."""
    try:
        return (_EPOCH + timedelta(microseconds=ticks // 10)).isoformat(timespec="seconds")
    except OverflowError:
        return ""


def _first_text(message: MapiMessage, names: Sequence[int], draft: TextBuilder) -> str:
    return next((text for each in names if (text := mapi_text(message, each, draft))), "")


def _plain_bytes(message: MapiMessage, draft: TextBuilder) -> str:
    raw = message.values.get(BODY << 16 | BINARY, b"").rstrip(b"\0")
    return decoded_by_page(raw, code_page_of(message), draft)


def _html(message: MapiMessage, draft: TextBuilder) -> str:
    """Return the source of the HTML body; empty if it has none."""
    raw = message.values.get(HTML << 16 | BINARY, b"").rstrip(b"\0")
    if not raw:
        return mapi_text(message, HTML, draft)
    page = _number(message, _INTERNET_CODE_PAGE)
    if not page or page == _ASCII_PAGE:
        return decode_html(raw, draft)
    return decoded_by_page(raw, page, draft)


def _decompressed(data: bytes, draft: TextBuilder) -> bytes:
    from compressed_rtf import decompress

    if len(data) > _MAX_RTF_BYTES:
        draft.warn("parts_not_read", f"The RTF body of the mail is longer than {_MAX_RTF_BYTES >> 20} MiB.")
        return b""
    try:
        rtf: bytes = decompress(data)
    except Exception:  # noqa: BLE001  # the library raises the class itself
        draft.warn("parts_damaged", "The RTF body of the mail is damaged and was not read.")
        return b""
    return rtf


def _time(message: MapiMessage, name: int) -> str:
    raw = message.values.get(name << 16 | _TIME, b"")
    return filetime(int.from_bytes(raw[:8], "little")) if any(raw) else ""


def _number(message: MapiMessage, name: int) -> int:
    return int.from_bytes(message.values.get(name << 16 | _LONG, b"")[:4], "little")
