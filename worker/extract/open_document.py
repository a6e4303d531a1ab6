"""The text of OpenDocument files: odt as headings, paragraphs and rows; ods with a page for each sheet."""

import zipfile
from typing import Final
from xml.etree import ElementTree as ET

from worker.extract.archive import open_archive, read_member, require
from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt

_TEXT: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE: Final = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE: Final = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_CONTENT: Final = "content.xml"
_MANIFEST: Final = "META-INF/manifest.xml"
# Deleted text, comments, and the numbers of notes.
_SKIPPED: Final = frozenset(
    {f"{_TEXT}tracked-changes", f"{_OFFICE}annotation", f"{_TEXT}note-citation", f"{_OFFICE}scripts"}
)
_PARAGRAPHS: Final = frozenset({f"{_TEXT}p", f"{_TEXT}h"})
_CELLS: Final = frozenset({f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"})
_MOST_BLANKS: Final = 100  # that one element stands for
_MOST_REPEATS: Final = 1000  # of a cell with text; rows of equal cells repeat up to a million times
_MOST_DEPTH: Final = 1000


def read_odt(data: bytes, draft: TextBuilder) -> None:
    """Read an odt: empty lines between paragraphs, the cells of a row on one line; notes at the end."""
    _read(data, draft, _Reader(draft), "odt")


def read_ods(data: bytes, draft: TextBuilder) -> None:
    """Read an ods: the values as shown, separated by tabs, without empty rows."""
    draft.announce_pages(0)
    _read(data, draft, _SheetReader(draft), "ods")


def read_odp(data: bytes, draft: TextBuilder) -> None:
    """Read an odp or odg: each slide is a page."""
    draft.announce_pages(0)
    _read(data, draft, _Reader(draft), "odp")


def _read(data: bytes, draft: TextBuilder, reader: "_Reader", kind: str) -> None:
    with open_archive(data, draft.limits) as archive:
        require(archive, _CONTENT, kind)
        if _MANIFEST in archive.namelist() and b"encryption-data" in read_member(archive, _MANIFEST):
            raise ExtractionError("document_encrypted", "The document needs a password.")
        draft.set_title(_title(archive))
        content = read_member(archive, _CONTENT)
    parser = ET.XMLParser(target=reader)  # noqa: S314  # expat stops entities that expand a hundredfold
    try:
        parser.feed(content)
        parser.close()
    except ET.ParseError:
        refuse_corrupt("A part of the document is not valid XML.")


def _title(archive: zipfile.ZipFile) -> str | None:
    if "meta.xml" not in archive.namelist():
        return None
    try:
        root = ET.fromstring(read_member(archive, "meta.xml"))  # noqa: S314
    except ET.ParseError:
        return None
    return root.findtext(".//{http://purl.org/dc/elements/1.1/}title")


class _Reader:
    """The target of a parser, which writes lines as they end and keeps no tree."""

    def __init__(self, draft: TextBuilder) -> None:
        self._draft = draft
        self._depth = 0
        self._num_skipped = 0  # open elements within one that is skipped, that one included
        self._lines: list[list[str]] = []  # the open paragraphs; one may be in another's note or frame
        self._rows: list[list[list[str]]] = []  # the open rows; each holds cells, and each cell lines
        self._prefix = ""
        self._num_notes = 0  # that are open
        self._notes: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise RecursionError
        if self._num_skipped or tag in _SKIPPED:
            self._num_skipped += 1
        elif tag in _PARAGRAPHS:
            level = attributes.get(f"{_TEXT}outline-level", "1")
            self._prefix = "#" * min(int(level), 6) + " " if tag == f"{_TEXT}h" else self._prefix
            self._lines.append([])
        elif tag == f"{_TEXT}list-item":
            self._prefix = "- "
        elif tag == f"{_TEXT}note":
            self._num_notes += 1
        elif tag == f"{_TABLE}table-row":
            self._begin_row(attributes)
        elif tag in _CELLS:
            self._begin_cell(attributes)
        elif tag == f"{_TABLE}table":
            self._begin_table(attributes)
        else:
            self.data(_blank(tag, attributes))

    def data(self, text: str) -> None:
        """Collect characters of the innermost open paragraph."""
        if self._lines and not self._num_skipped:
            self._lines[-1].append(text)

    def end(self, tag: str) -> None:
        """End an element."""
        self._depth -= 1
        if self._num_skipped:
            self._num_skipped -= 1
        elif tag in _PARAGRAPHS and self._lines:
            self._end_paragraph()
        elif tag == f"{_TEXT}note":
            self._num_notes -= 1
        elif tag == f"{_TABLE}table-row" and self._rows:
            self._end_row()
        elif tag == f"{_TABLE}table" and not self._rows:
            self._end_table()

    def close(self) -> None:
        """Write the notes."""
        for note in self._notes:
            self._draft.write(note + "\n\n")

    def _begin_row(self, attributes: dict[str, str]) -> None:
        del attributes
        self._rows.append([])

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        del attributes
        if self._rows:
            self._rows[-1].append([])

    def _begin_table(self, attributes: dict[str, str]) -> None:
        """Write nothing: tables of a text show no names."""

    def _end_paragraph(self) -> None:
        line = "".join(self._lines.pop()).strip()
        prefix, self._prefix = self._prefix, ""
        if not line:
            return
        if self._num_notes:
            self._notes.append(line)
        elif self._rows and self._rows[-1]:
            self._rows[-1][-1].append(line)
        else:
            self._draft.write(f"{prefix}{line}\n\n")

    def _end_row(self) -> None:
        cells = [" ".join(lines).replace("\n", " ") for lines in self._rows.pop()]
        if not any(cells):
            return
        line = " | ".join(cells)
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append(line)
        else:
            self._draft.write(line + "\n")

    def _end_table(self) -> None:
        self._draft.write("\n")


class _SheetReader(_Reader):
    """The same for sheets: each is a page, and cells and rows may say how often they repeat."""

    def __init__(self, draft: TextBuilder) -> None:
        super().__init__(draft)
        self._num_repeats: list[int] = []  # of each cell of the row
        self._num_rows = 1

    def _begin_table(self, attributes: dict[str, str]) -> None:
        self._draft.announce_pages(len(self._draft.pages or ()) + 1)
        self._draft.begin_page()
        self._draft.write(f"# {attributes.get(f'{_TABLE}name', '')}\n\n")

    def _begin_row(self, attributes: dict[str, str]) -> None:
        super()._begin_row(attributes)
        self._num_repeats = []
        self._num_rows = int(attributes.get(f"{_TABLE}number-rows-repeated", "1"))

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        super()._begin_cell(attributes)
        self._num_repeats.append(int(attributes.get(f"{_TABLE}number-columns-repeated", "1")))

    def _end_row(self) -> None:
        cells = [" ".join(" ".join(lines).split()) for lines in self._rows.pop()]
        pieces: list[str] = []
        for cell, number in zip(cells, self._num_repeats, strict=False):
            pieces += [cell] * min(number, _MOST_REPEATS)
        line = "\t".join(pieces).rstrip("\t")
        if line:
            for _ in range(min(self._num_rows, _MOST_REPEATS)):
                self._draft.write(line + "\n")

    def _end_table(self) -> None:
        """Write nothing: the next page's beginning ends this one."""


def _blank(tag: str, attributes: dict[str, str]) -> str:
    """Return the characters that an empty element stands for."""
    if tag == f"{_TEXT}s":
        return " " * min(int(attributes.get(f"{_TEXT}c", "1")), _MOST_BLANKS)
    return {f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}.get(tag, "")
