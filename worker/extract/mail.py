"""The text of eml and mbox files: headers, all text parts in order, mails within, and the names of files."""

import binascii
import codecs
import mimetypes
import re
from collections.abc import Generator, Iterator, Sequence
from email.errors import CloseBoundaryNotFoundDefect
from email.feedparser import BytesFeedParser
from email.policy import Compat32
from functools import partial
from typing import Any, Final

from worker.extract.alternatives import choose, covers
from worker.extract.calendars import calendar_text
from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.letter import (
    HEADERS,
    MAX_DEPTH,
    MAX_INLINED_BYTES,
    Letter,
    decode_body,
    decode_declared,
    decode_html,
    file_text,
    html_text,
    is_binary,
    letter_text,
    nested_text,
)
from worker.extract.mail_headers import Mail, file_name, header_text, parameter

_OTHER_HEADERS: Final = ("Content-Type", "Message-ID", "MIME-Version", "Received", "Return-Path", "Sender")
_MAX_PARTS: Final = 2000  # of a mail
_SAMPLE_BYTES: Final = 2**16
_MAX_FIELD_CHARS: Final = 10_000  # of a type with its parameters
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
# The line before each mail of an mbox, after an empty line: sender, date with a clock, headers below.
_POSTMARK: Final = re.compile(
    rb"(?:\A|(?<=\n\n)|(?<=\r\n\r\n))From [^\n]*\d\d?:\d\d[^\n]*\n(?=>?[!-9;-~]+:|>From )"
)
_QUOTED_FROM: Final = re.compile(rb"^>(>*From )", re.MULTILINE)
_BOUNDARY: Final = re.compile(rb"^--([^\s].{0,100}?)[ \t]*\r?\n(?=content-)", re.IGNORECASE | re.MULTILINE)
_BASE64_LINE: Final = re.compile(rb"(?:[A-Za-z0-9+/=]{4})*[A-Za-z0-9+/]{0,3}={0,2}")
_BASE64_RUN: Final = re.compile(rb"[A-Za-z0-9+/]+")
_NO_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/=]")
_BLANK_WITHIN: Final = re.compile(rb"\s")
_MIN_LONG_LINE: Final = 40  # programs write 60 to 76
_UUENCODED: Final = re.compile(
    r"^begin [0-7]{3,4} (\S.*)\n((?:[ -`]{1,62}\n)+?)(?:`\n| \n|\n)?end\b", re.MULTILINE
)
_ENRICHED_PARAMETER: Final = re.compile(r"<param>[^<]{0,1000}</param>", re.IGNORECASE)
_ENRICHED_BREAK: Final = re.compile(r"\n+")
_ENRICHED_COMMAND: Final = re.compile(r"<<|</?[A-Za-z0-9-]{1,60}>")
_PGP: Final = re.compile(r"-----BEGIN PGP MESSAGE-----.*?(?:-----END PGP MESSAGE-----|\Z)", re.DOTALL)
_LANGUAGES: Final = frozenset({"x-amp-html", "watch-html"})  # third forms of what an alternative has anyway
_SEALED: Final = frozenset({"application/pkcs7-mime", "application/x-pkcs7-mime"})
_MAILS: Final = frozenset({"message/rfc822", "message/global", "message/news"})
_CALENDARS: Final = frozenset({"text/calendar", "text/x-vcalendar", "application/ics"})
_WITHOUT_CONTENT: Final = frozenset(
    {
        "application/applefile",
        "application/pgp-encrypted",
        "application/pgp-signature",
        "application/pkcs7-signature",
        "application/x-pkcs7-signature",
    }
)
# Styles and scripts of a saved page; as a file with a name, they are an attachment.
_OF_PAGES: Final = frozenset({"text/css", "text/javascript", "application/javascript"})
_ENVELOPES: Final = frozenset({"application/octet-stream", "application/pgp-encrypted"})
_UUENCODE: Final = frozenset({"x-uuencode", "uuencode", "uue", "x-uue"})
_TNEF: Final = frozenset({"application/ms-tnef", "application/vnd.ms-tnef"})
_ASCII: Final = frozenset({"", "us-ascii", "ascii", "ansi_x3.4-1968"})
# In DER: the types of S/MIME, and a string of bytes after the type "data".
_SIGNED_TYPE: Final = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02"
_DATA_TYPE: Final = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01"
mimetypes.init([])  # this process reads no files


def read_eml(data: bytes, draft: TextBuilder) -> None:
    """Read a mail, or each mail of an mbox as a page."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # an editor saved it
        data = data.decode("utf-16", "replace").encode()
    data = data.lstrip(_BLANK)
    mails = _split_mailbox(data)
    if len(mails) == 1:
        mail = _parse(mails[0])
        if not any(name in mail for name in (*HEADERS, *_OTHER_HEADERS)):
            refuse_corrupt("The message has no headers.")
        draft.write(_Reader(draft).mail_text(mail))
        return
    draft.announce_pages(len(mails))
    for each in mails:
        draft.begin_page()
        draft.write(_Reader(draft).mail_text(_parse(each), depth=1))


def _split_mailbox(data: bytes) -> list[bytes]:
    """Return the mails of an mbox; one, if it is a single mail."""
    starts = list(_POSTMARK.finditer(data)) if data.startswith(b"From ") else []
    if not starts:
        return [data]
    ends = [*(found.start() for found in starts[1:]), len(data)]
    mails = [data[found.end() : end] for found, end in zip(starts, ends, strict=True)]
    return [_QUOTED_FROM.sub(rb"\1", each) for each in mails]


class _RawHeaders(Compat32):
    """Headers as they are: bytes that are not ASCII are lone surrogates."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        """Return the value; of fields with parameters, which are parsed often, as much as has a meaning."""
        if not name.lower().startswith("content-"):
            return value
        value = value[:_MAX_FIELD_CHARS]
        if (
            "*" in value and not value.isascii()
        ):  # the library decodes parameters by RFC 2231, which are ASCII
            value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return value


class _Parser(BytesFeedParser):
    """The standard library's parser, except that parts nested too deeply stay unparsed: it would recurse."""

    _depth = 0

    def _parsegen(self) -> "Generator[Any, None, None]":
        self._depth += 1
        self._headersonly = self._depth > MAX_DEPTH
        yield from super()._parsegen()  # type: ignore[misc]  # not public
        self._depth -= 1
        self._headersonly = False


def _parse(data: bytes) -> Mail:
    parser = _Parser(policy=_RawHeaders())
    parser.feed(data)
    return parser.close()


class _Reader:
    """Reads one mail and those within it.

    Attributes:
        draft: takes warnings and files.
    """

    def __init__(self, draft: TextBuilder) -> None:
        self.draft = draft
        self._num_parts = 0
        self._bodies: set[int] = set()  # forms of a body, which some programs name; they are no files
        self._mail: Mail | None = None  # the one whose headers are read

    def mail_text(self, mail: Mail, depth: int = 0) -> str:
        """Return the text of a mail with its headers; at depth 0, it is the document.

        Raises:
            RefusedError: the document is encrypted.
        """
        above, self._mail = self._mail, mail
        letter = Letter()
        headers = {name: self._header(mail, name) for name in HEADERS}
        if not depth:
            self.draft.set_title(headers["Subject"])
        body = self._part_text(mail, letter, depth)
        if letter.num_encrypted and not depth and not body.strip() and not letter.files:
            message = "The mail is encrypted: only its recipient's key can open it."
            raise ExtractionError("document_encrypted", message)
        self._mail = above
        return letter_text(headers, body, letter, self.draft)

    def _header(self, mail: Mail, name: str) -> str:
        """Return a header, decoded; several of one name are joined; empty if it is missing."""
        values = [value for each, value in mail.raw_items() if each.lower() == name.lower()]
        return ", ".join(text for value in values[:100] if (text := self._decoded_header(str(value))))

    def _decoded_header(self, value: str) -> str:
        return header_text(value, self.draft, self._decode_raw_header)

    def _decode_raw_header(self, raw: bytes) -> str:
        """Decode a header of eight-bit letters: as UTF-8, as the body declares, or together with the body."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
        sample = b""
        for part in self._texts():
            label = parameter(part, "charset")
            if label.lower() not in _ASCII:
                return decode_declared(raw, label, self.draft)
            sample = sample or self._bytes(part)[:_SAMPLE_BYTES]
        try:
            sample.decode()
        except UnicodeDecodeError:
            line = raw.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
            return decode_body(line + sample, self.draft).partition("\n")[0]
        return decode_body(raw, self.draft)

    def _texts(self) -> Iterator[Mail]:
        """Yield the first text parts of the mail."""
        parts = self._mail.walk() if self._mail is not None else iter(())
        for number, part in enumerate(parts):
            if number > 20:
                return
            if part.get_content_maintype() == "text" and isinstance(_payload(part), str):
                yield part

    # One part of any type.

    def _part_text(self, part: Mail, letter: Letter, depth: int) -> str:
        """Return the text of a part and of all within it; empty if it is a file or has no text."""
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            message = f"The mail has more than {_MAX_PARTS:,} parts; the others were not read."
            self.draft.warn("parts_not_read", message)
            return ""
        if depth > MAX_DEPTH:
            self._warn_nesting()
            return ""
        match part.get_content_maintype():
            case "multipart":
                return self._multipart_text(part, letter, depth)
            case "message":
                return self._message_text(part, depth)
            case _ if part.get_content_type() in _WITHOUT_CONTENT:
                return ""
            case _:
                return self._leaf_text(part, letter, depth)

    def _leaf_text(self, part: Mail, letter: Letter, depth: int) -> str:
        kind = part.get_content_type()
        if kind in _SEALED:
            return self._sealed_text(part, letter, depth)
        name = file_name(part, self.draft, self._decode_raw_header) if id(part) not in self._bodies else ""
        data = b"" if kind in _OF_PAGES and not name else self._bytes(part)
        if kind in _TNEF or name.lower() == "winmail.dat":
            return self._tnef_text(data, letter, depth)
        if kind in _CALENDARS or data[:64].lstrip().startswith(b"BEGIN:VCALENDAR"):
            if name:
                letter.add_file(name, data, is_read=True)
            return calendar_text(self._decoded(part, data))
        if name.lower().endswith(".eml") and depth < MAX_DEPTH:
            within = _parse(data.lstrip(_BLANK))
            if any(header in within for header in HEADERS):
                return nested_text(self.mail_text(within, depth + 1))
        if part.get_content_maintype() == "text" and not is_binary(data):
            return self._text(part, data, name, letter)
        if data:
            name = name or _made_up_name(kind, len(letter.files) + 1)
            letter.add_file(name, data, content_id=str(part.get("Content-ID", "")))
        return ""

    def _text(self, part: Mail, data: bytes, name: str, letter: Letter) -> str:
        kind = part.get_content_subtype()
        is_file = bool(name) or part.get_content_disposition() == "attachment"
        if is_file:
            name = name or _made_up_name(part.get_content_type(), len(letter.files) + 1)
            if len(data) > MAX_INLINED_BYTES:
                letter.add_file(name, data)
                return ""
        text = self._decoded(part, data)
        if kind in {"enriched", "richtext"}:
            text = _enriched_text(text)
        elif kind in {"html", "xhtml"}:
            if not is_file:
                letter.html.append(text)
            text = html_text(text, self.draft)
        elif kind == "rtf":
            text = _rtf_text(data, self.draft)
        else:
            text = self._plain_text(part, text, letter)
        if not is_file:
            return text
        letter.add_file(name, data, is_read=True)
        return file_text(name, text) if text.strip() else ""

    def _plain_text(self, part: Mail, text: str, letter: Letter) -> str:
        text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        if parameter(part, "format").lower() == "flowed":
            text = _unflowed(text, keeps_spaces=parameter(part, "delsp").lower() != "yes")
        text = _UUENCODED.sub(partial(self._take_uuencoded, letter), text)
        without, num_encrypted = _PGP.subn("", text)
        if num_encrypted:
            self._warn_encrypted(letter, "PGP")
            text = without
        return text

    def _decoded(self, part: Mail, data: bytes) -> str:
        label = parameter(part, "charset")
        is_html = part.get_content_subtype() in {"html", "xhtml"}
        if label.lower() in _ASCII:
            return decode_html(data, self.draft) if is_html else decode_body(data, self.draft)
        return decode_declared(data, label, self.draft)

    # Parts of several.

    def _multipart_text(self, part: Mail, letter: Letter, depth: int) -> str:
        kind = part.get_content_subtype()
        children = self._children(part, depth)
        if kind == "alternative":
            return self._alternative_text(children, letter, depth)
        if kind == "encrypted":
            self._warn_encrypted(letter, "PGP")
            children = [child for child in children if child.get_content_type() not in _ENVELOPES]
        texts = (self._part_text(child, letter, depth + 1) for child in children)
        return "\n\n".join(text.strip("\n") for text in texts if text.strip())

    def _children(self, part: Mail, depth: int) -> Sequence[Mail]:
        """Return the parts, also of a part whose boundary is missing or another."""
        payload = _payload(part)
        if isinstance(payload, list):
            if any(isinstance(each, CloseBoundaryNotFoundDefect) for each in part.defects):
                self.draft.warn("parts_damaged", "The mail has no end mark: its last part may be cut off.")
            own = [each for each in payload if not isinstance(each, str)]
            return [*own, *_parts_after_end(part)]
        raw = self._bytes(part)
        if not raw.strip():
            return []
        if depth >= MAX_DEPTH:
            self._warn_nesting()
            return []
        self.draft.warn("parts_damaged", "The parts of the mail are not separated as it declares.")
        if found := _BOUNDARY.search(raw):
            head = b'Content-Type: multipart/mixed; boundary="' + found[1].replace(b'"', b"") + b'"\n\n'
            again = _parse(head + raw)
            if isinstance(parts := _payload(again), list):
                return parts
        return [_parse(b"Content-Type: text/plain\n\n" + raw)]

    def _alternative_text(self, children: Sequence[Mail], letter: Letter, depth: int) -> str:
        texts: list[str] = []
        plain: list[str] = []
        calendars: list[str] = []
        for child in children:
            kind = child.get_content_type()
            if child.get_content_subtype() in _LANGUAGES:
                continue
            if child.get_content_maintype() == "text" and child.get_content_disposition() != "attachment":
                self._bodies.add(id(child))
            text = self._part_text(child, letter, depth + 1)
            into = calendars if kind in _CALENDARS else plain if kind == "text/plain" else texts
            into.append(text)
        chosen = choose([*plain, *texts])
        for calendar in dict.fromkeys(calendars):
            head, mark, description = calendar.partition("\nDescription: ")
            shown = head if mark and covers(chosen, description) else calendar
            chosen = f"{chosen.strip(chr(10))}\n\n{shown}" if chosen.strip() else shown
        return chosen

    # Mails and reports within.

    def _message_text(self, part: Mail, depth: int) -> str:
        kind = part.get_content_type()
        payload = _payload(part)
        if kind == "message/external-body":
            self.draft.warn("parts_not_read", "A part of the mail is stored elsewhere and was not fetched.")
            return ""
        if kind == "message/partial":
            self.draft.warn(
                "parts_not_read", "The mail is one piece of a longer mail; the others were not read."
            )
        if isinstance(payload, str):
            if depth >= MAX_DEPTH:
                self._warn_nesting()
                return ""
            return decode_body(self._bytes(part), self.draft)
        mails: list[Mail] = list(payload) if isinstance(payload, list) else []
        if kind not in _MAILS and kind != "message/partial":
            return "\n\n".join(text for each in mails if (text := self._fields_text(each)))
        encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
        if encoding in {"base64", "quoted-printable"} and mails and not mails[0].keys():
            source = _parse(b"")
            source["Content-Transfer-Encoding"] = encoding
            source.set_payload(str(_payload(mails[0])))
            mails = [_parse(self._bytes(source).lstrip(_BLANK))]
        texts = [self.mail_text(each, depth + 1) for each in mails]
        return "\n\n".join(nested_text(text) for text in texts if text.strip())

    def _fields_text(self, block: Mail) -> str:
        """Return a block of a report: its fields, and what follows them."""
        lines = [f"{name}: {self._decoded_header(str(value))}" for name, value in block.raw_items()]
        if rest := decode_body(self._bytes(block), self.draft).strip():
            lines.append(rest)
        return "\n".join(lines)

    # What other programs packed or sealed.

    def _tnef_text(self, data: bytes, letter: Letter, depth: int) -> str:
        try:
            from worker.extract.tnef import read_tnef
        except ImportError:
            self.draft.warn(
                "parts_not_read", "winmail.dat, in which the mail's content is packed, was not read."
            )
            return ""
        return read_tnef(data, letter, self.draft, depth + 1)[1]

    def _sealed_text(self, part: Mail, letter: Letter, depth: int) -> str:
        data = self._bytes(part)
        if _SIGNED_TYPE in data[:64]:
            content = _signed_content(data)
            if content:
                return self._part_text(_parse(content.lstrip(_BLANK)), letter, depth + 1)
            self.draft.warn("parts_not_read", "A signed part of the mail (S/MIME) could not be read.")
            return ""
        self._warn_encrypted(letter, "S/MIME")
        return ""

    def _warn_nesting(self) -> None:
        message = f"The mail has parts nested in more than {MAX_DEPTH} levels, which were not read."
        self.draft.warn("parts_not_read", message)

    def _warn_encrypted(self, letter: Letter, how: str) -> None:
        letter.num_encrypted += 1
        self.draft.warn("parts_not_read", f"A part of the mail is encrypted ({how}) and was not read.")

    def _take_uuencoded(self, letter: Letter, found: "re.Match[str]") -> str:
        data = bytearray()
        for line in found[2].splitlines():
            try:
                data += binascii.a2b_uu(line)
            except ValueError:
                return found[0]
        letter.add_file(found[1].strip(), bytes(data))
        return ""

    def _bytes(self, part: Mail) -> bytes:
        """Return the content of a part, as much of it as its transfer encoding allows."""
        encoding = str(part.get("Content-Transfer-Encoding", "")).partition(";")[0].strip().lower()
        payload = _payload(part)
        if not isinstance(payload, str):
            return b""
        raw = payload.encode("utf-8", "surrogateescape")
        if encoding == "base64":
            return self._from_base64(raw, is_text=part.get_content_maintype() == "text")
        if encoding == "quoted-printable":
            return binascii.a2b_qp(raw)
        if encoding in _UUENCODE and raw.isascii():
            decoded = part.get_payload(decode=True)
            return decoded if isinstance(decoded, bytes) else raw
        return raw

    def _from_base64(self, raw: bytes, *, is_text: bool) -> bytes:
        """Decode base64; keep what surrounds damage, and lines that a mailing list put after it."""
        lines = [line for each in raw.split(b"\n") if (line := each.strip())]
        are_digits = [_is_base64(line) for line in lines]
        end = len(lines)
        if is_text and False in are_digits[1:]:
            first = are_digits.index(False, 1)
            # The last line of base64 is shorter than others, or ends with padding.
            if lines[first - 1].endswith(b"=") or len(lines[first - 1]) < len(lines[0]):
                end = first
        num_bad = are_digits[:end].count(False)
        if num_bad * 2 > end:
            message = "A part of the mail is not in base64, as it declares; it was read as it is."
            self.draft.warn("parts_damaged", message)
            return raw
        if num_bad or any(_NO_BASE64.search(line) for line in lines[:end]):
            self.draft.warn("parts_damaged", "A part of the mail is damaged: it is not valid base64.")
        digits = _NO_BASE64.sub(b"", b"".join(lines[:end]))
        decoded = bytearray()
        for run in _BASE64_RUN.findall(digits):
            whole = run[: len(run) - (len(run) % 4 == 1)]
            if whole != run:
                self.draft.warn("parts_damaged", "A part of the mail is damaged: it is not valid base64.")
            decoded += binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
        footer = b"\n".join(lines[end:])
        return bytes(decoded) + (b"\n" + footer if footer else b"")


def _parts_after_end(part: Mail) -> Sequence[Mail]:
    """Return the parts after the end mark, as in a mail whose inner parts have the outer ones' boundary."""
    boundary = part.get_boundary()
    if not boundary or not part.epilogue or f"--{boundary}" not in part.epilogue:
        return []
    mark = b"--" + re.escape(boundary.encode(errors="surrogateescape"))
    rest, num_parts = re.subn(
        rb"(?m)^(" + mark + rb")(?:--)?[ \t]*\r?$", rb"\1", part.epilogue.encode(errors="surrogateescape")
    )
    if not num_parts:
        return []
    again = _parse(b'Content-Type: multipart/mixed; boundary="' + boundary.encode() + b'"\n\n' + rest)
    parts = _payload(again)
    return [each for each in parts if each.keys()] if isinstance(parts, list) else []


def _is_base64(line: bytes) -> bool:
    """Return True for a line of base64, also if a few characters of a long one are damaged."""
    if _BASE64_LINE.fullmatch(line):
        return True
    num_odd = len(_NO_BASE64.findall(line))
    return len(line) >= _MIN_LONG_LINE and num_odd * 10 <= len(line) and not _BLANK_WITHIN.search(line)


def _payload(part: Mail) -> object:
    """Return the parts, or the text as it is; the public method decodes it by whatever the mail declares."""
    return vars(part).get("_payload")


def _made_up_name(kind: str, number: int) -> str:
    """Return a name for a file without one."""
    if kind in {"application/xml", "text/xml"}:  # not the first of its extensions, .xsl
        return f"attachment-{number}.xml"
    return f"attachment-{number}{mimetypes.guess_extension(kind) or '.bin'}"


def _enriched_text(text: str) -> str:
    """Return the text of `text/enriched`: without commands, and one line end less in each run."""
    text = _ENRICHED_PARAMETER.sub("", text.replace("\r\n", "\n"))
    text = _ENRICHED_BREAK.sub(lambda found: " " if len(found[0]) == 1 else found[0][1:], text)
    return _ENRICHED_COMMAND.sub(lambda found: "<" if found[0] == "<<" else "", text)


def _rtf_text(data: bytes, draft: TextBuilder) -> str:
    from worker.extract.mapi import rtf_text

    return rtf_text(data, draft)


def _unflowed(text: str, *, keeps_spaces: bool) -> str:
    """Join the lines of `format=flowed` that end with a space, within one level of quoting."""
    out: list[str] = []
    quoting = ""
    is_open = False
    for line in text.split("\n"):
        rest = line.lstrip(">")
        depth = line[: len(line) - len(rest)]
        rest = rest.removeprefix(" ")
        if is_open and depth == quoting and rest != "-- ":
            out.append(rest)
        else:
            out.append(f"\n{depth} {rest}" if depth else f"\n{rest}")
        is_open = rest.endswith(" ") and rest != "-- "
        if is_open and not keeps_spaces:
            out[-1] = out[-1][:-1]
        quoting = depth
    return "".join(out).removeprefix("\n")


def _signed_content(data: bytes) -> bytes:
    """Return what a signature of S/MIME covers: the string of bytes after its type, whole or in pieces."""
    at = data.find(_DATA_TYPE)
    if at < 0:
        return b""
    at += len(_DATA_TYPE)
    content = bytearray()
    while at + 2 <= len(data):
        tag, length, at = data[at], *_der_length(data, at + 1)
        if tag == 0x04:
            content += data[at : at + length]
            at += length
            if not content:
                break
        elif tag not in {0xA0, 0x24}:
            break
    return bytes(content)


def _der_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length of DER, 0 if it is left open, and where its value starts."""
    first = data[at]
    if first < 0x80:
        return first, at + 1
    num = first & 0x7F
    return int.from_bytes(data[at + 1 : at + 1 + num], "big"), at + 1 + num
