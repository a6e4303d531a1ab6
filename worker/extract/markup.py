"""HTML as text: blocks become paragraphs, headings keep their level as in Markdown, scripts are dropped."""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from selectolax.lexbor import LexborHTMLParser, LexborNode

from worker.extract.draft import ExtractionError, TextBuilder, clean
from worker.extract.encodings import decode_markup
from worker.extract.office.marks import raised
from worker.extract.office.numbering import shown

# Programs, and what browsers show only if they lack something.
_SKIPPED: Final = frozenset(
    """
    annotation annotation-xml audio base canvas datalist defs embed frame link map meta metadata noembed
    noframes script style symbol template title video
    """.split()  # noqa: SIM905  # as a list it would fill a page
)
_BLOCKS: Final = frozenset(
    """
    address article aside blockquote body caption center dd details dialog dir div dl dt fieldset
    figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol
    optgroup option p pre section summary svg table tbody td text textarea tfoot th thead tr ul
    """.split()  # noqa: SIM905  # as a list it would fill a page
)
# An empty line separates these; other blocks only begin on a new line.
_LOOSE: Final = frozenset(
    """
    article blockquote dl figure h1 h2 h3 h4 h5 h6 hr ol p pre section table ul
    """.split()  # noqa: SIM905  # as a list it would fill a page
)
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_CELLS: Final = frozenset({"td", "th"})
# Written before and after what is within.
_AROUND: Final = {
    "del": ("~~", "~~"),
    "s": ("~~", "~~"),
    "strike": ("~~", "~~"),
    "q": ("\u201c", "\u201d"),
    "mfrac": ("(", ")"),
    "msqrt": ("\u221a(", ")"),
    "mroot": ("root(", ")"),
}
# Written before each child but the first.
_BETWEEN: Final = {
    "mfrac": (")/(",),
    "msup": ("^",),
    "msub": ("_",),
    "msubsup": ("_", "^"),
    "mover": ("^",),
    "munder": ("_",),
    "munderover": ("_", "^"),
    "mroot": (", ",),
    "mtr": (" ",),
}
_SPACE: Final = re.compile(r"[ \t\n\r\f]+")
_HIDDEN: Final = re.compile(
    r"(?:^|[;\s])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|mso-hide\s*:\s*all)",
    re.IGNORECASE,
)
_LIST_FORMS: Final = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
_UNSEEN_INPUTS: Final = frozenset({"hidden", "password", "file", "range", "color"})
_MAX_SRCDOCS: Final = 3  # pages within pages
_MAX_TITLE_CHARS: Final = 1000
# The parser looks through all open elements at each block: their depth is bounded before it starts.
_MAX_DEPTH: Final = 10_000
_TAG: Final = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)[^<>]*>")
_VOID: Final = frozenset("area base br col embed hr img input link meta param source track wbr p li".split())  # noqa: SIM905  # as above
# XHTML closes elements in ways that HTML does not read.
_XHTML: Final = re.compile(
    r"<\?xml|<!DOCTYPE[^>]{0,200}XHTML|xmlns\s*=\s*[\"']http://www.w3.org/1999/xhtml", re.IGNORECASE
)
_XHTML_WITHIN: Final = 4096
_CLOSED: Final = re.compile(r"<([a-zA-Z][\w:.-]*)((?:[^<>\"']|\"[^\"<>]*\"|'[^'<>]*')*)/>")
_CDATA: Final = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)


def read_html(raw: bytes, draft: TextBuilder) -> None:
    """Read an HTML page: its text and title.

    Raises:
        ExtractionError: it has none, because a script draws it.
    """
    page = _Page(decode_markup(raw, draft))
    lines = _Lines(draft)
    page.write(lines)
    draft.set_title(page.title)
    if not lines.has_written and page.has_script:
        message = "The page has no text of its own: a script draws it in the browser. Save it as PDF there."
        raise ExtractionError("document_empty", message)


def write_html(source: str, draft: TextBuilder) -> str:
    """Append the text of this page to the draft; return its title."""
    page = _Page(source)
    page.write(_Lines(draft))
    return page.title


class _Lines:
    """A writer of lines: no empty line at the beginning, and never two in a row."""

    def __init__(self, draft: TextBuilder) -> None:
        self.draft = draft
        self.has_written = False
        self.prefix = ""  # of the next line
        self._line: list[str] = []
        self._num_feeds = 0  # line feeds to write before the next line

    def add(self, text: str) -> None:
        """Continue the line."""
        self._line.append(text)

    def end(self, num_feeds: int, *, is_verbatim: bool = False, keeps_empty: bool = False) -> None:
        """End the line; put at least `num_feeds` line feeds before the next one."""
        joined = "".join(self._line)
        self._line.clear()
        line = joined.rstrip() if is_verbatim else _SPACE.sub(" ", joined).strip()
        if line:
            feeds = "\n" * self._num_feeds if self.has_written else ""
            self.draft.write(f"{feeds}{self.prefix}{line}")
            self.has_written = True
            self._num_feeds = num_feeds
            self.prefix = ""
        elif keeps_empty:
            self._num_feeds = 2
        self._num_feeds = max(self._num_feeds, num_feeds)


class _Page:
    """A page, parsed as browsers do."""

    def __init__(self, source: str, depth: int = 0) -> None:
        self._tree = LexborHTMLParser(_flattened(_as_html(clean(source))))
        title = self._tree.css_first("head > title")
        self.title = title.text()[:_MAX_TITLE_CHARS] if title else ""
        self.has_script = bool(self._tree.css_first("script"))
        self._depth = depth
        self._open: list[LexborNode] = []
        self._num_children = [0]  # elements begun in each open one
        self._inlined = 0  # depth of the open cell that is one line; 0 if there is none
        self._num_pre = 0
        self._numbers: list[_Numbers | None] = []  # of each open list; None if it has none
        self._row_has_cell = [False]
        self._num_frames = 0
        self._num_hidden = 0  # characters

    def write(self, lines: _Lines) -> None:
        """Write the text, and what a reader of it should know."""
        self._lines = lines
        if (body := self._tree.body) is not None:
            self._walk(body)
        if not lines.has_written:
            self._write_fallback()
        if self._num_frames:
            what = "1 frame shows" if self._num_frames == 1 else f"{self._num_frames} frames show"
            lines.draft.warn("parts_not_read", f"{what} another page, which is not part of the file.")
        if self._num_hidden:
            message = f"Hidden text of {self._num_hidden:,} characters was left out."
            lines.draft.warn("hidden_parts", message)

    def _write_fallback(self) -> None:
        """Write what a browser without scripts or frames shows."""
        self._num_frames += len(self._tree.css("frame"))
        for node in self._tree.css("noscript"):
            self._walk(node)
        for node in self._tree.css("noframes"):
            if self._depth < _MAX_SRCDOCS:
                _Page(node.text(), self._depth + 1).write(self._lines)
        if self._lines.has_written and self.has_script:
            message = "A script draws the page; only its text for browsers without scripts was read."
            self._lines.draft.warn("parts_not_read", message)

    def _walk(self, root: LexborNode) -> None:
        """Write a node and all below it, without recursion."""
        node: LexborNode | None = root
        bottom = len(self._open)
        while node is not None:
            if self._enter(node, is_root=node is root):
                self._open.append(node)
                self._num_children.append(0)
                if (child := node.child) is not None:
                    node = child
                    continue
                self._leave(self._open.pop())
            while node is not root and node.next is None and len(self._open) > bottom:
                node = self._open.pop()
                self._leave(node)
            node = None if len(self._open) == bottom else node.next
        self._break(1)

    def _enter(self, node: LexborNode, *, is_root: bool) -> bool:
        """Begin a node; return True if its children are to be read."""
        if node.is_text_node:
            self._write_text(node)
            return False
        tag = node.tag or ""
        if not node.is_element_node or tag in _SKIPPED or (tag == "noscript" and not is_root):
            return False
        attributes = node.attributes
        if _is_hidden(tag, attributes):
            self._num_hidden += len("".join(node.text().split()))
            return False
        self._separate()
        if tag in _BLOCKS:
            self._begin_block(tag, node)
        elif tag == "br":
            self._break(1)
        elif tag == "sup" and (digits := raised(node.text())) != node.text():
            self._lines.add(digits.strip())
            return False
        elif tag == "rt" and not _has_parentheses(node):
            self._lines.add("(")
        elif tag in _AROUND:
            self._lines.add(_AROUND[tag][0])
        elif written := self._shown(tag, node):
            self._lines.add(written)
        return tag not in ("iframe", "select")

    def _leave(self, node: LexborNode) -> None:
        """End a node."""
        self._num_children.pop()
        tag = node.tag or ""
        if tag == "rt" and not _has_parentheses(node):
            self._lines.add(")")
        elif tag in _AROUND:
            self._lines.add(_AROUND[tag][1])
        elif tag in _CELLS:
            self._inlined = 0 if self._inlined == len(self._open) + 1 else self._inlined
        elif tag in _BLOCKS:
            self._end_block(tag)

    def _begin_block(self, tag: str, node: LexborNode) -> None:
        if tag in _CELLS:
            if self._row_has_cell[-1]:
                self._lines.add(" | ")
            self._row_has_cell[-1] = True
            if not self._inlined and _is_line(node):
                self._inlined = len(self._open) + 1
            return
        self._break(2 if tag in _LOOSE else 1)
        if tag in ("pre", "textarea"):
            self._num_pre += 1
        elif tag == "table":
            self._row_has_cell.append(False)
        elif tag == "tr":
            self._row_has_cell[-1] = False
        elif tag in ("ol", "ul", "menu", "dir"):
            self._numbers.append(_Numbers.of(node) if tag == "ol" else None)
        if tag == "li":
            self._lines.prefix = self._item(node)
        elif tag != "p":
            self._lines.prefix = _HEADINGS.get(tag, "")

    def _end_block(self, tag: str) -> None:
        self._break(2 if tag in _LOOSE else 1)
        if tag in ("pre", "textarea"):
            self._num_pre -= 1
        elif tag == "table":
            self._row_has_cell.pop()
        elif tag in ("ol", "ul", "menu", "dir"):
            self._numbers.pop()
        self._lines.prefix = ""

    def _break(self, num_feeds: int) -> None:
        if self._inlined:
            self._lines.add(" ")
        else:
            self._lines.end(num_feeds, is_verbatim=bool(self._num_pre))

    def _item(self, node: LexborNode) -> str:
        """Return the mark before a list's item: its number, or a dash."""
        numbers = self._numbers[-1] if self._numbers else None
        return "- " if numbers is None else numbers.take(node)

    def _separate(self) -> None:
        """Write what precedes the next child of a formula's element."""
        between = _BETWEEN.get(self._open[-1].tag or "") if self._open else None
        if between and (place := self._num_children[-1]):
            self._lines.add(between[min(place, len(between)) - 1])
        self._num_children[-1] += 1

    def _write_text(self, node: LexborNode) -> None:
        text = (node.text_content or "").replace("\u00ad", "")  # hyphens that show only at a line's end
        if not self._num_pre or self._inlined:
            self._lines.add(text)
            return
        first, *others = text.split("\n")
        self._lines.add(first)
        for other in others:
            self._lines.end(1, is_verbatim=True, keeps_empty=True)
            self._lines.add(other)

    def _shown(self, tag: str, node: LexborNode) -> str:
        """Return what an element without text of its own shows."""
        attributes = node.attributes
        match tag:
            case "img" | "area" | "image":
                alt = " ".join((attributes.get("alt") or "").split())
                return f"[Image: {alt}]" if alt else ""
            case "input":
                return _value(node)
            case "select":
                return f" {', '.join(_chosen(node))} "
            case "iframe":
                self._write_frame(attributes.get("srcdoc"))
        return ""

    def _write_frame(self, srcdoc: str | None) -> None:
        if srcdoc is None or self._depth >= _MAX_SRCDOCS:
            self._num_frames += 1
            return
        self._break(1)
        _Page(srcdoc, self._depth + 1).write(self._lines)


def _is_hidden(tag: str, attributes: Mapping[str, str | None]) -> bool:
    """Return True if browsers do not show the element."""
    if tag == "dialog" and "open" not in attributes:
        return True
    is_marked = "hidden" in attributes and attributes["hidden"] != "until-found"
    return is_marked or bool(_HIDDEN.search(attributes.get("style") or ""))


def _value(node: LexborNode) -> str:
    """Return what an input of a form shows, between blanks."""
    attributes = node.attributes
    kind = (attributes.get("type") or "text").lower()
    if kind in ("checkbox", "radio"):
        return " [x] " if "checked" in attributes else " [ ] "
    if kind in _UNSEEN_INPUTS:
        return ""
    value = attributes.get("alt" if kind == "image" else "value") or ""
    return f" {value} " if value else ""


def _chosen(select: LexborNode) -> Iterator[str]:
    """Yield the options that are selected, or the first one, which browsers show if none is."""
    options = select.css("option")
    chosen = [each for each in options if "selected" in each.attributes]
    shows_first = options and "multiple" not in select.attributes
    for option in chosen or (options[:1] if shows_first else []):
        yield " ".join((option.attributes.get("label") or option.text()).split())


def _has_parentheses(node: LexborNode) -> bool:
    """Return True if the page has parentheses around a reading itself, for browsers without ruby."""
    before = node.prev
    while before is not None and before.is_text_node and not (before.text_content or "").strip():
        before = before.prev
    return before is not None and before.tag == "rp"


def _is_line(cell: LexborNode) -> bool:
    """Return True if the cell has one paragraph at most; others are for the layout of the page."""
    node: LexborNode | None = cell
    for _ in range(8):
        blocks = (
            [] if node is None else [each for each in node.iter() if each.tag in _BLOCKS or each.tag == "br"]
        )
        if len(blocks) > 1:
            return False
        if not blocks:
            return True
        node = blocks[0]
        if node.tag not in ("p", "div", "center", "br"):
            return False
    return False


@dataclass(slots=True)
class _Numbers:
    """The numbers of an ordered list.

    Attributes:
        next: of the next item.
        step: -1 in a list that counts down.
        form: as numbering of Word has it.
    """

    next: int
    step: int
    form: str

    @classmethod
    def of(cls, node: LexborNode) -> "_Numbers":
        """Read how a list counts."""
        attributes = node.attributes
        form = _LIST_FORMS.get((attributes.get("type") or "").strip(), "decimal")
        if "reversed" not in attributes:
            return cls(_number(node, "start", 1), 1, form)
        num_items, child = 0, node.child
        while child is not None:
            num_items += child.tag == "li"
            child = child.next
        return cls(_number(node, "start", num_items), -1, form)

    def take(self, item: LexborNode) -> str:
        """Return the mark of the next item."""
        number = _number(item, "value", self.next)
        self.next = number + self.step
        return f"{shown(number, self.form)}. "


def _number(node: LexborNode, name: str, default: int) -> int:
    given = (node.attributes.get(name) or "").strip()
    return int(given) if re.fullmatch("-?[0-9]{1,9}", given) else default


def _as_html(source: str) -> str:
    """Write XHTML's closed elements and CDATA sections as HTML."""
    if not _XHTML.search(source[:_XHTML_WITHIN]):
        return source
    source = _CDATA.sub(lambda found: html.escape(found[1]), source)
    return _CLOSED.sub(
        lambda found: (
            found[0] if found[1].lower() in _VOID - {"p", "li"} else f"<{found[1]}{found[2]}></{found[1]}>"
        ),
        source,
    )


def _flattened(source: str) -> str:
    """Turn tags into line feeds if they are nested far deeper than any page is."""
    depth = 0
    for tag in _TAG.finditer(source):
        if tag[2].lower() not in _VOID:
            depth = max(0, depth + (-1 if tag[1] else 1))
            if depth > _MAX_DEPTH:
                return _TAG.sub("\n", source)
    return source
