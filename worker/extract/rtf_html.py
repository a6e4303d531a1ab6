"""The HTML that Outlook packed into RTF, in groups `htmltag`, between what old readers of RTF need."""

# ruff: noqa: RUF001  # typographic quotes and dashes

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(
    rb"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?|\\'(?P<hex>[0-9a-fA-F]{2})|\\(?P<sign>[^a-zA-Z])"
    rb"|(?P<brace>[{}])|(?P<text>[^\\{}\r\n]+)|[\r\n\\]",
    re.DOTALL,
)
_SKIPPED: Final = frozenset(
    {b"fonttbl", b"colortbl", b"stylesheet", b"info", b"pntext", b"listtable", b"listoverridetable", b"pict"}
)
_WORDS: Final = {
    b"par": "\r\n",
    b"line": "\r\n",
    b"tab": "\t",
    b"lquote": "‘",
    b"rquote": "’",
    b"ldblquote": "“",
    b"rdblquote": "”",
    b"bullet": "•",
    b"endash": "–",
    b"emdash": "—",
}
_CHARSETS: Final = {
    77: "mac_roman",
    128: "cp932",
    129: "cp949",
    134: "gbk",
    136: "cp950",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
}
_BEGINS_WITHIN: Final = 1024


@dataclass(slots=True)
class _Group:
    """The state within a pair of braces."""

    is_skipped: bool = False
    is_fonts: bool = False
    is_starred: bool = False  # its first word may name a destination to skip
    is_rtf_only: bool = False
    font: int = -1
    num_after_unicode: int = 1


@dataclass(slots=True)
class _Out:
    """The HTML so far; bytes are decoded together: two may be one character."""

    encoding: str = "cp1252"
    pieces: list[str] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)
    pending_encoding: str = "cp1252"

    def add_bytes(self, raw: bytes, encoding: str) -> None:
        """Append bytes in an encoding."""
        if encoding != self.pending_encoding:
            self.flush()
            self.pending_encoding = encoding
        self.pending += raw

    def add(self, text: str) -> None:
        """Append characters."""
        self.flush()
        self.pieces.append(text)

    def flush(self) -> None:
        """Decode the bytes so far."""
        if self.pending:
            self.pieces.append(bytes(self.pending).decode(self.pending_encoding, "replace"))
            self.pending.clear()


def html_of_rtf(rtf: bytes) -> str | None:
    """Return the HTML within an RTF; None if it was no HTML before."""
    if b"\\fromhtml" not in rtf[:_BEGINS_WITHIN]:
        return None
    out = _Out()
    fonts: dict[int, str] = {}
    group, above = _Group(), list[_Group]()
    num_to_skip = 0  # characters that stand for `\u` in old readers
    for token in _tokens(rtf):
        if brace := token["brace"]:
            num_to_skip = 0
            if brace == b"{":
                above.append(group)
                group = _Group(
                    group.is_skipped,
                    group.is_fonts,
                    False,
                    group.is_rtf_only,
                    group.font,
                    group.num_after_unicode,
                )
            elif above:
                group = above.pop()
            continue
        word, number = token["word"], int(token["number"] or 1)
        if word:
            num_to_skip = _do_word(word, number, group, out, fonts)
            continue
        if token["sign"] == b"*":
            group.is_starred = True
            continue
        if group.is_skipped or group.is_rtf_only:
            continue
        raw = token["text"] or (
            bytes.fromhex(token["hex"].decode()) if token["hex"] else _sign(token["sign"])
        )
        if num_to_skip:
            raw, num_to_skip = raw[num_to_skip:], max(0, num_to_skip - len(raw))
        out.add_bytes(raw, fonts.get(group.font, out.encoding))
    out.flush()
    return _joined("".join(out.pieces))


def _do_word(word: bytes, number: int, group: _Group, out: _Out, fonts: dict[int, str]) -> int:
    """Follow a control word; return how many characters after it to skip."""
    _begin_destination(word, group)
    if word == b"htmlrtf":
        group.is_rtf_only = number != 0
    elif word == b"f":
        group.font = number
    elif word == b"fcharset" and group.is_fonts and number in _CHARSETS:
        fonts[group.font] = _CHARSETS[number]
    elif word == b"ansicpg":
        out.encoding = _code_page(number)
    elif word == b"uc":
        group.num_after_unicode = number
    elif group.is_skipped or group.is_rtf_only:
        return 0
    elif word == b"u":
        out.add(chr(number & 0xFFFF))
        return group.num_after_unicode
    else:
        out.add(_WORDS.get(word, ""))
    return 0


def _begin_destination(word: bytes, group: _Group) -> None:
    """Set what a group is for: HTML, fonts, or nothing that is read."""
    if word == b"htmltag":
        group.is_rtf_only = False
    elif group.is_starred or word in _SKIPPED:
        group.is_skipped, group.is_fonts = True, word == b"fonttbl"
    group.is_starred = False


def _tokens(rtf: bytes) -> "Iterator[re.Match[bytes]]":
    """Yield tokens; skip binary data, which may have any byte."""
    at = 0
    while found := _TOKEN.match(rtf, at):
        at = found.end()
        if found["word"] == b"bin":
            at += max(0, int(found["number"] or 0))
        yield found


def _sign(sign: bytes | None) -> bytes:
    return {b"~": b"\xa0", b"_": b"-", b"\n": b"\n", b"\r": b"\n"}.get(
        sign or b"", b"" if sign in {b"-", None} else sign or b""
    )


def _joined(text: str) -> str:
    """Join pairs of surrogates to characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _code_page(number: int) -> str:
    try:
        codecs.lookup(f"cp{number}")
    except LookupError:
        return {936: "gbk", 65001: "utf-8", 10000: "mac_roman"}.get(number, "cp1252")
    return f"cp{number}"
