"""The text of docx files: the body with its headings, tables and text boxes, then the notes."""

import io
import re
from collections.abc import Iterator
from typing import Any, Final

from worker.extract.archive import open_archive, require
from worker.extract.draft import TextBuilder

_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
# Fallbacks repeat, for older programs, what newer ones show differently; phonetic guides repeat text too.
_SKIPPED: Final = frozenset(
    {"{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback", f"{_W}rt", f"{_W}delText"}
)
_BREAKS: Final = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_HEADING: Final = re.compile(r"(?:heading|title)\s*([1-6])?$", re.IGNORECASE)
_NOTES: Final = ("footnotes", "endnotes")
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"


def read_docx(data: bytes, draft: TextBuilder) -> None:
    """Read a docx: empty lines between paragraphs, the cells of a row on one line."""
    with open_archive(data, draft.limits) as archive:
        require(archive, "word/document.xml", "docx")
    import docx
    from lxml import etree

    document = docx.Document(io.BytesIO(data))
    draft.set_title(document.core_properties.title)
    levels = _heading_levels(document)
    for line in _lines(document.element.body, levels):
        draft.write(line)
    for note in _NOTES:
        for relation in document.part.rels.values():
            if relation.reltype == _OFFICE + note and not relation.is_external:
                parser = etree.XMLParser(resolve_entities=False, no_network=True)
                for line in _lines(etree.fromstring(relation.target_part.blob, parser), {}):
                    draft.write(line)


def _heading_levels(document: Any) -> dict[str, int]:  # noqa: ANN401  # the library is untyped
    """Map the ids of heading styles to heading levels."""
    levels = {}
    for style in document.styles:
        if found := _HEADING.fullmatch(style.name or ""):
            levels[style.style_id] = int(found[1] or 1)
    return levels


def _lines(root: Any, levels: dict[str, int]) -> Iterator[str]:  # noqa: ANN401
    """Yield the text in the order of the file, without recursion."""
    from lxml import etree

    reader = _Reader(levels)
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        if event == "end":
            yield from reader.end(element.tag)
        elif element.tag in _SKIPPED:
            walk.skip_subtree()
        else:
            reader.begin(element)


class _Reader:
    """An assembler of lines: one per paragraph, and one per row in tables, nested ones included."""

    def __init__(self, levels: dict[str, int]) -> None:
        self._levels = levels
        self._pieces: list[str] = []
        self._rows: list[list[list[str]]] = []  # the open rows; each holds cells, and each cell lines
        self._prefix = ""

    def begin(self, element: Any) -> None:  # noqa: ANN401
        """Collect the element's own text, and open rows and cells."""
        tag = element.tag
        if tag == f"{_W}t":
            self._pieces.append(element.text or "")
        elif tag in _BREAKS and element.getparent().tag != f"{_W}tabs":
            self._pieces.append(_BREAKS[tag])
        elif tag == f"{_W}pStyle":
            level = self._levels.get(element.get(f"{_W}val"), 0)
            self._prefix = "#" * level + " " if level else ""
        elif tag == f"{_W}tr":
            self._rows.append([])
        elif tag == f"{_W}tc" and self._rows:
            self._rows[-1].append([])

    def end(self, tag: str) -> Iterator[str]:
        """Yield the lines that the end of this element completes."""
        if tag == f"{_W}p":
            yield from self._end_paragraph()
        elif tag == f"{_W}tr" and self._rows:
            cells = [" ".join(lines).replace("\n", " ") for lines in self._rows.pop()]
            if any(cells):
                yield from self._place(" | ".join(cells), after="\n")
        elif tag == f"{_W}tbl" and not self._rows:
            yield "\n"

    def _end_paragraph(self) -> Iterator[str]:
        line = "".join(self._pieces).strip()
        prefix, self._prefix = self._prefix, ""
        self._pieces.clear()
        if line:
            yield from self._place(line if self._rows else prefix + line, after="\n\n")

    def _place(self, line: str, *, after: str) -> Iterator[str]:
        """Append the line to the innermost open cell, or yield it if no row is open."""
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append(line)
        elif not self._rows:
            yield line + after
