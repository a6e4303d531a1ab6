"""Bytes decoded by byte order mark, by declaration, as UTF-8, or by a guess with a warning."""

import codecs
import re
from typing import Final

from worker.extract.draft import ExtractionError, TextBuilder, clean
from worker.extract.language import detect

# Longer marks first: UTF-32's begins with UTF-16's.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED: Final = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE
)
_DECLARED_WITHIN: Final = 4096
# Single-byte encodings differ in a few letters: a language's usual one takes precedence over statistics.
_USUAL: Final = {
    **dict.fromkeys(("en", "de", "fr", "es", "pt", "it", "nl", "sv", "da", "no", "fi", "ca", "id"), "cp1252"),
    **dict.fromkeys(("pl", "cs", "sk", "hu", "hr", "ro"), "cp1250"),
    "tr": "cp1254",
}
_ONLY_WINDOWS: Final = re.compile(rb"[\x80-\x9f]")  # control characters in ISO encodings
_SAMPLE_BYTES: Final = 2**17  # guessing reads the sample several times
# Codecs to try in turn, where Python's of that name lacks characters that programs write under the label.
_CODECS: Final = {
    "gbk": ("gb18030",),
    "big5": ("big5hkscs", "cp950"),
    "euc-jp": ("euc_jp", "euc_jis_2004"),
    "iso-2022-jp": ("iso2022_jp_ext", "iso2022_jp_2004"),
    "iso-8859-8-i": ("iso8859_8", "cp1255"),
    "iso-8859-8": ("iso8859_8", "cp1255"),
}
# Labels of mail that the standard for the web does not have, or answers with U+FFFD for safety.
_MAIL_LABELS: Final = {
    "hz-gb-2312": "hz",
    "iso-2022-kr": "iso2022_kr",
    "iso-2022-cn": "",
    "iso-2022-cn-ext": "",
    "cp936": "gb18030",
    "cp949": "cp949",
    "cp950": "big5hkscs",
    "cp1252": "cp1252",
    "utf8mb4": "utf-8",
    "iso-8859-6-i": "iso8859_6",
}
# Python's codecs that are no encodings of documents.
_NO_TEXT: Final = frozenset(
    {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "unicode_escape"}
)
# A page of JIS X 0208 within ISO-2022-JP: rows that NEC added are in Windows' Shift JIS alone.
_JIS_ESCAPE: Final = re.compile(rb"\x1b(\$[@B]|\([BJI])")


def decode(raw: bytes, draft: TextBuilder) -> str:
    """Decode the bytes; keep every character, including byte order mark and line ends.

    Raises:
        RefusedError: the bytes are not text.
    """
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return _decode_marked(raw, encoding)
    try:
        return _without_nul(raw.decode())
    except UnicodeDecodeError:
        return _without_nul(_guess(raw, draft))


def decode_markup(raw: bytes, draft: TextBuilder) -> str:
    """Decode HTML or XML, which may declare its encoding; see `decode`."""
    declared = _DECLARED.search(raw[:_DECLARED_WITHIN])
    if declared and not any(raw.startswith(mark) for mark, _ in _MARKS):
        try:
            return raw.decode(declared[1].decode(), errors="replace")
        except (LookupError, UnicodeError):
            pass  # not a known encoding of text
    return decode(raw, draft)


def decode_labelled(raw: bytes, label: str, draft: TextBuilder) -> str:
    """Decode bytes whose encoding a header or an attribute names, by the labels of the WHATWG and of mail.

    A byte order mark takes precedence over the label and is left out. Bytes that are not valid are replaced,
    with a warning. The label is ignored if it is unknown or contradicts most of the bytes; see `decode`.

    Raises:
        RefusedError: the label does not help, and the bytes are not text.
    """
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return raw[len(mark) :].decode(encoding, "replace")
    named = _codecs_of(label)
    text = _strictly(raw, named)
    if text is None and named[:1] == ["iso2022_jp_ext"]:
        text = _strictly(_as_shift_jis(raw), ["cp932"])
    # Single-byte encodings accept all bytes, and letters in a row are hardly ever UTF-8 by chance.
    is_weak = text is None or (len(text) == len(raw) and not raw.isascii())
    if named and is_weak and (utf8 := _strictly(raw, ["utf-8"])) is not None:
        if "utf-8" not in named:
            draft.warn("encoding_guessed", f"The text is labelled {_shown(label)}; it was read as UTF-8.")
        return utf8
    if text is not None:
        return text
    if named:
        text = raw.decode(named[0], "replace")
        num_bad = text.count("\ufffd")
        if num_bad <= sum(not char.isascii() for char in text) - num_bad:
            message = f"{num_bad:,} bytes or characters are not valid {_shown(label)} and were replaced."
            draft.warn("characters_replaced", message)
            return text
    return decode(raw, draft)


def _strictly(raw: bytes, encodings: list[str]) -> str | None:
    """Decode with the first codec for which all bytes are valid; None if there is none."""
    for encoding in encodings:
        try:
            return raw.decode(encoding)
        except ValueError:
            continue
    return None


def _codecs_of(label: str) -> list[str]:
    """Return the names of Python's codecs for a label, the best first; empty if it is unknown."""
    import webencodings

    name = label.strip(" \t\r\n\f\"'").lower()
    if name in _MAIL_LABELS:
        return [_MAIL_LABELS[name]] if _MAIL_LABELS[name] else []
    try:
        found = webencodings.lookup(name)
    except UnicodeError:
        return []  # a lone surrogate: bytes that were no text
    if found and found.name not in {"replacement", "x-user-defined"}:
        return list(_CODECS.get(found.name, (found.codec_info.name,)))
    # Code pages and names that only programs use: "cp-850", "x-windows-1252", "ms949", "windows-932".
    for tried in (
        name,
        re.sub(r"^(x-)?(windows|cp|ibm|ms|dos)-?(?=\d)", "cp", name),
        name.removeprefix("x-"),
    ):
        try:
            codec = codecs.lookup(tried)
        except (LookupError, ValueError):
            continue
        if codec.name not in _NO_TEXT and getattr(codec, "_is_text_encoding", True):
            return [codec.name]
    return []


def _as_shift_jis(raw: bytes) -> bytes:
    """Convert ISO-2022-JP as Windows writes it, with the rows that NEC and IBM added."""
    pieces = _JIS_ESCAPE.split(raw)
    out = [pieces[0]]
    for escape, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if escape == b"(I":
            out.append(bytes(byte | 0x80 for byte in piece))
        elif escape in {b"$@", b"$B"}:
            even = piece[: len(piece) // 2 * 2]
            out.extend(_shift_jis(even[at], even[at + 1]) for at in range(0, len(even), 2))
        else:
            out.append(piece)
    return b"".join(out)


def _shift_jis(row: int, cell: int) -> bytes:
    """Return a character of JIS X 0208 as Shift JIS."""
    lead = (row - 0x21) // 2 + (0x81 if row < 0x5F else 0xC1)
    trail = cell + (0x1F + (cell >= 0x60) if row % 2 else 0x7E)
    return bytes((lead & 0xFF, trail & 0xFF))


def _shown(label: str) -> str:
    return clean(label).strip()[:40]


def _decode_marked(raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        name = encoding[:6].upper()
        message = f"The text begins with the byte order mark of {name}, but is not valid {name}."
        raise ExtractionError("document_corrupt", message) from None


def _guess(raw: bytes, draft: TextBuilder) -> str:
    from charset_normalizer import from_bytes

    sample = raw[:_SAMPLE_BYTES]
    # The letters that they all share usually reveal the language already.
    encoding = _USUAL.get(detect(sample.decode("cp1252", errors="replace")) or "")
    if encoding is None:
        best = from_bytes(sample).best()
        if best is None:
            raise ExtractionError("unsupported_document", "The bytes are not text in any known encoding.")
        encoding = best.encoding
    elif encoding == "cp1250" and not _ONLY_WINDOWS.search(sample):
        encoding = "iso8859_2"
    draft.warn("encoding_guessed", f"The text is not UTF-8; it was read as {encoding}.")
    return raw.decode(encoding, errors="replace")


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ExtractionError("unsupported_document", "The bytes are not text: they contain NUL.")
    return text
