"""Headers and parameters of mail as text: encoded words, eight-bit letters, names of files."""

import binascii
import re
from collections.abc import Callable
from email.message import Message
from typing import Final, TypeAlias

from worker.extract.draft import TextBuilder
from worker.extract.letter import decode_declared

# Also with a language (`utf-8*en`), and with white space in the word, as some programs write it.
_ENCODED_WORD: Final = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?]*)\?=")
_NO_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/]")
_MAX_NAME_CHARS: Final = 200

Mail: TypeAlias = "Message[str, str]"
Decoder: TypeAlias = Callable[[bytes], str]


def header_text(value: str, draft: TextBuilder, decode_raw: Decoder) -> str:
    """Return a header on one line, its encoded words decoded.

    Args:
        value: as the parser returns it: bytes that are not ASCII are lone surrogates.
        draft: takes warnings.
        decode_raw: decodes a header with bytes that are not ASCII.
    """
    raw = value.encode("utf-8", "surrogateescape")
    text = value if raw.isascii() else decode_raw(raw)
    return " ".join(_decode_words(text, draft).split())


def parameter(part: Mail, name: str, header: str = "content-type") -> str:
    """Return a parameter of a header as it is written; empty if it is missing."""
    try:
        value = part.get_param(name, "", header=header)
    except (LookupError, TypeError, ValueError):
        return ""  # a damaged continuation
    if isinstance(value, tuple):
        value = value[2]
    return str(value or "").strip()


def file_name(part: Mail, draft: TextBuilder, decode_raw: Decoder) -> str:
    """Return the name of the part's file, without folders; empty if it has none."""
    for name, header in (("filename", "content-disposition"), ("name", "content-type")):
        try:
            value = part.get_param(name, "", header=header)
        except (LookupError, TypeError, ValueError):
            continue
        if isinstance(value, tuple):  # by RFC 2231, decoded as latin-1
            label, raw = value[0] or "utf-8", value[2].encode("latin-1", "replace")
            shown = decode_declared(raw, label, draft)
        else:
            shown = header_text(str(value or ""), draft, decode_raw)
        if shown := re.split(r"[\\/]", " ".join(shown.split()))[-1]:
            return shown[-_MAX_NAME_CHARS:]
    return ""


def _decode_words(text: str, draft: TextBuilder) -> str:
    """Decode encoded words; bytes of adjacent ones are joined first: they may split a character."""
    out: list[str] = []
    run: list[tuple[str, bytearray]] = []
    end = 0

    def flush() -> None:
        out.extend(decode_declared(bytes(raw), label, draft) for label, raw in run)
        run.clear()

    for word in _ENCODED_WORD.finditer(text):
        gap = text[end : word.start()]
        end = word.end()
        if gap.strip() or not run:
            flush()
            out.append(gap)
        label = word[1].partition("*")[0].lower()
        raw = _word_bytes(word[2], word[3])
        if run and run[-1][0] == label:
            run[-1][1].extend(raw)
        else:
            run.append((label, bytearray(raw)))
    flush()
    return "".join([*out, text[end:]])


def _word_bytes(form: str, payload: str) -> bytes:
    raw = payload.encode("utf-8", "surrogateescape")
    if form in "qQ":
        return binascii.a2b_qp(raw, header=True)
    digits = _NO_BASE64.sub(b"", raw)
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))
