"""The text of one mail of any format: its headers, its body, and its files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from worker.extract.draft import ExtractionError, TextBuilder
from worker.extract.encodings import decode, decode_labelled, decode_markup
from worker.extract.markup import write_html

HEADERS: Final = ("From", "To", "Cc", "Bcc", "Date", "Subject")
MAX_DEPTH: Final = 30  # of mails and parts within each other
MAX_INLINED_BYTES: Final = 2**18  # a longer text file is attached: it would drown the mail
_PICTURES: Final = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"BM")
_BINARY: Final = (
    *_PICTURES,
    b"%PDF-",
    b"PK\x03\x04",
    b"\xd0\xcf\x11\xe0",
    b"\x1f\x8b",
    b"Rar!",
    b"7z\xbc\xaf",
)
_MARK: Final = "---"
_CONTENT_ID: Final = re.compile(r"cid:([^\s\"'<>()]{1,300})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MailFile:
    """A file within a mail.

    Attributes:
        name: as the mail gives it, or made from its type.
        data: its bytes.
        content_id: the name by which HTML shows it; empty if it has none.
        is_read: True if the text has its content already.
    """

    name: str
    data: bytes
    content_id: str = ""
    is_read: bool = False


@dataclass(slots=True)
class Letter:
    """One mail while it is read.

    Attributes:
        files: in order.
        html: the sources of its HTML, which may show pictures of the files.
        num_encrypted: parts that only their recipient can open.
    """

    files: list[MailFile] = field(default_factory=list)
    html: list[str] = field(default_factory=list)
    num_encrypted: int = 0

    def add_file(self, name: str, data: bytes, *, content_id: str = "", is_read: bool = False) -> None:
        """Add a file once: both forms of a mail may have it."""
        file = MailFile(name, data, content_id.strip(" <>"), is_read)
        if file not in self.files:
            self.files.append(file)


def letter_text(headers: Mapping[str, str], body: str, letter: Letter, draft: TextBuilder) -> str:
    """Return the whole text of a mail; attach its files to the draft.

    A picture that the HTML shows is decoration, unless the mail has no words.
    """
    head = "".join(f"{name}: {headers[name]}\n" for name in HEADERS if headers.get(name))
    body = body.lstrip("\n")
    shown = {found for source in letter.html for found in _CONTENT_ID.findall(source)}
    names = []
    for file in letter.files:
        if body.strip() and _is_shown(file, shown):
            continue
        names.append(file.name)
        if not file.is_read:
            draft.attach(file.name, file.data)
    head = f"{head}\n" if head else ""
    if names:
        body = f"{body.rstrip(chr(10))}\n\n\n" if body else "\n"
        return f"{head}{body}Attachments: {', '.join(names)}\n"
    return f"{head}{body}"


def nested_text(text: str) -> str:
    """Return the text of a mail within a mail, marked as such."""
    return f"{_MARK} Attached mail {_MARK}\n\n{text.strip()}\n\n{_MARK} End of attached mail {_MARK}"


def file_text(name: str, text: str) -> str:
    """Return the text of a file within a mail, under its name."""
    return f"{_MARK} Attached file: {name} {_MARK}\n\n" + text.strip("\n")


def html_text(source: str, draft: TextBuilder) -> str:
    """Return the text of an HTML body."""
    scratch = TextBuilder(draft.limits)
    write_html(source, scratch)
    for warning in scratch.warnings:
        if warning not in draft.warnings:
            draft.warnings.append(warning)
    return scratch.text()


def decode_body(raw: bytes, draft: TextBuilder) -> str:
    """Decode a body that declares no encoding; bytes that are not text are replaced, with a warning."""
    return _decoded(raw, draft, decode)


def decode_declared(raw: bytes, label: str, draft: TextBuilder) -> str:
    """Decode text whose encoding a header names; see `decode_body`."""
    return _decoded(raw, draft, lambda raw, draft: decode_labelled(raw, label, draft))


def decode_html(raw: bytes, draft: TextBuilder) -> str:
    """Decode HTML that may declare its encoding itself; see `decode_body`."""
    return _decoded(raw, draft, decode_markup)


def is_binary(data: bytes) -> bool:
    """Return True if the bytes are a well-known file, whatever their label says."""
    return data.startswith(_BINARY)


def _decoded(raw: bytes, draft: TextBuilder, decoder: Callable[[bytes, TextBuilder], str]) -> str:
    try:
        return decoder(raw, draft)
    except ExtractionError:
        text = raw.replace(b"\0", b"").decode("cp1252", "replace")
        draft.warn(
            "characters_replaced", "A part of the mail has bytes that are not text; they were replaced."
        )
        return text


def _is_shown(file: MailFile, shown: set[str]) -> bool:
    return file.content_id in shown and file.data.startswith(_PICTURES)
