"""The text of pptx files: each slide, with its charts, comments and notes, is a page."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from worker.extract.draft import TextBuilder, refuse_corrupt
from worker.extract.office.drawings import DGM, A, C, chart_lines, diagram_lines
from worker.extract.office.equations import M, linear
from worker.extract.office.marks import apart, comment, image, margin, raised, tidy
from worker.extract.office.numbering import shown
from worker.extract.office.package import FALLBACK, DamagedPartError, Package, R, Relation, whole
from worker.extract.office.symbols import in_symbols, is_symbol_font

_P: Final = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_P188: Final = "{http://schemas.microsoft.com/office/powerpoint/2018/8/main}"
_CHARTEX: Final = "{http://schemas.microsoft.com/office/drawing/2014/chartex}chart"
_TITLES: Final = frozenset({"title", "ctrTitle"})
_SYMBOLS: Final = re.compile("[\uf000-\uf0ff]")
_OFF: Final = frozenset({"0", "false", "off"})
# The forms of automatic numbers, without the ending that names the punctuation.
_FORMS: Final = {
    "alphaLc": "lowerLetter",
    "alphaUc": "upperLetter",
    "romanLc": "lowerRoman",
    "romanUc": "upperRoman",
    "arabic": "decimal",
}
_PUNCTUATION: Final = {"Period": "{}.", "ParenR": "{})", "ParenBoth": "({})", "Plain": "{}"}


def read_pptx(data: bytes, draft: TextBuilder) -> None:
    """Read a pptx, slide by slide; hidden slides are marked."""
    package = Package(data, draft)
    with package.archive:
        part = package.main("ppt", "pptx")
        root = package.main_xml(part)
        draft.set_title(package.title())
        relations = package.relations(part)
        slides = [relations.get(each.get(f"{R}id", "")) for each in root.iterfind(f"{_P}sldIdLst/{_P}sldId")]
        draft.announce_pages(len(slides))
        deck = _Deck(package, draft, relations)
        for number, slide in enumerate(slides, 1):
            draft.begin_page()
            deck.read_slide(number, slide)
        deck.warn(len(slides))


class _Deck:
    """What the slides have in common."""

    def __init__(self, package: Package, draft: TextBuilder, relations: dict[str, Relation]) -> None:
        self._package = package
        self._draft = draft
        self._damaged: list[int] = []
        self._hidden: list[int] = []
        self._attached: set[str] = set()
        self._authors: dict[str, str] = {}
        self._backgrounds: set[str] = set()  # layouts and masters, and their texts, that are written
        self._with_hidden: list[int] = []  # slides with hidden shapes
        for relation in relations.values():
            if relation.kind in {"commentAuthors", "authors"}:
                authors = package.optional(relation.target, "the authors of comments")
                for each in authors if authors is not None else ():
                    self._authors[each.get("id", "")] = each.get("name", "")

    def read_slide(self, number: int, slide: Relation | None) -> None:
        """Write a slide; one that is damaged is left out."""
        try:
            what = f"a piece of slide {number}"
            root = None if slide is None else self._package.salvaged(slide.target, what, [number])
        except DamagedPartError:
            root = None
        if slide is None or root is None:
            self._damaged.append(number)
            return
        if root.get("show", "1") in _OFF:
            self._hidden.append(number)
            self._draft.write("[Hidden slide]\n\n")
        relations = self._package.relations(slide.target)
        shapes = _Shapes(self, relations)
        for line in shapes.lines(root):
            self._draft.write(line)
        if shapes.num_hidden:
            self._with_hidden.append(number)
        self._write_background(root, relations, "slideLayout")
        self._write_remarks(relations, number)

    def _write_remarks(self, relations: dict[str, Relation], number: int) -> None:
        """Write the comments of a slide and its speaker's notes."""
        for relation in relations.values():
            if relation.kind == "comments" and not relation.is_external:
                for line in self._comments(relation.target, number):
                    self._draft.write(line + "\n")
        for relation in relations.values():
            if relation.kind == "notesSlide" and (notes := self._notes(relation.target, number)):
                self._draft.write(f"\n{notes}\n")

    def _write_background(self, above: Any, relations: dict[str, Relation], kind: str) -> None:  # noqa: ANN401
        """Write texts of the layout and its master, once: a stamp such as "Confidential" on all slides."""
        part = next((each.target for each in relations.values() if each.kind == kind), "")
        if not part or part in self._backgrounds or above.get("showMasterSp", "1") in _OFF:
            return
        self._backgrounds.add(part)
        root = self._package.optional(part, "the background of slides")
        if root is None:
            return
        for each in root.iter(f"{_P}sp"):
            text = " ".join(line for paragraph in each.iter(f"{A}p") if (line := _line(paragraph)))
            if text and _placeholder(each) is None and text not in self._backgrounds:
                self._backgrounds.add(text)
                self._draft.write(f"{margin('Background', text).strip()}\n")
        if kind == "slideLayout":
            self._write_background(root, self._package.relations(part), "slideMaster")

    def chart(self, part: str) -> Iterator[str]:
        """Yield the lines of a chart."""
        return chart_lines(self._package, part)

    def diagram(self, part: str) -> Iterator[str]:
        """Yield the lines of a diagram."""
        return diagram_lines(self._package, part)

    def attach(self, part: str) -> None:
        """Attach an embedded file, once."""
        if part not in self._attached:
            self._attached.add(part)
            self._package.attach(part)

    def warn(self, num_slides: int) -> None:
        """Warn of hidden and damaged slides.

        Raises:
            RefusedError: all slides are damaged.
        """
        if self._damaged and len(self._damaged) == num_slides:
            refuse_corrupt("All slides are missing or damaged.")
        if self._damaged:
            self._package.warn_damaged(_named(self._damaged), self._damaged)
        if self._hidden:
            message = f"{_named(self._hidden).capitalize()}: hidden in the show, but read and marked."
            self._draft.warn("hidden_parts", message, self._hidden)
        if self._with_hidden:
            message = f"Hidden shapes were read as well: {_named(self._with_hidden)}."
            self._draft.warn("hidden_parts", message, self._with_hidden)

    def _notes(self, part: str, number: int) -> str:
        """Return the speaker's notes: the body of a notes page, without its pictures of slide and number."""
        root = self._package.optional(part, f"the notes of slide {number}")
        if root is None:
            return ""
        lines = []
        for shape in root.iter(f"{_P}sp"):
            kind = _placeholder(shape)
            if kind is None or kind == "body":
                lines += [line for each in shape.iter(f"{A}p") if (line := _line(each))]
        return "\n".join(lines)

    def _comments(self, part: str, number: int) -> Iterator[str]:
        root = self._package.optional(part, f"the comments of slide {number}")
        if root is None:
            return
        for each in root.iter(f"{_P}cm", f"{_P188}cm", f"{_P188}reply"):
            author = self._authors.get(each.get("authorId", ""), "")
            text = each.findtext(f"{_P}text") or " ".join(
                _line(paragraph) for paragraph in each.iterfind(f"{_P188}txBody/{A}p")
            )
            if text := " ".join(text.split()):
                yield comment(author, text)


def _named(slides: list[int]) -> str:
    return f"{'slide' if len(slides) == 1 else 'slides'} {', '.join(map(str, slides[:50]))}"


class _Shapes:
    """A reader of the shapes of a slide, in the order of the file, without recursion."""

    def __init__(self, deck: _Deck, relations: dict[str, Relation]) -> None:
        self._deck = deck
        self._relations = relations
        self.num_hidden = 0
        self._is_title = False
        self._rows: list[list[list[str]]] = []
        self._numbers: Counter[int] = Counter()  # of the automatic numbers, by level
        self._form: dict[int, str] = {}

    def lines(self, root: Any) -> Iterator[str]:  # noqa: ANN401  # lxml is untyped
        """Yield the lines of all shapes."""
        from lxml import etree

        walk = etree.iterwalk(root, events=("start", "end"))
        for event, element in walk:
            tag = element.tag
            if event == "start":
                if tag in {FALLBACK, f"{_P}timing", f"{_P}transition"}:
                    walk.skip_subtree()
                else:
                    yield from self._begin(element)
            elif tag == f"{A}p":
                yield from self._end_paragraph(element)
            elif tag == f"{A}tr" and self._rows:
                cells = [" ".join(" ".join(lines).split()) for lines in self._rows.pop()]
                if any(cells):
                    yield " | ".join(cells) + "\n"

    def _begin(self, element: Any) -> Iterator[str]:  # noqa: ANN401
        tag = element.tag
        if tag == f"{_P}sp":
            self._is_title = _placeholder(element) in _TITLES
        elif tag in {f"{_P}txBody", f"{A}txBody"}:
            self._numbers.clear()
        elif tag == f"{_P}graphicFrame":
            self._is_title = False
        elif tag == f"{_P}pic":
            properties = element.find(f"{_P}nvPicPr/{_P}cNvPr")
            if properties is not None and (mark := image(properties.get("descr"))):
                yield mark + "\n"
        elif tag == f"{A}tr":
            self._rows.append([])
        elif tag == f"{A}tc" and self._rows:
            self._rows[-1].append([])
        elif tag == f"{_P}cNvPr":
            self.num_hidden += element.get("hidden", "0") not in _OFF
        else:
            yield from self._related(element)

    def _related(self, element: Any) -> Iterator[str]:  # noqa: ANN401
        """Yield the lines of a chart or diagram; attach an embedded file."""
        tag = element.tag
        if tag in {f"{C}chart", _CHARTEX} and (part := self._target(element, "id")):
            yield "\n"
            for line in self._deck.chart(part):
                yield line + "\n"
            yield "\n"
        elif tag == f"{DGM}relIds" and (part := self._target(element, "dm")):
            for line in self._deck.diagram(part):
                yield line + "\n"
        elif tag == f"{_P}oleObj" and (part := self._target(element, "id")):
            self._deck.attach(part)

    def _target(self, element: Any, name: str) -> str | None:  # noqa: ANN401
        relation = self._relations.get(element.get(R + name, ""))
        return None if relation is None or relation.is_external else relation.target

    def _end_paragraph(self, paragraph: Any) -> Iterator[str]:  # noqa: ANN401
        line = _line(paragraph)
        if not line:
            return
        line = self._number(paragraph) + line
        if self._rows and self._rows[-1]:
            self._rows[-1][-1].append(line)
        elif self._is_title:
            yield f"# {line}\n\n"
        else:
            yield f"{line}\n"

    def _number(self, paragraph: Any) -> str:  # noqa: ANN401
        """Return the automatic number of a paragraph; empty if it has none."""
        properties = paragraph.find(f"{A}pPr")
        level = 0
        automatic = None
        if properties is not None:
            level = whole(properties.get("lvl"), 0)
            automatic = properties.find(f"{A}buAutoNum")
        for below in [each for each in self._numbers if each > level]:
            del self._numbers[below]
        if automatic is None:
            self._numbers.pop(level, None)
            return ""
        form = automatic.get("type", "arabicPeriod")
        if self._form.get(level) != form:
            self._numbers.pop(level, None)
            self._form[level] = form
        if level not in self._numbers:
            self._numbers[level] = whole(automatic.get("startAt"), 1) - 1
        self._numbers[level] += 1
        for name, ours in _FORMS.items():
            pattern = _PUNCTUATION.get(form.removeprefix(name))
            if form.startswith(name) and pattern:
                return pattern.format(shown(self._numbers[level], ours)) + " "
        return f"{self._numbers[level]}. "


def _placeholder(shape: Any) -> str | None:  # noqa: ANN401
    """Return the kind of a placeholder; None if the shape is none."""
    found = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
    return None if found is None else found.get("type", "obj")


def _line(paragraph: Any) -> str:  # noqa: ANN401
    """Return the text of a paragraph, with equations as text and without the slide's number."""
    from lxml import etree

    pieces = []
    walk = etree.iterwalk(paragraph, events=("start",))
    for _, element in walk:
        tag = element.tag
        if tag == FALLBACK or (tag == f"{A}fld" and element.get("type", "").startswith("slidenum")):
            walk.skip_subtree()
        elif tag == f"{M}oMath":
            pieces.append(apart(linear(element)))
            walk.skip_subtree()
        elif tag == f"{A}t":
            pieces.append(_letters(element))
        elif tag == f"{A}br":
            pieces.append(" ")
    return tidy("".join(pieces))


def _letters(run: Any) -> str:  # noqa: ANN401
    """Return the text of a run; that of a symbol font as usual characters."""
    text = run.text or ""
    properties = run.getparent().find(f"{A}rPr")
    if properties is not None and whole(properties.get("baseline"), 0) > 0:
        text = raised(text)
    if _SYMBOLS.search(text):
        for name in ("sym", "latin"):
            font = run.getparent().find(f"{A}rPr/{A}{name}")
            if font is not None and is_symbol_font(font.get("typeface")):
                return in_symbols(font.get("typeface"), text)
    return str(text)
