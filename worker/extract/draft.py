"""A document's text while it is put together, within its limits, and the reasons why there can be none."""

import re
from dataclasses import dataclass
from typing import Final, NoReturn

# What no text has a use for and Postgres, JSON or a terminal may choke on; half of a character that is split.
_UNWANTED: Final = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_PAGE_BREAK: Final = "\n\n"
_MAX_TITLE_CHARS: Final = 300
_MAX_NAMED_PAGES: Final = 1000


class RefusedError(Exception):
    """There is no text.

    Attributes:
        code: one of `jobs.document_states.Fault`.
        message: for the document's owner.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """What one document may take.

    Attributes:
        memory_bytes: address space of the process.
        seconds: of CPU.
    """

    memory_bytes: int
    seconds: int
    max_pages: int
    max_characters: int


class Draft:
    """The text so far.

    Attributes:
        limits: of this document.
        pages: the character at which each page starts; None: the kind has none.
        title: as the document gives it.
        warnings: `{code, message, pages?}`.
    """

    def __init__(self, limits: Limits) -> None:
        self.pages: list[int] | None = None
        self.title: str | None = None
        self.warnings: list[dict[str, object]] = []
        self.limits = limits
        self._pieces: list[str] = []
        self._num_chars = 0

    def write_as_it_is(self, text: str) -> None:
        """The text goes on with this.

        Raises:
            RefusedError: it is longer than a text may be.
        """
        self._num_chars += len(text)
        if self._num_chars > self.limits.max_characters:
            most = f"{self.limits.max_characters:,}"
            raise RefusedError("document_too_large", f"The text has more than {most} characters.")
        self._pieces.append(text)

    def write(self, text: str) -> None:
        """The text goes on with this, without characters that stand for nothing; raises as the other does."""
        self.write_as_it_is(clean(text))

    def begin_page(self) -> None:
        """What is written from now on stands on the next page."""
        if self.pages is None:
            self.pages = []
        elif self._num_chars and self._num_chars > self.pages[-1]:
            self.write_as_it_is(_PAGE_BREAK)
        self.pages.append(self._num_chars)

    def announce_pages(self, num_pages: int) -> None:
        """So many pages are to come.

        Raises:
            RefusedError: more than a document may have.
        """
        if num_pages > self.limits.max_pages:
            message = f"The document has {num_pages:,} pages; {self.limits.max_pages:,} are read at most."
            raise RefusedError("document_too_many_pages", message)
        self.pages = [] if self.pages is None else self.pages

    def warn(self, code: str, message: str, pages: list[int] | None = None) -> None:
        """The reader should know this; `pages` are counted from 1."""
        warning: dict[str, object] = {"code": code, "message": message}
        if pages is not None:
            warning["pages"] = pages[:_MAX_NAMED_PAGES]
        self.warnings.append(warning)

    def set_title(self, title: str | None) -> None:
        """The title on one line; None: it has none."""
        self.title = " ".join(clean(title or "").split())[:_MAX_TITLE_CHARS] or None

    def text(self) -> str:
        """The whole text."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


def clean(text: str) -> str:
    """The text without characters that stand for nothing; line feeds and tabs stay."""
    return _UNWANTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def refuse_corrupt(what: str) -> NoReturn:
    """The document is not as its kind has to be.

    Raises:
        RefusedError: says so.
    """
    raise RefusedError("document_corrupt", what)
