"""The text of docx files: headers, the body with headings, lists, tables and comments, notes, footers."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from worker.extract.draft import ExtractionError, TextBuilder
from worker.extract.encodings import decode_markup
from worker.extract.markup import write_html
from worker.extract.office.drawings import DGM, C, chart_lines, diagram_lines
from worker.extract.office.equations import M, linear, linear_field
from worker.extract.office.marks import apart, comment, image, margin, raised, tidy
from worker.extract.office.numbering import Numbering
from worker.extract.office.package import FALLBACK, DamagedPartError, Package, R
from worker.extract.office.symbols import TICKED, UNKNOWN, UNTICKED, in_symbols, is_symbol_font, symbol

_W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_W14: Final = "{http://schemas.microsoft.com/office/word/2010/wordml}"
_CHOICE: Final = FALLBACK.replace("Fallback", "Choice")
_OBJECT: Final = "{urn:schemas-microsoft-com:office:office}OLEObject"
_CHARTEX: Final = "{http://schemas.microsoft.com/office/drawing/2014/chartex}chart"
# Fallbacks repeat, for older programs, what newer ones show differently; phonetic guides repeat text too.
# Deleted text, text that was moved away, and properties before a change are no longer part of the document.
_SKIPPED: Final = frozenset(
    {FALLBACK, *(f"{_W}{name}" for name in ("rt", "del", "moveFrom", "delText", "delInstrText"))}
    | {f"{_W}{name}Change" for name in ("pPr", "rPr", "sectPr", "tblPr", "tcPr", "trPr", "numbering")}
)
_BREAKS: Final = {
    f"{_W}tab": "\t",
    f"{_W}ptab": "\t",
    f"{_W}br": "\n",
    f"{_W}cr": "\n",
    f"{_W}noBreakHyphen": "-",
}
_HEADING: Final = re.compile(r"(?:heading|title)\s*([1-6])?$", re.IGNORECASE)
_MOST_HEADING: Final = 6
_MOST_FIELDS: Final = 50  # within each other
_MOST_ANCESTORS: Final = 50  # of a style
_OFF: Final = frozenset({"0", "false", "off"})
_DRAWING: Final = "{http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing}"
_PICTURE_PARTS: Final = "{http://schemas.openxmlformats.org/drawingml/2006/picture}"
_PICTURE: Final = f"{_PICTURE_PARTS}pic"
_TEXT_PATH: Final = "{urn:schemas-microsoft-com:vml}textpath"
_SYMBOL_FIELD: Final = re.compile(r'\s*(\d{1,6})(?:.*?\\f\s*"?([^"\\]+?)"?\s*(?:\\|$))?')
_OLD_EQUATIONS: Final = re.compile(r"Equation|MathType", re.IGNORECASE)


def read_docx(data: bytes, draft: TextBuilder) -> None:
    """Read a docx: empty lines between paragraphs, the cells of a row on one line; notes at the end."""
    package = Package(data, draft)
    with package.archive:
        part = package.main("word", "docx")
        root = package.main_xml(part)
        draft.set_title(package.title())
        document = _Document.of(package, part, draft)
        headers, footers = _margins(root, document)
        for line in headers:
            draft.write(line)
        for line in _lines(root, document, part):
            draft.write(line)
        for line in document.notes.lines(document):
            draft.write(line)
        for line in document.comments.rest():
            draft.write(line)
        for line in footers:
            draft.write(line)
        document.warn()


@dataclass(frozen=True, slots=True)
class _Style:
    """A paragraph style: the level of a heading, or 0, and list and level it belongs to."""

    heading: int = 0
    number: tuple[str, int] | None = None


@dataclass(slots=True)
class _Document:
    """What the paragraphs of all parts need to know, and what they have in common so far.

    Attributes:
        num_hidden: runs of hidden text.
        num_unknown: symbols that have no known character.
        num_old_equations: equations that only a picture shows.
    """

    package: Package
    draft: TextBuilder
    part: str
    styles: dict[str, _Style]
    default_style: str
    numbering: Numbering
    notes: "_Notes"
    comments: "_Comments"
    num_hidden: int = 0
    num_unknown: int = 0
    num_old_equations: int = 0
    attached: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, package: Package, part: str, draft: TextBuilder) -> "_Document":
        """Read the parts around the main one."""
        relations = package.relations(part)
        paths = {
            relation.kind: relation.target for relation in relations.values() if not relation.is_external
        }
        numbering = Numbering.of(package, paths.get("numbering"))
        styles, default_style = _styles(package, paths.get("styles"), numbering)
        notes = _Notes(package, {kind: paths[kind] for kind in ("footnotes", "endnotes") if kind in paths})
        comments = _Comments(package, paths.get("comments"))
        return cls(package, draft, part, styles, default_style, numbering, notes, comments)

    def attach(self, path: str) -> None:
        """Attach an embedded file, once."""
        if path not in self.attached:
            self.attached.add(path)
            self.package.attach(path)

    def warn(self) -> None:
        """Warn of what a reader of the text does not see."""
        if self.num_hidden:
            self.draft.warn("hidden_parts", f"Pieces of hidden text were read as well: {self.num_hidden}.")
        if self.num_unknown:
            message = f"Symbols without a known character, replaced by {UNKNOWN}: {self.num_unknown}."
            self.draft.warn("characters_replaced", message)
        if self.num_old_equations:
            message = f"Equations of the old equation editor were not read: {self.num_old_equations}."
            self.draft.warn("parts_not_read", message)


def _styles(package: Package, path: str | None, numbering: Numbering) -> tuple[dict[str, _Style], str]:
    """Map the ids of styles to what they say of their paragraphs; return the id of the default one too."""
    root = None if path is None else package.optional(path, "the styles")
    if root is None:
        return {}, ""
    elements = {each.get(f"{_W}styleId", ""): each for each in root.iterfind(f"{_W}style")}
    default = next(
        (
            its_id
            for its_id, each in elements.items()
            if each.get(f"{_W}type") == "paragraph" and each.get(f"{_W}default") in {"1", "true", "on"}
        ),
        "",
    )
    return {its_id: _style(its_id, elements, numbering) for its_id in elements}, default


def _style(its_id: str, elements: dict[str, Any], numbering: Numbering) -> _Style:
    """Look up a style and those that it is based on."""
    heading, number, level = 0, None, None
    current: str | None = its_id
    for _ in range(_MOST_ANCESTORS):
        element = elements.get(current or "")
        if element is None:
            break
        name = element.find(f"{_W}name")
        if not heading and name is not None and (found := _HEADING.fullmatch(name.get(f"{_W}val", ""))):
            heading = int(found[1] or 1)
        outline = _number_of(element, f"{_W}pPr/{_W}outlineLvl")
        if not heading and outline is not None and 0 <= outline < _MOST_HEADING:
            heading = outline + 1
        properties = element.find(f"{_W}pPr/{_W}numPr")
        if properties is not None:
            level = _number_of(properties, f"{_W}ilvl") if level is None else level
            listed = properties.find(f"{_W}numId")
            if number is None and listed is not None:
                number = listed.get(f"{_W}val", "0")
                styled = numbering.of_styles.get(current or "")
                level = styled[1] if level is None and styled and styled[0] == number else level
        base = element.find(f"{_W}basedOn")
        current = None if base is None else base.get(f"{_W}val")
    return _Style(heading, None if number is None else (number, level or 0))


def _number_of(element: Any, path: str) -> int | None:  # noqa: ANN401  # lxml is untyped
    found = element.find(path)
    try:
        return None if found is None else int(found.get(f"{_W}val", ""))
    except ValueError:
        return None


class _Notes:
    """Footnotes and endnotes, numbered in the order in which the text refers to them."""

    def __init__(self, package: Package, paths: dict[str, str]) -> None:
        self._paths = paths
        self._elements: dict[tuple[str, str], Any] = {}
        self._order: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        for kind, path in paths.items():
            root = package.optional(path, f"the {kind}")
            for each in root if root is not None else ():
                if each.get(f"{_W}type", "normal") == "normal":
                    self._elements[kind, each.get(f"{_W}id", "")] = each

    def mark(self, kind: str, its_id: str) -> str:
        """Return the mark of a note at its place in the text."""
        if (kind, its_id) not in self._elements:
            return ""
        if (kind, its_id) not in self._numbers:
            self._order.append((kind, its_id))
            self._numbers[kind, its_id] = len(self._order)
        return f"[{self._numbers[kind, its_id]}]"

    def lines(self, document: _Document) -> Iterator[str]:
        """Yield the notes that the text refers to, each after its mark."""
        for number, key in enumerate(self._order, 1):  # notes may refer to more notes
            lines = [line.strip() for line in _lines(self._elements[key], document, self._paths[key[0]])]
            if any(lines):
                yield f"[{number}] " + "\n".join(line for line in lines if line) + "\n\n"


class _Comments:
    """Comments, shown where the text refers to them."""

    def __init__(self, package: Package, path: str | None) -> None:
        self._texts: dict[str, str] = {}
        root = None if path is None else package.optional(path, "the comments")
        for each in root if root is not None else ():
            paragraphs = (_plain(paragraph) for paragraph in each.iter(f"{_W}p"))
            if text := " ".join(line for line in paragraphs if line):
                self._texts[each.get(f"{_W}id", "")] = comment(each.get(f"{_W}author", ""), text)

    def take(self, its_id: str) -> str:
        """Return a comment; empty if it is shown already."""
        text = self._texts.pop(its_id, "")
        return apart(text) if text else ""

    def rest(self) -> Iterator[str]:
        """Yield the comments that the text does not refer to."""
        for text in self._texts.values():
            yield text + "\n\n"


def _plain(paragraph: Any) -> str:  # noqa: ANN401
    """Return the text of a paragraph without lists, notes and the like."""
    found = paragraph.iter(f"{_W}t", f"{_W}tab", f"{_W}br")
    pieces = [each.text or "" if each.tag == f"{_W}t" else " " for each in found]
    return " ".join("".join(pieces).split())


def _margins(root: Any, document: _Document) -> tuple[list[str], list[str]]:  # noqa: ANN401
    """List the headers and the footers that pages show, each distinct text once."""
    relations = document.package.relations(document.part)
    sections = list(root.iter(f"{_W}sectPr"))
    has_first = any(_is_on(section.find(f"{_W}titlePg")) for section in sections)
    kinds = {"default", "even"} | ({"first"} if has_first else set())
    margins: dict[str, list[str]] = {"header": [], "footer": []}
    seen = set()
    for section in sections:
        for kind, lines in margins.items():
            for reference in section.iterfind(f"{_W}{kind}Reference"):
                relation = relations.get(reference.get(f"{R}id", ""))
                if relation is None or reference.get(f"{_W}type", "default") not in kinds:
                    continue
                if relation.target in seen:
                    continue
                seen.add(relation.target)
                part = document.package.optional(relation.target, f"a {kind}")
                if part is None:
                    continue
                text = "\n".join(
                    line for each in _lines(part, document, relation.target) if (line := each.strip())
                )
                marked = margin(kind.capitalize(), text)
                if marked and marked not in lines:
                    lines.append(marked)
    return margins["header"], margins["footer"]


def _is_on(element: Any) -> bool:  # noqa: ANN401
    """Return True if a property is there and not switched off."""
    return element is not None and element.get(f"{_W}val", "1") not in _OFF


def _lines(root: Any, document: _Document, part: str) -> Iterator[str]:  # noqa: ANN401
    """Yield the text in the order of the file, without recursion."""
    from lxml import etree

    reader = _Reader(document, part)
    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        if event == "end":
            yield from reader.end(element)
        elif element.tag in _SKIPPED or reader.is_skipped(element):
            walk.skip_subtree()
        elif element.tag == f"{M}oMath":
            reader.add(apart(linear(element)))
            walk.skip_subtree()
        elif element.tag == f"{_W}altChunk":
            yield from reader.foreign(element)
        else:
            reader.begin(element)
    yield from reader.finish()


@dataclass(slots=True)
class _Paragraph:
    """An open paragraph; one of a text box is within another."""

    style: str
    pieces: list[str] = field(default_factory=list)
    number: tuple[str, int] | None = None
    level: int | None = None
    is_joined: bool = False  # with the next, as the mark of its end was deleted
    later: list[str] = field(default_factory=list)  # lines of text boxes, charts and the like in it


@dataclass(slots=True)
class _Field:
    """An open field.

    Attributes:
        code: its instruction so far.
        has_result: its result has begun.
        is_shown: its result has letters.
    """

    code: list[str] = field(default_factory=list)
    has_result: bool = False
    is_shown: bool = False


class _Reader:
    """An assembler of lines: one per paragraph, and one per row in tables, nested ones included."""

    def __init__(self, document: _Document, part: str) -> None:
        self._document = document
        self._relations = document.package.relations(part)
        self._paragraphs: list[_Paragraph] = []
        self._rows: list[list[list[str]]] = []  # the open rows; each holds cells, and each cell lines
        self._joined: list[str] = []  # the beginning of a paragraph whose end was deleted
        self._fields: list[_Field] = []  # the open ones
        self._num_muted = 0  # open content controls that a mark replaces

    def is_skipped(self, element: Any) -> bool:  # noqa: ANN401
        """Return True for a deleted row, and for all but the first choice of alternate content."""
        if element.tag == f"{_W}tr":
            return element.find(f"{_W}trPr/{_W}del") is not None
        return element.tag == _CHOICE and element.getprevious() is not None

    def add(self, text: str) -> None:
        """Add to the innermost paragraph."""
        if self._paragraphs and not self._num_muted and not self._is_argument():
            self._paragraphs[-1].pieces.append(text)
            if self._fields and text:
                self._fields[-1].is_shown = True

    def begin(self, element: Any) -> None:  # noqa: ANN401
        """Collect the element's own text, and open paragraphs, rows and cells."""
        tag = element.tag
        if tag == f"{_W}t":
            self._add_text(element)
        elif tag == f"{_W}p":
            self._paragraphs.append(_Paragraph(self._document.default_style))
        elif tag in _BREAKS:
            if element.getparent().tag == f"{_W}r":
                self.add(_BREAKS[tag])
        elif tag == f"{_W}tr":
            self._rows.append([])
        elif tag == f"{_W}tc":
            if self._rows:
                self._rows[-1].append([])
        elif tag == f"{_W}pPr":
            self._begin_properties(element)
        else:
            self._begin_rare(tag, element)

    def _begin_properties(self, element: Any) -> None:  # noqa: ANN401
        if not self._paragraphs or element.getparent().tag != f"{_W}p":
            return
        paragraph = self._paragraphs[-1]
        if (style := element.find(f"{_W}pStyle")) is not None:
            paragraph.style = style.get(f"{_W}val", "")
        if (number := element.find(f"{_W}numPr")) is not None:
            named = number.find(f"{_W}numId")
            paragraph.level = _number_of(number, f"{_W}ilvl")
            if named is not None:
                paragraph.number = (named.get(f"{_W}val", "0"), paragraph.level or 0)
        mark = element.find(f"{_W}rPr")
        if mark is not None:
            paragraph.is_joined = mark.find(f"{_W}del") is not None or mark.find(f"{_W}moveFrom") is not None

    def _begin_rare(self, tag: str, element: Any) -> None:  # noqa: ANN401
        document, its_id = self._document, element.get(f"{_W}id", "")
        if tag == f"{_W}footnoteReference":
            self.add(document.notes.mark("footnotes", its_id))
        elif tag == f"{_W}endnoteReference":
            self.add(document.notes.mark("endnotes", its_id))
        elif tag == f"{_W}commentReference":
            self.add(document.comments.take(its_id))
        elif tag == f"{_W}sym":
            self._add_symbol(element)
        elif tag == f"{_W}sdt":
            self._begin_control(element)
        elif tag == f"{_W}ffData":
            self._add_field(element)
        elif tag in {f"{_W}fldChar", f"{_W}instrText"}:
            self._read_field(element)
        else:
            self._begin_drawing(tag, element)

    def _is_argument(self) -> bool:
        """Return True within the result of a field that is an argument of another, such as of a condition."""
        is_in_result = bool(self._fields) and self._fields[-1].has_result
        return is_in_result and not all(field.has_result for field in self._fields)

    def _read_field(self, element: Any) -> None:  # noqa: ANN401
        """Follow a field from its instruction to its result; show what has none, but is seen."""
        if element.tag == f"{_W}instrText":
            if self._fields and not self._fields[-1].has_result:
                self._fields[-1].code.append(element.text or "")
            return
        match element.get(f"{_W}fldCharType"):
            case "begin":
                if len(self._fields) < _MOST_FIELDS:
                    self._fields.append(_Field())
            case "separate" if self._fields:
                self._fields[-1].has_result = True
            case "end" if self._fields:
                field = self._fields.pop()
                if not field.is_shown:
                    self.add(self._computed("".join(field.code)))

    def _computed(self, code: str) -> str:
        """Return what a field without a stored result shows; empty if that is unknown."""
        name, _, arguments = code.strip().partition(" ")
        if name.upper() == "EQ":
            return linear_field(arguments)
        if name.upper() == "SYMBOL" and (found := _SYMBOL_FIELD.match(arguments)):
            text = symbol(found[2] or "", int(found[1]))
            self._document.num_unknown += text == UNKNOWN
            return text
        return ""

    def _begin_drawing(self, tag: str, element: Any) -> None:  # noqa: ANN401
        if tag in {f"{C}chart", _CHARTEX}:
            self._add_lines(chart_lines, element.get(f"{R}id", ""))
        elif tag == f"{DGM}relIds":
            self._add_lines(diagram_lines, element.get(f"{R}dm", ""))
        elif tag == _TEXT_PATH:
            self.add(element.get("string", ""))
        elif tag == _PICTURE:
            self._add_picture(element)
        elif tag == _OBJECT:
            self._add_object(element)

    def _add_picture(self, element: Any) -> None:  # noqa: ANN401
        """Show the description of a picture, which the drawing around it or the picture itself has."""
        around = next(element.iterancestors(f"{_DRAWING}inline", f"{_DRAWING}anchor"), None)
        drawn = None if around is None else around.find(f"{_DRAWING}docPr")
        own = element.find(f"{_PICTURE_PARTS}nvPicPr/{_PICTURE_PARTS}cNvPr")
        texts = (each.get("descr") for each in (drawn, own) if each is not None)
        if mark := next((mark for text in texts if (mark := image(text))), ""):
            self.add(apart(mark))

    def _add_text(self, element: Any) -> None:  # noqa: ANN401
        text = (element.text or "").replace("\u00ad", "")  # as a soft hyphen of its own element
        properties = element.getparent().find(f"{_W}rPr")
        if properties is not None and text:
            font = properties.find(f"{_W}rFonts")
            name = None if font is None else font.get(f"{_W}ascii") or font.get(f"{_W}hAnsi")
            if name and is_symbol_font(name):
                text = in_symbols(name, text)
                self._document.num_unknown += text.count(UNKNOWN)
            position = properties.find(f"{_W}vertAlign")
            if position is not None and position.get(f"{_W}val") == "superscript":
                text = raised(text)
            if _is_on(properties.find(f"{_W}vanish")) and text.strip():
                self._document.num_hidden += 1
        self.add(text)

    def _add_symbol(self, element: Any) -> None:  # noqa: ANN401
        try:
            code = int(element.get(f"{_W}char", ""), 16)
        except ValueError:
            return
        text = symbol(element.get(f"{_W}font", ""), code)
        self._document.num_unknown += text == UNKNOWN
        self.add(text)

    def _begin_control(self, element: Any) -> None:  # noqa: ANN401
        """Show a tick box by its state, not by its picture."""
        box = element.find(f"{_W}sdtPr/{_W14}checkbox")
        if box is None:
            return
        state = box.find(f"{_W14}checked")
        is_ticked = state is not None and state.get(f"{_W14}val", "1") not in _OFF
        mark = TICKED if is_ticked else UNTICKED
        if self._paragraphs:
            self.add(mark)
        else:
            self._joined.append(mark)
        self._num_muted += 1

    def _add_field(self, element: Any) -> None:  # noqa: ANN401
        """Show tick boxes and choices of the older forms, whose state is no text."""
        if (box := element.find(f"{_W}checkBox")) is not None:
            state = box.find(f"{_W}checked")
            state = box.find(f"{_W}default") if state is None else state
            self.add(TICKED if _is_on(state) else UNTICKED)
        elif (choice := element.find(f"{_W}ddList")) is not None:
            entries = [each.get(f"{_W}val", "") for each in choice.iterfind(f"{_W}listEntry")]
            chosen = _number_of(choice, f"{_W}result")
            chosen = (_number_of(choice, f"{_W}default") or 0) if chosen is None else chosen
            self.add(entries[chosen] if 0 <= chosen < len(entries) else "")

    def _add_lines(self, read: Any, its_id: str) -> None:  # noqa: ANN401
        relation = self._relations.get(its_id)
        if relation is not None and not relation.is_external:
            text = "\n".join(read(self._document.package, relation.target))
            if text:
                self._place(text, after="\n\n")

    def _add_object(self, element: Any) -> None:  # noqa: ANN401
        relation = self._relations.get(element.get(f"{R}id", ""))
        if _OLD_EQUATIONS.match(element.get("ProgID", "")):
            self._document.num_old_equations += 1
        elif relation is not None and not relation.is_external:
            self._document.attach(relation.target)

    def foreign(self, element: Any) -> Iterator[str]:  # noqa: ANN401
        """Read a whole file of another format that the body shows: HTML in place, others as attachments."""
        relation = self._relations.get(element.get(f"{R}id", ""))
        if relation is None or relation.is_external:
            return
        package = self._document.package
        if not relation.target.lower().endswith((".htm", ".html", ".xhtml")):
            self._document.attach(relation.target)
            return
        inner = TextBuilder(self._document.draft.limits)
        try:
            write_html(decode_markup(package.read(relation.target), inner), inner)
        except (DamagedPartError, ExtractionError):
            package.warn_damaged("an included page")
            return
        yield inner.text().strip() + "\n\n"

    def end(self, element: Any) -> Iterator[str]:  # noqa: ANN401
        """Yield the lines that the end of this element completes."""
        tag = element.tag
        if tag == f"{_W}p" and self._paragraphs:
            yield from self._end_paragraph(self._paragraphs.pop())
        elif tag == f"{_W}tr" and self._rows and element.find(f"{_W}trPr/{_W}del") is None:
            cells = [" ".join(lines).replace("\n", " ") for lines in self._rows.pop()]
            if any(cells):
                yield from self._placed(" | ".join(cells), after="\n")
        elif tag == f"{_W}tbl" and not self._rows:
            yield from self._placed("", after="\n")
        elif tag == f"{_W}sdt" and self._num_muted:
            self._num_muted -= element.find(f"{_W}sdtPr/{_W14}checkbox") is not None

    def finish(self) -> Iterator[str]:
        """Yield what no paragraph follows."""
        if line := "".join(self._joined).strip():
            yield line + "\n\n"

    def _end_paragraph(self, paragraph: _Paragraph) -> Iterator[str]:
        self._fields = [field for field in self._fields if field.has_result]  # no instruction is longer
        pieces = [*self._joined, *paragraph.pieces]
        if paragraph.is_joined and not paragraph.later:
            self._joined = pieces
            return
        self._joined = []
        line = tidy("".join(pieces))
        prefix = self._prefix(paragraph)  # also of an empty one, since it counts
        if line or (prefix and self._rows):
            yield from self._placed((prefix + line).strip() if self._rows else prefix + line, after="\n\n")
        for later in paragraph.later:
            yield from self._placed(later, after="")

    def _prefix(self, paragraph: _Paragraph) -> str:
        """Return the mark of a heading and the number in its list."""
        style = self._document.styles.get(paragraph.style, _Style())
        number = paragraph.number or style.number
        if paragraph.number is None and number and paragraph.level is not None:
            number = (number[0], paragraph.level)
        counted = self._document.numbering.next(*number) if number and number[0] != "0" else ""
        heading = "#" * style.heading + " " if style.heading and not self._rows else ""
        return heading + ("" if heading and counted == "- " else counted)

    def _place(self, line: str, *, after: str) -> None:
        """Add lines that belong to the innermost cell, or follow the outermost paragraph."""
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append(line)
        elif self._paragraphs:
            self._paragraphs[0].later.append(line + after)

    def _placed(self, line: str, *, after: str) -> Iterator[str]:
        """Append the line to the innermost open cell or the paragraph around; yield it if there is none."""
        if self._rows:
            if self._rows[-1] and line.strip():
                self._rows[-1][-1].append(line.strip())
        elif self._paragraphs:
            self._paragraphs[0].later.append(line + after)
        else:
            yield line + after
