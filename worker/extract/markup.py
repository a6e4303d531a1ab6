"""HTML as text: blocks become paragraphs, headings keep their level as in Markdown, scripts are dropped."""

import re
from html.parser import HTMLParser
from typing import Final

from worker.extract.draft import TextBuilder, clean
from worker.extract.encodings import decode_markup

_SKIPPED: Final = frozenset(
    {"script", "style", "template", "noscript", "svg", "math", "object", "iframe", "select"}
)
_BLOCKS: Final = frozenset(
    """
    address article aside blockquote body caption center dd details dialog dir div dl dt fieldset
    figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html li main menu nav ol p pre
    section summary table tbody td tfoot th thead title tr ul
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
_SPACE: Final = re.compile(r"[ \t\n\r\f]+")


def read_html(raw: bytes, draft: TextBuilder) -> None:
    """Read an HTML page: its text and title."""
    title = write_html(decode_markup(raw, draft), draft)
    draft.set_title(title)


def write_html(source: str, draft: TextBuilder) -> str:
    """Append the text of this page to the draft; return its title."""
    reader = _Reader(draft)
    reader.feed(clean(source))
    reader.close()
    reader.end()
    return reader.title


class _Reader(HTMLParser):
    """A writer of lines: no empty line at the beginning, and never two in a row."""

    def __init__(self, draft: TextBuilder) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._draft = draft
        self._skipping = ""
        self._num_skipped = 0  # open tags with the skipped name
        self._in_title = False
        self._num_pre = 0
        self._line: list[str] = []
        self._prefix = ""
        self._num_feeds = 0  # line feeds to write before the next line
        self._has_written = False
        self._row_has_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element: a block, a cell, or one to skip."""
        del attrs
        if self._skipping:
            self._num_skipped += tag == self._skipping
            return
        if tag in _SKIPPED:
            self._skipping, self._num_skipped = tag, 1
        elif tag == "title":
            self._in_title = True
        elif tag == "br":
            self._break(1)
        elif tag in _CELLS:
            self._begin_cell()
        elif tag in _BLOCKS:
            self._break(2 if tag in _LOOSE else 1)
            self._num_pre += tag == "pre"
            self._row_has_cell &= tag != "tr"
            self._prefix = _HEADINGS.get(tag, "- " if tag == "li" else self._prefix if tag == "p" else "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle `<br/>` or, in XHTML, any empty element."""
        if tag not in _SKIPPED and tag != "title":
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if self._skipping:
            self._num_skipped -= tag == self._skipping
            if not self._num_skipped:
                self._skipping = ""
        elif tag == "title":
            self._in_title = False
        elif tag in _BLOCKS and tag not in _CELLS:
            self._break(2 if tag in _LOOSE else 1)
            self._num_pre = max(0, self._num_pre - (tag == "pre"))
            self._prefix = ""

    def handle_data(self, data: str) -> None:
        """Collect the characters between tags."""
        if self._skipping:
            return
        if self._in_title:
            self.title += data[:1000] if len(self.title) < 1000 else ""
        elif self._num_pre:
            first, *others = data.split("\n")
            self._line.append(first)
            for other in others:
                self._break(1, keeps_empty=True)
                self._line.append(other)
        else:
            self._line.append(data)

    def end(self) -> None:
        """Write the last line."""
        self._break(1)

    def _begin_cell(self) -> None:
        if self._row_has_cell:
            self._line.append(" | ")
        self._row_has_cell = True

    def _break(self, num_feeds: int, *, keeps_empty: bool = False) -> None:
        """End the line; put at least `num_feeds` line feeds before the next one."""
        joined = "".join(self._line)
        self._line.clear()
        line = joined.rstrip() if self._num_pre else _SPACE.sub(" ", joined).strip()
        if line:
            feeds = "\n" * self._num_feeds if self._has_written else ""
            self._draft.write_as_it_is(clean(f"{feeds}{self._prefix}{line}"))
            self._has_written = True
            self._num_feeds = num_feeds
            self._prefix = ""
        elif keeps_empty:
            self._num_feeds = 2
        self._num_feeds = max(self._num_feeds, num_feeds)
