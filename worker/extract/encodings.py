"""Bytes decoded by byte order mark, by declaration, as UTF-8, or by a guess with a warning."""

import codecs
import re
from typing import Final

from worker.extract.draft import ExtractionError, TextBuilder
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
