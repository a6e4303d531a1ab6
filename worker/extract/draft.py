"""The text of a document while it is assembled within its limits, and refusals of documents."""

import re
from dataclasses import dataclass
from typing import Final, NoReturn

# Characters without meaning in text, on which Postgres, JSON or a terminal may fail; lone surrogates.
_UNWANTED: Final = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_PAGE_BREAK: Final = "\n\n"
_MAX_TITLE_CHARS: Final = 300
_MAX_NAMED_PAGES: Final = 1000
_MAX_WARNINGS: Final = 100
_MAX_ATTACHMENTS: Final = 100
_MAX_NAME_CHARS: Final = 255
_MAX_WARNING_CHARS: Final = 1000


class ExtractionError(Exception):
    """The document has no text.

    Attributes:
        code: one of `jobs.states.document.DocumentErrorCode`.
        message: for the document's owner.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class OcrLimits:
    """The limits of reading pictures of pages, on top of those of the document.

    Attributes:
        memory_bytes: private memory of the process; its address space, with the mapped libraries, may be
            1 GiB larger.
        seconds: for all pages of the document together; pages that are left then stay unread.
        max_pages: of one document; 0 reads none.
        max_pixels: of one picture.
        languages: of tesseract, joined by `+`, for pages that the models do not read; empty: it is not used.
    """

    memory_bytes: int
    seconds: int
    max_pages: int
    max_pixels: int
    languages: str = ""


NO_OCR: Final = OcrLimits(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ExtractionLimits:
    """The limits of one document.

    Attributes:
        memory_bytes: address space of the process.
        seconds: of CPU time.
        attached_bytes: of all attached files together.
    """

    memory_bytes: int
    seconds: int
    max_pages: int
    max_characters: int
    ocr: OcrLimits = NO_OCR
    attached_bytes: int = 100 * 2**20


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file within a document.

    Attributes:
        name: as the document gives it, on one line; never empty.
        data: its bytes.
    """

    name: str
    data: bytes


class TextBuilder:
    """The text of a document so far.

    Attributes:
        limits: of this document.
        encoding: of its text, as its owner named it; empty if not named.
        pages: the character at which each page starts; None if the kind has no pages.
        title: from the document; None if it has none.
        warnings: `{code, message, pages?}`.
        attachments: files within the document, none of which is part of its text.
        left_out: names of further ones, beyond the limits.
    """

    def __init__(self, limits: ExtractionLimits, encoding: str = "") -> None:
        self.encoding = encoding
        self.pages: list[int] | None = None
        self.title: str | None = None
        self.warnings: list[dict[str, object]] = []
        self.attachments: list[Attachment] = []
        self.left_out: list[str] = []
        self.limits = limits
        self._pieces: list[str] = []
        self._num_chars = 0
        self._attached_bytes = 0

    def write_as_it_is(self, text: str) -> None:
        """Append to the text.

        Raises:
            RefusedError: the text exceeds its limit.
        """
        self._num_chars += len(text)
        if self._num_chars > self.limits.max_characters:
            most = f"{self.limits.max_characters:,}"
            raise ExtractionError("document_too_large", f"The text has more than {most} characters.")
        self._pieces.append(text)

    def write(self, text: str) -> None:
        """Append to the text, cleaned; raises what `write_as_it_is` raises."""
        self.write_as_it_is(clean(text))

    def begin_page(self) -> None:
        """Begin the next page, which takes all further text."""
        if self.pages is None:
            self.pages = []
        elif self._num_chars and self._num_chars > self.pages[-1]:
            self.write_as_it_is(_PAGE_BREAK)
        self.pages.append(self._num_chars)

    def announce_pages(self, num_pages: int) -> None:
        """Check the number of pages before reading them.

        Raises:
            RefusedError: the document has too many pages.
        """
        if num_pages > self.limits.max_pages:
            message = f"The document has {num_pages:,} pages; the maximum is {self.limits.max_pages:,}."
            raise ExtractionError("document_too_many_pages", message)
        self.pages = [] if self.pages is None else self.pages

    def warn(self, code: str, message: str, pages: list[int] | None = None) -> None:
        """Add a warning for readers of the text, once; `pages` are counted from 1."""
        warning: dict[str, object] = {"code": code, "message": clean(message)[:_MAX_WARNING_CHARS]}
        if pages is not None:
            warning["pages"] = pages[:_MAX_NAMED_PAGES]
        if warning not in self.warnings and len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(warning)

    def attach(self, name: str, data: bytes) -> None:
        """Add a file within the document, such as a mail's attachment."""
        shown = " ".join(clean(name).split())[-_MAX_NAME_CHARS:] or "unnamed"
        self._attached_bytes += len(data)
        is_within = len(self.attachments) < _MAX_ATTACHMENTS
        if data and is_within and self._attached_bytes <= self.limits.attached_bytes:
            self.attachments.append(Attachment(shown, data))
        else:
            self.left_out.append(shown)

    def set_title(self, title: str | None) -> None:
        """Set the title, on one line; None or a blank title sets none."""
        self.title = " ".join(clean(title or "").split())[:_MAX_TITLE_CHARS] or None

    def text(self) -> str:
        """Return the whole text."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


def clean(text: str) -> str:
    """Remove characters without meaning and unify line ends; keep line feeds and tabs."""
    return _UNWANTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def refuse_corrupt(what: str) -> NoReturn:
    """Refuse the document because it is not valid for its kind.

    Raises:
        RefusedError: always.
    """
    raise ExtractionError("document_corrupt", what)
