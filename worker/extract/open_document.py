"""The text of OpenDocument files: odt as paragraphs and rows; each sheet or slide of others is a page."""

import posixpath
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from worker.extract.archive import open_archive, read_member, require
from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.office.marks import apart, letters, margin, raised, tidy
from worker.extract.office.marks import comment as marked
from worker.extract.office.numbering import shown as numbered
from worker.extract.office.package import whole
from worker.extract.office.symbols import TICKED, UNTICKED

_TEXT: Final = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE: Final = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE: Final = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_STYLE: Final = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_DRAW: Final = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_FORM: Final = "{urn:oasis:names:tc:opendocument:xmlns:form:1.0}"
_SHOW: Final = "{urn:oasis:names:tc:opendocument:xmlns:presentation:1.0}"
_SVG: Final = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_DC: Final = "{http://purl.org/dc/elements/1.1/}"
_XML: Final = "{http://www.w3.org/XML/1998/namespace}"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
_MATH: Final = "{http://www.w3.org/1998/Math/MathML}"
_CONTENT: Final = "content.xml"
_STYLES: Final = "styles.xml"
_MANIFEST: Final = "META-INF/manifest.xml"
# Deleted text, the numbers of notes, phonetic guides, dates of comments.
_SKIPPED: Final = frozenset(
    {f"{_TEXT}tracked-changes", f"{_TABLE}tracked-changes", f"{_TEXT}note-citation", f"{_TEXT}ruby-text"}
    | {f"{_OFFICE}scripts", f"{_DC}date", f"{_TEXT}sender-initials"}
    | {"{urn:oasis:names:tc:opendocument:xmlns:meta:1.0}creator-initials"}
)
_PARAGRAPHS: Final = frozenset({f"{_TEXT}p", f"{_TEXT}h"})
_CELLS: Final = frozenset({f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"})
_ALTERNATIVES: Final = frozenset({f"{_SVG}title", f"{_SVG}desc"})
_LEVELS: Final = frozenset({f"{_TEXT}list-level-style-number", f"{_TEXT}outline-level-style"})
_BULLETS: Final = frozenset({f"{_TEXT}list-level-style-bullet", f"{_TEXT}list-level-style-image"})
_MARGINS: Final = re.compile(re.escape(_STYLE) + r"(header|footer)(-left|-first)?")
_FIELDS: Final = frozenset(
    {f"{_TEXT}page-number", f"{_TEXT}page-count", f"{_TEXT}sheet-name", f"{_TEXT}date"}
)
_FORMS: Final = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
# Properties of styles that hide a sheet, a slide or text, with their attribute and its value.
_HIDES: Final = {
    f"{_STYLE}table-properties": (f"{_TABLE}display", "false"),
    f"{_STYLE}drawing-page-properties": (f"{_SHOW}visibility", "hidden"),
    f"{_STYLE}text-properties": (f"{_TEXT}display", "none"),
}
_INNER: Final = frozenset({f"{_TEXT}span", f"{_TEXT}note"})
_RAISED: Final = re.compile(r"super|0*[1-9]")
_EXTERNAL: Final = re.compile(rb"<!ENTITY\s+([\w.-]{1,100})\s+(?:SYSTEM|PUBLIC)\b")
_DECLARED_WITHIN: Final = 4096
_OUTLINE: Final = "\0outline"  # the name under which the numbers of headings are kept
_FEWEST_WORDS: Final = 3  # of a footer with a page number that says more
_MOST_BLANKS: Final = 100  # that one element stands for
_MOST_REPEATS: Final = 1000  # of a cell with text; rows of equal cells repeat up to a million times
_MOST_TABS: Final = 20  # in a row; a wider gap is an address instead
_MOST_NAMED: Final = 20  # rows, columns and the like in a warning
_MOST_DEPTH: Final = 1000
_MOST_LEVELS: Final = 10  # of lists


def read_odt(data: bytes, draft: TextBuilder) -> None:
    """Read an odt: empty lines between paragraphs, the cells of a row on one line; notes at the end."""
    _read(data, draft, _Reader, "odt")


def read_ods(data: bytes, draft: TextBuilder) -> None:
    """Read an ods: the values as shown, separated by tabs, without empty rows."""
    draft.announce_pages(0)
    _read(data, draft, _SheetReader, "ods")


def read_odp(data: bytes, draft: TextBuilder) -> None:
    """Read an odp or odg: each slide, with its notes, is a page."""
    draft.announce_pages(0)
    _read(data, draft, _SlideReader, "odp")


def _read(data: bytes, draft: TextBuilder, make: "type[_Reader]", kind: str) -> None:
    with open_archive(data, draft.limits) as archive:
        require(archive, _CONTENT, kind)
        if b"encryption-data" in (_optional(archive, _MANIFEST, draft) or b""):
            raise ExtractionError("document_encrypted", "The document needs a password.")
        draft.set_title(_title(archive, draft))
        styles = _Styles()
        headers, footers = _margins(archive, styles, draft)
        for line in headers if make is _Reader else ():
            draft.write(line)
        reader = make(draft, styles, archive)
        _feed(reader, read_member(archive, _CONTENT), draft)
        reader.finish()
        for line in footers if make is _Reader else ():
            draft.write(line)


def _feed(reader: "_Reader", content: bytes, draft: TextBuilder) -> None:
    """Read the content; one that breaks off is read up to there, with a warning.

    Raises:
        RefusedError: nothing of it can be read.
    """
    if names := _EXTERNAL.findall(content, 0, _DECLARED_WITHIN):
        # What they stand for is outside of the document, where nothing is read.
        content = re.sub(rb"&(?:" + b"|".join(map(re.escape, names)) + rb");", b"", content)
        draft.warn("parts_not_read", f"References to other files were not read: {len(names)}.")
    parser = ET.XMLParser(target=reader)  # noqa: S314  # expat stops entities that expand a hundredfold
    try:
        parser.feed(content)
        parser.close()
    except ET.ParseError:
        if not draft.text().strip() and not reader.has_open_text():
            refuse_corrupt("A part of the document is not valid XML.")
        reader.end_all()
        message = "The document is damaged: the rest of its content could not be read and was left out."
        draft.warn("parts_damaged", message)


def _optional(archive: zipfile.ZipFile, name: str, draft: TextBuilder) -> bytes | None:
    """Read a member that the document can do without; None if it is missing, or damaged, with a warning."""
    if name not in archive.namelist():
        return None
    try:
        return read_member(archive, name)
    except ExtractionError:
        draft.warn("parts_damaged", f"The document is damaged: {name} could not be read and was left out.")
        return None


def _tree(archive: zipfile.ZipFile, name: str, draft: TextBuilder) -> ET.Element | None:
    """Parse a member that the document can do without."""
    raw = _optional(archive, name, draft)
    if raw is None:
        return None
    try:
        return ET.fromstring(raw)  # noqa: S314
    except ET.ParseError:
        draft.warn("parts_damaged", f"The document is damaged: {name} could not be read and was left out.")
        return None


def _title(archive: zipfile.ZipFile, draft: TextBuilder) -> str | None:
    root = _tree(archive, "meta.xml", draft)
    return None if root is None else root.findtext(f".//{_DC}title")


def _margins(archive: zipfile.ZipFile, styles: "_Styles", draft: TextBuilder) -> tuple[list[str], list[str]]:
    """Learn the named styles; list the headers and the footers of pages, each distinct text once."""
    root = _tree(archive, _STYLES, draft)
    margins: dict[str, list[str]] = {"header": [], "footer": []}
    for element in root.iter() if root is not None else ():
        styles.learn(element.tag, element.attrib)
        if (found := _MARGINS.fullmatch(element.tag)) and element.get(f"{_STYLE}display") != "false":
            lines = [" ".join("".join(each.itertext()).split()) for each in element.iter(f"{_TEXT}p")]
            text = "\n".join(line for line in lines if line)
            has_field = any(each.tag in _FIELDS for each in element.iter())
            num_words = len(re.findall(r"[^\W\d_]+", text))
            block = margin(found[1].capitalize(), text)
            if num_words >= (_FEWEST_WORDS if has_field else 1) and block not in margins[found[1]]:
                margins[found[1]].append(block)
    return margins["header"], margins["footer"]


@dataclass(frozen=True, slots=True)
class _Level:
    """A level of a list: its form of numbers, None for a bullet, and what stands around them."""

    form: str | None
    prefix: str = ""
    suffix: str = ""
    num_shown: int = 1  # levels
    start: int = 1


class _Styles:
    """What styles say of the text that has them."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()  # sheets, slides and text
        self.raised: set[str] = set()  # text above the line
        self.lists: dict[str, dict[int, _Level]] = {}
        self._style = ""
        self._list = ""

    def learn(self, tag: str, attributes: dict[str, str]) -> None:
        """Look at an element, in the order of the file."""
        if tag == f"{_STYLE}style":
            self._style = attributes.get(f"{_STYLE}name", "")
        elif hides := _HIDES.get(tag):
            if attributes.get(hides[0]) == hides[1]:
                self.hidden.add(self._style)
            if _RAISED.match(attributes.get(f"{_STYLE}text-position", "")):
                self.raised.add(self._style)
        elif tag == f"{_TEXT}list-style":
            self._list = attributes.get(f"{_STYLE}name", "")
        elif tag == f"{_TEXT}outline-style":
            self._list = _OUTLINE
        elif tag in _LEVELS or tag in _BULLETS:
            self.lists.setdefault(self._list, {})[whole(attributes.get(f"{_TEXT}level"), 1)] = _Level(
                attributes.get(f"{_STYLE}num-format", "") if tag in _LEVELS else None,
                attributes.get(f"{_STYLE}num-prefix", ""),
                attributes.get(f"{_STYLE}num-suffix", ""),
                whole(attributes.get(f"{_TEXT}display-levels"), 1),
                whole(attributes.get(f"{_TEXT}start-value"), 1),
            )


@dataclass(slots=True)
class _List:
    """An open list; `counts` are those of its own level and the ones above."""

    style: str
    level: int
    counts: dict[int, int]


def _number(levels: dict[int, _Level], level: int, counts: dict[int, int]) -> str:
    """Return what stands before an item of a list: its number, or a bullet."""
    here = levels.get(level)
    if here is None or here.form is None:
        return "- "
    if not here.form:
        return ""
    parts = []
    for place in range(max(1, level - here.num_shown + 1), level + 1):
        its = levels.get(place, here)
        if its.form:
            parts.append(numbered(counts.get(place, its.start), _FORMS.get(its.form, "decimal")))
    return f"{here.prefix}{'.'.join(parts)}{here.suffix}".strip() + " "


@dataclass(slots=True)
class _Comment:
    """An open comment."""

    author: str = ""
    lines: list[str] = field(default_factory=list)


class _Reader:
    """The target of a parser, which writes lines as they end and keeps no tree."""

    def __init__(self, draft: TextBuilder, styles: _Styles, archive: zipfile.ZipFile | None) -> None:
        self._draft = draft
        self._styles = styles
        self._archive = archive  # None within an embedded object, which holds no others
        self._depth = 0
        self._num_skipped = 0  # open elements within one that is skipped, that one included
        self._lines: list[list[str]] = []  # the open paragraphs; one may be in another's note or frame
        self._rows: list[list[list[str]]] = []  # the open rows; each holds cells, and each cell lines
        self._prefix = ""
        self._notes: list[list[str]] = []
        self._open_notes: list[int] = []
        self._comment: _Comment | None = None
        self._text: list[str] | None = None  # of a comment's author, or of a picture's description
        self._lists: list[_List] = []
        self._ended: dict[str, dict[int, int]] = {}  # counts of lists, by their style
        self._outline: dict[int, int] = {}
        self._num_hidden = 0
        self._spans: list[bool] = []  # the open ones; True if their text is raised
        self._controls: dict[str, str] = {}
        self._control = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise RecursionError
        if self._num_skipped or tag in _SKIPPED:
            self._num_skipped += 1
        elif tag in _PARAGRAPHS:
            self._begin_paragraph(tag, attributes)
        elif begin := _BEGINNERS.get(tag):
            getattr(self, begin)(attributes)
        elif tag in _CELLS:
            self._begin_cell(attributes)
        elif tag in _ALTERNATIVES or (tag == f"{_DC}creator" and self._comment):
            self._text = []
        elif tag.startswith(_FORM):
            self._learn_control(tag, attributes)
        elif tag.startswith((_STYLE, _TEXT)):
            self._styles.learn(tag, attributes)
            self.data(_blank(tag, attributes))

    def data(self, text: str) -> None:
        """Collect characters of the innermost open paragraph."""
        text = text.replace("\u00ad", "")  # a hyphen that shows only at a line's end
        if self._num_skipped or not text:
            return
        if self._text is not None:
            self._text.append(text)
        elif self._lines:
            self._lines[-1].append(raised(text) if self._spans and self._spans[-1] else text)

    def end(self, tag: str) -> None:
        """End an element."""
        self._depth -= 1
        if self._num_skipped:
            self._num_skipped -= 1
        elif tag in _PARAGRAPHS and self._lines:
            self._end_paragraph()
        elif tag in _INNER:
            self._end_inner(tag)
        elif tag == f"{_OFFICE}annotation":
            self._end_comment()
        elif tag == f"{_TEXT}list" and self._lists:
            self._end_list()
        elif tag == f"{_TABLE}table-row" and self._rows:
            self._end_row()
        elif tag == f"{_TABLE}table" and not self._rows:
            self._end_table()
        elif self._text is not None and (tag in _ALTERNATIVES or tag == f"{_DC}creator"):
            self._end_text(tag)

    def close(self) -> None:
        """Do nothing: `finish` writes what is left."""

    def has_open_text(self) -> bool:
        """Return True if an open paragraph or row holds text."""
        return any(piece.strip() for pieces in self._lines for piece in pieces) or any(
            line for row in self._rows for cell in row for line in cell
        )

    def end_all(self) -> None:
        """End the paragraphs and rows that a damaged file leaves open."""
        self._num_skipped, self._comment, self._text = 0, None, None
        while self._lines:
            self._end_paragraph()
        while self._rows:
            self._end_row()

    def finish(self) -> None:
        """Write the notes, and warn of what a reader of the text does not see."""
        for number, lines in enumerate(self._notes, 1):
            if lines:
                self._draft.write(f"[{number}] " + "\n".join(lines) + "\n\n")
        if self._num_hidden:
            self._draft.warn("hidden_parts", f"Pieces of hidden text were read as well: {self._num_hidden}.")

    def _begin_paragraph(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == f"{_TEXT}h":
            level = min(max(whole(attributes.get(f"{_TEXT}outline-level"), 1), 1), _MOST_LEVELS)
            self._prefix = "#" * min(level, 6) + " " + self._prefix.replace("- ", "")
            if not self._lists and attributes.get(f"{_TEXT}is-list-header") != "true":
                self._prefix += self._count_heading(level, attributes)
        self._num_hidden += attributes.get(f"{_TEXT}style-name", "") in self._styles.hidden
        self._lines.append([])

    def _count_heading(self, level: int, attributes: dict[str, str]) -> str:
        levels = self._styles.lists.get(_OUTLINE, {})
        if not levels.get(level, _Level("")).form:
            return ""
        start = levels[level].start
        self._outline[level] = self._outline.get(level, start - 1) + 1
        if attributes.get(f"{_TEXT}restart-numbering") == "true":
            self._outline[level] = whole(attributes.get(f"{_TEXT}start-value"), start)
        self._outline = {place: count for place, count in self._outline.items() if place <= level}
        return _number(levels, level, self._outline)

    def _begin_list(self, attributes: dict[str, str]) -> None:
        style = attributes.get(f"{_TEXT}style-name") or (self._lists[-1].style if self._lists else "")
        if self._lists:
            counts = {
                place: count for place, count in self._lists[-1].counts.items() if place <= len(self._lists)
            }
        else:
            goes_on = (
                attributes.get(f"{_TEXT}continue-numbering") == "true"
                or f"{_TEXT}continue-list" in attributes
            )
            counts = dict(self._ended.get(style, {})) if goes_on else {}
        self._lists.append(_List(style, min(len(self._lists) + 1, _MOST_LEVELS), counts))

    def _begin_item(self, attributes: dict[str, str]) -> None:
        if not self._lists:
            self._prefix = "- "
            return
        open_list = self._lists[-1]
        levels = self._styles.lists.get(open_list.style, {})
        start = levels.get(open_list.level, _Level(None)).start
        count = open_list.counts.get(open_list.level, start - 1) + 1
        open_list.counts[open_list.level] = whole(attributes.get(f"{_TEXT}start-value"), count)
        self._prefix = _number(levels, open_list.level, open_list.counts)

    def _end_inner(self, tag: str) -> None:
        if tag == f"{_TEXT}span" and self._spans:
            self._spans.pop()
        elif tag == f"{_TEXT}note" and self._open_notes:
            self._open_notes.pop()

    def _end_list(self) -> None:
        ended = self._lists.pop()
        if not self._lists:
            self._ended[ended.style] = ended.counts

    def _begin_list_header(self, attributes: dict[str, str]) -> None:
        del attributes
        self._prefix = ""

    def _begin_note(self, attributes: dict[str, str]) -> None:
        del attributes
        self._notes.append([])
        self.data(f"[{len(self._notes)}]")
        self._open_notes.append(len(self._notes) - 1)

    def _begin_comment(self, attributes: dict[str, str]) -> None:
        del attributes
        self._comment = _Comment()

    def _end_comment(self) -> None:
        comment, self._comment = self._comment, None
        if comment is None or not comment.lines:
            return
        text = marked(comment.author, " ".join(comment.lines))
        if self._lines:
            self._lines[-1].append(apart(text))
        else:
            self._place(text)

    def _end_text(self, tag: str) -> None:
        text = " ".join("".join(self._text or ()).split())
        self._text = None
        if tag == f"{_DC}creator":
            if self._comment:
                self._comment.author = text
        elif text:
            self.data(apart(f"[Image: {text}]"))

    def _begin_span(self, attributes: dict[str, str]) -> None:
        style = attributes.get(f"{_TEXT}style-name", "")
        self._num_hidden += style in self._styles.hidden
        self._spans.append(style in self._styles.raised or (bool(self._spans) and self._spans[-1]))

    def _begin_section(self, attributes: dict[str, str]) -> None:
        self._num_hidden += attributes.get(f"{_TEXT}display", "true") == "none"

    def _begin_object(self, attributes: dict[str, str]) -> None:
        """Read an embedded chart, equation or table where it is shown."""
        path = posixpath.normpath(unquote(attributes.get(_HREF, "")))
        if self._archive is None or not path or path.startswith("."):
            return
        root = _tree(self._archive, posixpath.join(path, _CONTENT), self._draft)
        if root is None:
            return
        if root.tag == f"{_MATH}math":
            self.data(apart(" ".join((root.findtext(f".//{_MATH}annotation") or _flat(root)).split())))
            return
        inner = TextBuilder(self._draft.limits)
        reader = _Reader(inner, self._styles, None)
        body = root.find(f"{_OFFICE}body")
        _walk(root if body is None else body, reader)
        reader.finish()
        is_chart = root.find(f".//{_OFFICE}chart") is not None
        if text := re.sub(r"\n{2,}", "\n", inner.text()).strip():
            self._place(("[Chart]\n" if is_chart else "") + text)

    def _begin_ole(self, attributes: dict[str, str]) -> None:
        path = posixpath.normpath(unquote(attributes.get(_HREF, "")))
        if self._archive is not None and path in self._archive.namelist():
            data = _optional(self._archive, path, self._draft)
            if data is not None:
                self._draft.attach(posixpath.basename(path), data)

    def _learn_control(self, tag: str, attributes: dict[str, str]) -> None:
        """Keep what a form's control shows, until the text refers to it."""
        kind = tag.removeprefix(_FORM)
        its_id = attributes.get(f"{_XML}id") or attributes.get(f"{_FORM}id", "")
        label = attributes.get(f"{_FORM}label", "")
        if kind in {"checkbox", "radio"}:
            state = attributes.get(f"{_FORM}current-state") or attributes.get(f"{_FORM}state", "")
            chosen = attributes.get(f"{_FORM}current-selected") or attributes.get(f"{_FORM}selected", "")
            is_ticked = state == "checked" or chosen == "true"
            self._controls[its_id] = f"{TICKED if is_ticked else UNTICKED} {label}".strip()
        elif kind == "option":
            selected = attributes.get(f"{_FORM}current-selected") or attributes.get(f"{_FORM}selected")
            if selected == "true" and not self._controls.get(self._control):
                self._controls[self._control] = label
        elif its_id:
            value = attributes.get(f"{_FORM}current-value") or attributes.get(f"{_FORM}value") or label
            self._controls[its_id] = value if kind != "button" else ""
            self._control = its_id

    def _begin_control(self, attributes: dict[str, str]) -> None:
        text = self._controls.get(attributes.get(f"{_DRAW}control", ""), "")
        if text and self._lines:
            self.data(apart(text))
        elif text:
            self._place(text)

    def _begin_page(self, attributes: dict[str, str]) -> None:
        """Do nothing: only presentations have pages of their own."""

    def _begin_show_notes(self, attributes: dict[str, str]) -> None:
        """Do nothing: only presentations have notes of this kind."""

    def _begin_frame(self, attributes: dict[str, str]) -> None:
        """Do nothing: only presentations have titles in frames."""

    def _begin_row(self, attributes: dict[str, str]) -> None:
        del attributes
        self._rows.append([])

    def _begin_column(self, attributes: dict[str, str]) -> None:
        """Do nothing: only sheets have hidden columns."""

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        del attributes
        if self._rows:
            self._rows[-1].append([])

    def _begin_table(self, attributes: dict[str, str]) -> None:
        """Write nothing: tables of a text show no names."""

    def _end_paragraph(self) -> None:
        line = tidy("".join(self._lines.pop()))
        if self._comment is not None:
            self._comment.lines += [line] if line else []
            return
        prefix, self._prefix = self._prefix, ""
        if not line:
            return
        if self._open_notes:
            self._notes[self._open_notes[-1]].append(line)
        elif self._rows and self._rows[-1]:
            self._rows[-1][-1].append(("" if prefix.startswith("#") else prefix) + line)
        else:
            self._write(f"{prefix}{line}\n\n")

    def _write(self, text: str) -> None:
        self._draft.write(text)

    def _place(self, text: str) -> None:
        """Put a text of its own into the open cell, or write it."""
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append(text)
        else:
            self._write(text + "\n\n")

    def _end_row(self) -> None:
        cells = [" ".join(lines).replace("\n", " ") for lines in self._rows.pop()]
        if not any(cells):
            return
        line = " | ".join(cells)
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append(line)
        else:
            self._write(line + "\n")

    def _end_table(self) -> None:
        self._write("\n")


class _SheetReader(_Reader):
    """The same for sheets: each is a page, and cells and rows may say how often they repeat."""

    def __init__(self, draft: TextBuilder, styles: _Styles, archive: zipfile.ZipFile | None) -> None:
        super().__init__(draft, styles, archive)
        self._num_repeats: list[int] = []  # of each cell of the row
        self._num_rows = 1
        self._row = 0  # the one that is open, from 1
        self._column = 0
        self._is_hidden_row = False
        self._value = ""  # of the open cell, if it shows no text
        self._names: list[str] = []
        self._hidden_sheets: list[int] = []
        self._hidden_rows: list[str] = []
        self._hidden_columns: list[str] = []
        self._num_formulas = 0

    def finish(self) -> None:
        """Write notes; warn of hidden sheets and of formulas without a value."""
        super().finish()
        if self._hidden_sheets:
            names = ", ".join(self._names[number - 1] for number in self._hidden_sheets[:_MOST_NAMED])
            self._draft.warn(
                "hidden_parts", f"Hidden sheets were read and marked: {names}.", self._hidden_sheets
            )
        if self._num_formulas:
            message = f"Formulas without a stored value are shown as formulas: {self._num_formulas:,}."
            self._draft.warn("formulas_without_values", message)

    def _begin_table(self, attributes: dict[str, str]) -> None:
        if self._rows:  # a table within a cell
            return
        self._draft.announce_pages(len(self._draft.pages or ()) + 1)
        self._draft.begin_page()
        name = attributes.get(f"{_TABLE}name", "")
        self._names.append(name)
        is_hidden = attributes.get(f"{_TABLE}style-name", "") in self._styles.hidden
        if is_hidden:
            self._hidden_sheets.append(len(self._names))
        self._draft.write(f"# {name}{' (hidden sheet)' if is_hidden else ''}\n\n")
        self._row = self._column = 0

    def _begin_column(self, attributes: dict[str, str]) -> None:
        number = whole(attributes.get(f"{_TABLE}number-columns-repeated"), 1)
        if attributes.get(f"{_TABLE}visibility", "visible") != "visible" and len(self._hidden_columns) < 1000:
            first, last = letters(self._column), letters(self._column + number - 1)
            self._hidden_columns.append(first if first == last else f"{first}-{last}")
        self._column += number

    def _begin_row(self, attributes: dict[str, str]) -> None:
        super()._begin_row(attributes)
        self._num_repeats = []
        self._row += self._num_rows if self._row else 1
        self._num_rows = whole(attributes.get(f"{_TABLE}number-rows-repeated"), 1)
        self._is_hidden_row = attributes.get(f"{_TABLE}visibility", "visible") != "visible"

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        super()._begin_cell(attributes)
        self._num_repeats.append(whole(attributes.get(f"{_TABLE}number-columns-repeated"), 1))
        self._values_of(attributes)

    def _values_of(self, attributes: dict[str, str]) -> None:
        """Keep what the cell shows if it has no text of its own, as in files that other programs write."""
        kind = attributes.get(f"{_OFFICE}value-type", "")
        value = next(
            (
                attributes[f"{_OFFICE}{name}"]
                for name in ("date-value", "time-value", "boolean-value", "string-value", "value")
                if f"{_OFFICE}{name}" in attributes
            ),
            "",
        )
        if kind == "percentage":
            with suppress(ValueError):
                value = f"{float(value) * 100:.10g}%"
        if not value and (formula := attributes.get(f"{_TABLE}formula")):
            value = "=" + formula.partition("=")[2]
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append("\0" + value)

    def _end_row(self) -> None:
        pieces: list[str] = []
        at = column = 0
        for lines, number in zip(self._rows.pop(), self._num_repeats, strict=False):
            text = self._cell(lines)
            if text:
                for _ in range(min(number, _MOST_REPEATS)):
                    gap = column - at
                    shown = text
                    if gap > _MOST_TABS:
                        gap, shown = 0, f"[{letters(column)}{self._row}] {text}"
                    pieces += ["\t" * (gap + bool(pieces)), shown]
                    column += 1
                    at = column
                column += number - min(number, _MOST_REPEATS)
            else:
                column += number
        line = "".join(pieces)
        if not line:
            return
        if self._is_hidden_row and len(self._hidden_rows) < _MOST_NAMED:
            self._hidden_rows.append(str(self._row))
        for _ in range(min(self._num_rows, _MOST_REPEATS)):
            self._draft.write(line + "\n")

    def _cell(self, lines: list[str]) -> str:
        """Return the cell's text, or its value if it shows none."""
        value = next((line[1:] for line in lines if line.startswith("\0")), "")
        text = " ".join(" ".join(line for line in lines if not line.startswith("\0")).split())
        if not text and value.startswith("="):
            self._num_formulas += 1
        return text or " ".join(value.split())

    def _end_table(self) -> None:
        """Name the hidden rows and columns; the next page's beginning ends this one."""
        hidden = []
        if self._hidden_rows:
            hidden.append(f"rows {', '.join(self._hidden_rows)}")
        if self._hidden_columns:
            hidden.append(f"columns {', '.join(self._hidden_columns[:_MOST_NAMED])}")
        if hidden and self._names:
            message = f"Hidden parts of sheet {self._names[-1]} were read as well: {' and '.join(hidden)}."
            self._draft.warn("hidden_parts", message, [len(self._names)])
        self._hidden_rows, self._hidden_columns = [], []


class _SlideReader(_Reader):
    """The same for presentations and drawings: each slide is a page."""

    def __init__(self, draft: TextBuilder, styles: _Styles, archive: zipfile.ZipFile | None) -> None:
        super().__init__(draft, styles, archive)
        self._is_title = False
        self._hidden_slides: list[int] = []

    def finish(self) -> None:
        """Write notes; warn of hidden slides."""
        super().finish()
        if self._hidden_slides:
            listed = ", ".join(map(str, self._hidden_slides[:_MOST_NAMED]))
            message = f"Slides hidden in the show were read and marked: {listed}."
            self._draft.warn("hidden_parts", message, self._hidden_slides)

    def _begin_page(self, attributes: dict[str, str]) -> None:
        self._draft.announce_pages(len(self._draft.pages or ()) + 1)
        self._draft.begin_page()
        if attributes.get(f"{_DRAW}style-name", "") in self._styles.hidden:
            self._hidden_slides.append(len(self._draft.pages or ()))
            self._draft.write("[Hidden slide]\n\n")

    def _begin_show_notes(self, attributes: dict[str, str]) -> None:
        del attributes
        self._is_title = False
        self._draft.write("\n")

    def _begin_frame(self, attributes: dict[str, str]) -> None:
        self._is_title = attributes.get(f"{_SHOW}class") == "title"

    def _write(self, text: str) -> None:
        self._draft.write(f"# {text}" if self._is_title else re.sub(r"\n\n$", "\n", text))


# Names of methods, since the readers of sheets and slides have some of their own.
_BEGINNERS: Final[Mapping[str, str]] = {
    f"{_TEXT}list": "_begin_list",
    f"{_TEXT}list-item": "_begin_item",
    f"{_TEXT}list-header": "_begin_list_header",
    f"{_TEXT}note": "_begin_note",
    f"{_OFFICE}annotation": "_begin_comment",
    f"{_TABLE}table": "_begin_table",
    f"{_TABLE}table-column": "_begin_column",
    f"{_TABLE}table-row": "_begin_row",
    f"{_DRAW}page": "_begin_page",
    f"{_DRAW}frame": "_begin_frame",
    f"{_DRAW}object": "_begin_object",
    f"{_DRAW}object-ole": "_begin_ole",
    f"{_DRAW}control": "_begin_control",
    f"{_SHOW}notes": "_begin_show_notes",
    f"{_TEXT}span": "_begin_span",
    f"{_TEXT}section": "_begin_section",
}


def _walk(root: ET.Element, reader: _Reader) -> None:
    """Send the elements of a tree to a reader, as a parser does, without recursion."""
    open_elements: list[tuple[ET.Element, int]] = [(root, 0)]
    reader.start(root.tag, root.attrib)
    reader.data(root.text or "")
    while open_elements:
        element, place = open_elements.pop()
        if place < len(element):
            open_elements.append((element, place + 1))
            child = element[place]
            reader.start(child.tag, child.attrib)
            reader.data(child.text or "")
            open_elements.append((child, 0))
        else:
            reader.end(element.tag)
            reader.data(element.tail or "")


def _flat(root: ET.Element) -> str:
    return " ".join(text for each in root.itertext() if (text := each.strip()))


def _blank(tag: str, attributes: dict[str, str]) -> str:
    """Return the characters that an empty element stands for."""
    if tag == f"{_TEXT}s":
        return " " * min(whole(attributes.get(f"{_TEXT}c"), 1), _MOST_BLANKS)
    return {f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}.get(tag, "")
