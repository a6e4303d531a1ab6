"""The kind of an upload: by its first and last bytes, then by its name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from jobs.documents.unsupported import describe, known_binary, known_xml, may_be_text
from jobs.errors import InvalidRequestError
from jobs.states.document import DocumentKind

# How much of an upload's beginning and end `find_kind` needs.
HEAD_BYTES: Final = 4096
TAIL_BYTES: Final = 65_536  # a zip archive ends with its directory

_K = DocumentKind
# Texts that are read as they are.
TEXT_EXTENSIONS: Final = (
    *("txt", "text", "log", "rst", "csv", "tsv", "json", "jsonl", "ndjson", "xml", "yaml", "yml"),
    *("toml", "ini", "cfg", "conf", "srt", "vtt", "tex", "adoc", "org"),
)
_EXTENSIONS: Final[Mapping[str, DocumentKind]] = {
    **dict.fromkeys(TEXT_EXTENSIONS, _K.TXT),
    "md": _K.MD,
    "markdown": _K.MD,
    "html": _K.HTML,
    "htm": _K.HTML,
    "xhtml": _K.HTML,
    **dict.fromkeys(("mbox", "mht", "mhtml"), _K.EML),
    "jpeg": _K.JPG,
    "tif": _K.TIFF,
    "ott": _K.ODT,
    "ots": _K.ODS,
    **dict.fromkeys(("otp", "odg", "otg"), _K.ODP),
    **dict.fromkeys(("docm", "dotx", "dotm"), _K.DOCX),
    **dict.fromkeys(("pptm", "ppsx", "ppsm", "potx", "potm"), _K.PPTX),
    **dict.fromkeys(("xlsm", "xltx", "xltm", "xlsb"), _K.XLSX),
    **{kind.value: kind for kind in DocumentKind},
}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_MEDIA_TYPES: Final[Mapping[str, DocumentKind]] = {
    "text/plain": _K.TXT,
    "text/markdown": _K.MD,
    "text/html": _K.HTML,
    "application/xhtml+xml": _K.HTML,
    "application/pdf": _K.PDF,
    "application/epub+zip": _K.EPUB,
    "message/rfc822": _K.EML,
    "application/mbox": _K.EML,
    "application/vnd.ms-outlook": _K.MSG,
    "application/vnd.ms-excel": _K.XLS,
    "application/rtf": _K.RTF,
    "text/rtf": _K.RTF,
    "application/vnd.oasis.opendocument.text": _K.ODT,
    "application/vnd.oasis.opendocument.spreadsheet": _K.ODS,
    "application/vnd.oasis.opendocument.presentation": _K.ODP,
    "image/png": _K.PNG,
    "image/jpeg": _K.JPG,
    "image/tiff": _K.TIFF,
    f"{_OFFICE}.wordprocessingml.document": _K.DOCX,
    f"{_OFFICE}.presentationml.presentation": _K.PPTX,
    f"{_OFFICE}.spreadsheetml.sheet": _K.XLSX,
}
# Members that identify the kind of an archive. Some programs number the main one; xlsb has a .bin.
_MEMBERS: Final = (
    (b"word/document", _K.DOCX),
    (b"ppt/presentation", _K.PPTX),
    (b"xl/workbook", _K.XLSX),
    (b"application/vnd.oasis.opendocument.text", _K.ODT),
    (b"application/vnd.oasis.opendocument.spreadsheet", _K.ODS),
    (b"application/vnd.oasis.opendocument.presentation", _K.ODP),
    (b"application/vnd.oasis.opendocument.graphics", _K.ODP),
    (b"application/epub+zip", _K.EPUB),
    (b"META-INF/container.xml", _K.EPUB),
)
_ZIPPED: Final = frozenset({_K.DOCX, _K.PPTX, _K.XLSX, _K.EPUB, _K.ODT, _K.ODS, _K.ODP})
_PDF: Final = b"%PDF-"
_PDF_WITHIN: Final = 1024  # bytes; every reader ignores what comes before
# The whole line of a header. Texts and mails may mention one, or have one within.
_PDF_LINE: Final = re.compile(rb"^%PDF-\d\.\d\s*$", re.MULTILINE)
_TEXTS: Final = frozenset({_K.TXT, _K.MD, _K.HTML, _K.EML})
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
# The container of Outlook's messages, of Office 97, and of newer Office documents that have a password.
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# Names in its directory, which may also be too far from both ends to be seen here.
_STREAMS: Final = (
    ("__properties_version1.0".encode("utf-16-le"), _K.MSG),
    ("Workbook".encode("utf-16-le"), _K.XLS),
)
_IN_OLE: Final = frozenset({*_ZIPPED, _K.MSG, _K.XLS})
_MARKUP: Final = (b"<!doctype html", b"<html", b"<head", b"<body")
# What may precede it: a declaration and comments, each with its end.
_BEFORE_MARKUP: Final = ((b"<?xml", b"?>"), (b"<!--", b"-->"))
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
_MAIL: Final = re.compile(rb"From |[A-Za-z][A-Za-z0-9-]{0,70}:")
_MAIL_FIELDS: Final = re.compile(
    rb"^(From|To|Subject|Date|Message-ID|MIME-Version|Received|Return-Path|Delivered-To):",
    re.IGNORECASE | re.MULTILINE,
)
_MIN_MAIL_FIELDS: Final = 3  # a memo has a few of them too, as "Date:" and "To:"
# The line before each mail of an mbox, with a clock, and the fields below it.
_POSTMARK: Final = re.compile(rb"From [^\n]{0,300}\d\d?:\d\d[^\n]{0,100}\n>?[!-9;-~]{1,70}:")
_WEB_ARCHIVE: Final = re.compile(
    rb"MIME-Version:.{0,1000}?^Content-Type: *multipart/related", re.IGNORECASE | re.MULTILINE | re.DOTALL
)
_BEGINNINGS: Final = (
    (b"{\\rtf", _K.RTF),
    (b"\x89PNG", _K.PNG),
    (b"\xff\xd8\xff", _K.JPG),
    (b"II*\0", _K.TIFF),
    (b"MM\0*", _K.TIFF),
)


class UnsupportedDocumentError(InvalidRequestError):
    """The file is not of a supported kind.

    They are txt, md, html, pdf, docx, pptx, xlsx, xls, odt, ods, odp, rtf, epub, eml, msg, png, jpg and tiff.
    """

    code = "unsupported_document"


@dataclass(frozen=True, slots=True)
class UploadHints:
    """The evidence for the kind of an upload.

    Attributes:
        head: its first HEAD_BYTES bytes.
        tail: its last TAIL_BYTES bytes.
        filename: as sent; may be empty.
        media_type: as sent; may be empty or unspecific.
        wanted: the kind that the caller named; None if the caller named none.
    """

    head: bytes
    tail: bytes
    filename: str = ""
    media_type: str = ""
    wanted: DocumentKind | None = None


def find_kind(hints: UploadHints) -> DocumentKind:
    """Find the kind of an upload.

    The bytes decide; name and media type matter only if the bytes fit several kinds.

    Raises:
        UnsupportedDocumentError: the bytes are of no supported kind, or not of the one that the caller named.
    """
    named = kind_by_name(hints.filename) or _MEDIA_TYPES.get(
        hints.media_type.partition(";")[0].strip().lower()
    )
    wanted = hints.wanted or named
    kind = _by_bytes(hints, wanted)
    if kind is None:
        raise _unsupported(hints, wanted)
    if hints.wanted not in (None, kind):
        raise UnsupportedDocumentError(
            f"The file is not of kind {hints.wanted}: its bytes are of kind {kind}.", param="kind"
        )
    return kind


def kind_by_name(filename: str) -> DocumentKind | None:
    """Return the kind of the name's extension; None if it is unknown."""
    return _EXTENSIONS.get(PurePosixPath(filename).suffix.lower().removeprefix("."))


def media_type(kind: DocumentKind) -> str:
    """Return the media type of a kind."""
    return next(name for name, its_kind in _MEDIA_TYPES.items() if its_kind == kind)


def _by_bytes(hints: UploadHints, wanted: DocumentKind | None) -> DocumentKind | None:
    head = hints.head
    if head.startswith(_ZIP):
        found = next((kind for name, kind in _MEMBERS if name in head or name in hints.tail), None)
        return found or (wanted if wanted in _ZIPPED else None)
    if head.startswith(_OLE):
        found = next((kind for name, kind in _STREAMS if name in head or name in hints.tail), None)
        return found or (wanted if wanted in _IN_OLE else None)
    if begun := next((kind for begin, kind in _BEGINNINGS if head.startswith(begin)), None):
        return begun
    if _is_pdf(head[:_PDF_WITHIN], wanted):
        return _K.PDF
    if known_binary(head) or not may_be_text(head):
        return None
    return _of_text(head, wanted)


def _is_pdf(head: bytes, wanted: DocumentKind | None) -> bool:
    """Return True if the header of a PDF is at the start, or after what was saved with it."""
    if head.lstrip(_BLANK).startswith(_PDF):
        return True
    if wanted is _K.PDF or wanted in _TEXTS:
        return wanted is _K.PDF and _PDF in head
    return _PDF_LINE.search(head.replace(b"\r", b"\n")) is not None and not _is_mail(head)


def _unsupported(hints: UploadHints, wanted: DocumentKind | None) -> UnsupportedDocumentError:
    """Name what the file is, and what is supported."""
    found = describe(hints.head, hints.tail, hints.filename)
    if found == "text":
        found = "an HTML page" if _is_markup(hints.head) else "plain text"
        if wanted is not None:
            found += f", not of kind {wanted} as {'asked' if hints.wanted else 'its name says'}"
            found += ": an error message may have been saved in place of the file"
    supported = ", ".join(DocumentKind)
    return UnsupportedDocumentError(f"This is {found}. Supported kinds: {supported}.", param="file")


def _of_text(head: bytes, wanted: DocumentKind | None) -> DocumentKind | None:
    """Return the kind of a text: the wanted one, or a guess if none is wanted.

    Programs also save tables as pages or plain text under the name of a workbook.
    """
    match wanted:
        case _K.TXT | _K.MD | _K.HTML:
            return wanted
        case _K.EML:
            return wanted if _MAIL.match(_narrow(head).lstrip(_BLANK)) else None
        case None | _K.XLS | _K.XLSX | _K.ODS if not known_xml(head):
            return _K.HTML if _is_markup(head) else _K.EML if _is_mail(head) else _K.TXT
        case _:
            return None


def _is_mail(head: bytes) -> bool:
    """Return True if the text begins with fields of a mail, as the nameless files of a Maildir do.

    Mailboxes are often nameless too; browsers and Word save pages as mails (.mht), also named .doc.
    """
    fields = head.replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    if _POSTMARK.match(head) or _WEB_ARCHIVE.match(fields):
        return True
    found = {field.lower() for field in _MAIL_FIELDS.findall(fields)}
    return _MAIL.match(head) is not None and b"from" in found and len(found) >= _MIN_MAIL_FIELDS


def _narrow(head: bytes) -> bytes:
    """Return ASCII of UTF-16 as ASCII, without a byte order mark."""
    if b"\0" not in head:
        return head
    return head.replace(b"\0", b"").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")


def _is_markup(head: bytes) -> bool:
    """Return True if the first element is HTML."""
    head = _narrow(head)
    at = 0
    while True:
        rest = head[at:].lstrip(_BLANK)
        at = len(head) - len(rest)
        end = next((end for begin, end in _BEFORE_MARKUP if rest.startswith(begin)), None)
        if end is None:
            return rest[:20].lower().startswith(_MARKUP)
        found = head.find(end, at)
        if found < 0:
            return False
        at = found + len(end)
