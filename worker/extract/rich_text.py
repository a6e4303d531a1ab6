"""The text of rtf files: headers, the body with headings, lists and tables, notes and comments, footers.

The library striprtf drops footnotes, headers, comments, text boxes, tick boxes and the numbers of lists, and
shows deleted text. RTF is one loop over control words with a stack of groups: there is no recursion, and the
text is not longer than the file.
"""

import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from worker.extract.draft import TextBuilder, refuse_corrupt
from worker.extract.office.marks import apart, comment, margin, raised, tidy
from worker.extract.office.symbols import TICKED, UNTICKED, is_symbol_font, symbol

_TOKEN: Final = re.compile(
    rb"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?|\\'(?P<hex>[0-9a-fA-F]{2})|\\(?P<sign>[^a-zA-Z])"
    rb"|(?P<brace>[{}])|(?P<feed>[\r\n\0]+)|(?P<text>[^\\{}\r\n\0]+)|\\",
    re.DOTALL,
)
_CHARSETS: Final[Mapping[int, str]] = {
    77: "mac_roman", 78: "shift_jis", 79: "big5", 80: "euc_kr", 81: "mac_arabic", 82: "cp1255",
    83: "mac_greek", 84: "mac_cyrillic", 85: "gb2312", 86: "mac_romanian", 87: "mac_cyrillic", 88: "cp874",
    89: "mac_latin2",
    128: "cp932", 129: "cp949", 130: "johab", 134: "gbk", 136: "cp950", 161: "cp1253", 162: "cp1254",
    163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
    254: "cp437", 255: "cp850",
}  # fmt: skip
_CHARACTERS: Final[Mapping[bytes, str]] = {
    b"tab": "\t", b"line": "\n", b"lbr": "\n", b"softline": "\n", b"emdash": "—", b"endash": "\u2013",
    b"bullet": "•", b"lquote": "\u2018", b"rquote": "\u2019", b"ldblquote": "“", b"rdblquote": "”",
    b"emspace": " ", b"enspace": " ",
    b"qmspace": " ", b"nestcell": " | ", b"nestrow": " ", b"msub": "_", b"msup": "^", b"mden": "/",
    b"mrad": "√",
}  # fmt: skip
_SIGNS: Final[Mapping[bytes, str]] = {b"~": "\xa0", b"_": "-", b"{": "{", b"}": "}", b"\\": "\\", b"-": ""}
_PARAGRAPHS: Final = frozenset({b"par", b"sect", b"page", b"column", b"\n", b"\r"})
# Groups that show nothing, or that repeat what another shows.
_SKIPPED: Final = frozenset(
    b"""
    stylesheet colortbl filetbl pict objdata objclass shprslt nonshppict template rxe xe tc txe sp private
    nonesttables author operator keywords comment subject manager company category doccomm hlinkbase version
    creatim revtim printim buptim ftnsep ftnsepc ftncn aftnsep aftnsepc aftncn mmathPict mfPr mradPr msSubPr
    msSupPr msSubSupPr mnaryPr mdPr mctrlPr mrPr moMathParaPr mfuncPr maccPr mlimLowPr mlimUppPr meqArrPr mmPr
    listtable listoverridetable listpicture rsidtbl generator revtbl fldtype
    """.split()
)
# Groups marked as ones that a reader may ignore, and that hold text.
_KNOWN: Final = frozenset(
    {
        b"shpinst",
        b"shptxt",
        b"do",
        b"dptxbxtext",
        b"annotation",
        b"atnauthor",
        b"formfield",
        b"fldinst",
        b"shppict",
    }
    | {b"moMath", b"moMathPara", b"mmath"}
)
_HEADERS: Final = frozenset({b"header", b"headerl", b"headerr", b"headerf"})
_FOOTERS: Final = frozenset({b"footer", b"footerl", b"footerr", b"footerf"})
_BULLETS: Final = frozenset("•·▪●○o◦■□-–➢✓\uf0b7")  # noqa: RUF001
_SYMBOL_FIELD: Final = re.compile(r"SYMBOL\s+(\d+|0x[0-9A-Fa-f]+)(?:.*?\\f\s+\"?([^\"\\]+))?", re.DOTALL)
_LINK: Final = re.compile(r"HYPERLINK\s+\"?((?!mailto:)[^\"\s\\]+\.[^\"\s\\]+)")
_NO_RESULT: Final = 25  # of a form's field
_GAPS: Final = re.compile(r"\n{3,}")
_MOST_NESTED: Final = 50  # groups with paragraphs of their own; the text of deeper ones is where it is
_NEAR: Final = 20  # pieces of text in which a link's address may be shown
_MOST_HEADING: Final = 6


def read_rtf(data: bytes, draft: TextBuilder) -> None:
    """Read an rtf: an empty line between paragraphs, the cells of a row on one line; notes at the end."""
    if not data.lstrip()[:5].startswith(b"{\\rtf"):
        refuse_corrupt("The document does not begin as rtf.")
    reader = _Reader()
    reader.read(data)
    draft.set_title(reader.title)
    texts = reader.texts()
    for text in texts:
        draft.write(_GAPS.sub("\n\n", text).strip("\n") + "\n")
    if reader.num_hidden:
        draft.warn("hidden_parts", f"Pieces of hidden text were read as well: {reader.num_hidden}.")
    if reader.num_objects:
        draft.warn("parts_not_read", f"Embedded objects were not read: {reader.num_objects}.")
    if reader.breaks_off:
        draft.warn("parts_damaged", "The file breaks off: what came after is missing.")
    if num_replaced := sum(text.count("\ufffd") for text in texts):
        message = (
            f"Characters that the file's encodings and fonts do not have, replaced by U+FFFD: {num_replaced}."
        )
        draft.warn("characters_replaced", message)


@dataclass(slots=True)
class _Text:
    """The text of the body, of a note, or of another group with its own paragraphs.

    Attributes:
        pieces: of the open paragraph.
        lines: of the open cell.
        cells: of the open row.
        blocks: paragraphs and rows so far, each with what follows it.
    """

    pieces: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)

    def end_paragraph(self, state: "_State") -> None:
        """End the paragraph: a line of a cell, or a block."""
        line = tidy(_whole("".join(self.pieces)))
        self.pieces.clear()
        if state.in_table:
            self.lines += [line] if line else []
        elif line:
            self.blocks += [_heading(state) + line, "\n\n"]

    def end_cell(self) -> None:
        """End the cell."""
        self.lines.append(tidy(_whole("".join(self.pieces))))
        self.pieces.clear()
        self.cells.append(" ".join(line for line in self.lines if line).replace("\n", " ").strip(" |"))
        self.lines.clear()

    def end_row(self) -> None:
        """End the row."""
        if any(self.cells):
            self.blocks += [" | ".join(self.cells), "\n"]
        self.cells.clear()

    def whole(self) -> str:
        """Return all text, with what is still open."""
        if self.pieces or self.lines:
            self.end_cell()
        rest = self.cells if len(self.cells) != 1 else [self.cells[0]]
        if any(rest):
            self.blocks += [" | ".join(rest), "\n\n"]
            self.cells = []
        # A table ends where a paragraph follows its last row.
        out = []
        for number, block in enumerate(self.blocks):
            out.append(block)
            if block == "\n" and number + 2 < len(self.blocks) and self.blocks[number + 2] == "\n\n":
                out.append("\n")
        return "".join(out)


@dataclass(frozen=True, slots=True)
class _State:
    r"""What a group inherits, and its end restores.

    Attributes:
        kind: of the group whose text this is: `""` for usual text.
        num_fallback: characters after `\u` for programs without Unicode.
    """

    is_skipped: bool = False
    kind: bytes = b""
    text: int = 0  # place of its _Text on the stack
    font: int = -1
    num_fallback: int = 1
    is_hidden: bool = False
    is_deleted: bool = False
    is_raised: bool = False
    in_table: bool = False
    outline: int = -1
    link: str = ""  # address that the text of a field leads to


def _heading(state: _State) -> str:
    return "#" * (state.outline + 1) + " " if 0 <= state.outline < _MOST_HEADING else ""


class _Reader:
    """A reader of one file."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.num_hidden = 0
        self.num_objects = 0
        self.breaks_off = False
        self._state = _State()
        self._groups: list[_State] = []
        self._texts = [_Text()]
        self._encoding = "cp1252"
        self._fonts: dict[int, str] = {}  # encodings
        self._names: dict[int, str] = {}
        self._font_in_table = -1
        self._default_font = -1
        self._raw = bytearray()  # bytes that are not decoded yet: a character may take two
        self._num_to_skip = 0  # characters after `\u`
        self._notes: list[str] = []
        self._headers: dict[str, None] = {}  # in order, each once
        self._footers: dict[str, None] = {}
        self._author = ""
        self._box: dict[bytes, int] = {}  # of a form's field
        self._link = ""  # of the field that is open
        self._is_marked = False  # after `\*`
        self._is_over = False  # the outermost group has ended

    def texts(self) -> list[str]:
        """Return headers, body, notes and footers."""
        notes = "".join(f"[{number}] {note}\n\n" for number, note in enumerate(self._notes, 1))
        parts = ["".join(self._headers), self._texts[0].whole(), notes, "".join(self._footers)]
        return ["\n\n".join(part.strip("\n") for part in parts if part.strip())]

    def read(self, data: bytes) -> None:
        """Read the whole file; what comes after the outermost group is no part of it."""
        at, end = data.find(b"{"), len(data)
        match_at = _TOKEN.match
        while at < end and (match := match_at(data, at)):
            at = match.end() + self._take(match)
            if self._is_over:
                break
        self._flush()
        self.breaks_off = bool(self._groups)
        while self._groups:  # what is open still has text
            self._end_group()

    def _take(self, match: re.Match[bytes]) -> int:
        """Take a token; return how many bytes after it are no text."""
        match match.lastgroup:
            case "text":
                self._add_bytes(match["text"])
            case "hex":
                self._add_bytes(bytes.fromhex(match["hex"].decode()))
            case "brace":
                self._flush()
                if match["brace"] == b"{":
                    self._groups.append(self._state)
                else:
                    self._end_group()
            case "word" | "number":
                number = None if match["number"] is None else int(match["number"])
                if match["word"] == b"bin":
                    return max(number or 0, 0)
                self._word(match["word"], number)
            case "sign":
                self._sign(match["sign"])
        return 0

    def _add_bytes(self, raw: bytes) -> None:
        self._is_marked = False
        if self._num_to_skip:
            skipped = min(self._num_to_skip, len(raw))
            self._num_to_skip -= skipped
            raw = raw[skipped:]
        if raw and not self._state.is_skipped:
            self._raw += raw

    def _flush(self) -> None:
        """Decode what has been collected with the font's encoding."""
        self._num_to_skip = 0
        if not self._raw:
            return
        raw, font = bytes(self._raw), self._state.font
        self._raw.clear()
        name = self._names.get(font, "")
        if is_symbol_font(name) and self._state.kind != b"fonttbl":
            self._add("".join(symbol(name, each) for each in raw))
            return
        self._add(raw.decode(self._fonts.get(font, self._encoding), "replace"))

    def _add(self, text: str) -> None:
        state = self._state
        if state.is_skipped or state.is_deleted or not text:
            return
        if state.kind == b"fonttbl":
            if (name := text.partition(";")[0].strip()) and self._font_in_table not in self._names:
                self._names[self._font_in_table] = name
            return
        self.num_hidden += state.is_hidden and not text.isspace()
        self._texts[state.text].pieces.append(raised(text) if state.is_raised else text)

    def _sign(self, sign: bytes) -> None:
        if sign == b"*":
            self._is_marked = True
            return
        if self._num_to_skip:
            self._num_to_skip -= 1
            return
        self._flush()
        if sign in _PARAGRAPHS:
            self._word(b"par", None)
        else:
            self._add(_SIGNS.get(sign, ""))

    def _word(self, word: bytes, number: int | None) -> None:
        is_marked, self._is_marked = self._is_marked, False
        if word == b"u" and number is not None:
            self._flush()
            self._add_unicode(number % 0x10000)
            self._num_to_skip = self._state.num_fallback
            return
        if self._num_to_skip and not self._state.is_skipped:
            self._num_to_skip -= 1
            return
        self._flush()
        state = self._state
        if state.is_skipped:
            return
        if word in _SKIPPED or (is_marked and word not in _KNOWN):
            self.num_objects += word == b"objdata"
            self._state = replace(state, is_skipped=True)
        elif word in _CHARACTERS:
            self._add(_CHARACTERS[word])
        elif word in _PARAGRAPHS:
            self._texts[state.text].end_paragraph(state)
        elif word in _OPENERS:
            self._open(word)
        else:
            self._property(word, number)

    def _property(self, word: bytes, number: int | None) -> None:
        """Change the state of this group, or of the file."""
        state = self._state
        if change := _CHANGES.get(word):
            self._state = change(state, number)
            return
        match word:
            case b"fldrslt":
                self._state = replace(state, link=self._link)
                self._link = ""
            case b"cell":
                self._texts[state.text].end_cell()
            case b"row":
                self._texts[state.text].end_row()
            case b"plain":
                self._state = replace(
                    state, is_hidden=False, is_deleted=False, is_raised=False, font=self._default_font
                )
            case b"f":
                self._state = replace(state, font=number or 0)
                self._font_in_table = number or 0
            case b"deff":
                self._default_font = number or 0
                self._state = replace(state, font=self._default_font)
            case b"fftype" | b"ffres" | b"ffdefres":
                self._box[word] = number or 0
            case _:
                self._encode(word, number or 0)

    def _encode(self, word: bytes, number: int) -> None:
        """Set the encoding of the file, or of a font in the table of fonts."""
        is_font = self._state.kind == b"fonttbl"
        if word == b"fcharset" and is_font and number in _CHARSETS:
            self._fonts[self._font_in_table] = _CHARSETS[number]
        elif word == b"cpg" and is_font:
            self._fonts[self._font_in_table] = _codec(number, self._encoding)
        elif word == b"ansicpg":
            self._encoding = _codec(number, self._encoding)
        elif word in _OLD_ENCODINGS:
            self._encoding = _OLD_ENCODINGS[word]

    def _add_unicode(self, code: int) -> None:
        name = self._names.get(self._state.font, "")
        self._add(symbol(name, code) if 0xE000 <= code <= 0xF8FF else chr(code))  # the private area

    def _open(self, word: bytes) -> None:
        """Begin a group whose text does not belong where it is."""
        state = self._state
        if word == b"fonttbl":
            self._state = replace(state, kind=word)
            return
        if len(self._texts) > _MOST_NESTED:
            return
        self._texts.append(_Text())
        self._state = replace(
            state,
            kind=word,
            text=len(self._texts) - 1,
            in_table=False,
            outline=-1,
            is_hidden=False,
            is_raised=False,
        )
        if word == b"formfield":
            self._box = {}

    def _end_group(self) -> None:
        self._is_over = len(self._groups) <= 1
        if not self._groups:
            return
        state = self._state
        self._state = before = self._groups.pop()
        if state.text == before.text:
            shown = "".join(self._texts[state.text].pieces[-_NEAR:])
            if state.link and not before.link and state.link not in shown:
                self._add(f" ({state.link})")
            return
        text = self._texts.pop().whole().strip()
        while len(self._texts) > before.text + 1:  # a file that is not well-formed
            self._texts.pop()
        self._close(state.kind, text)

    def _close(self, word: bytes, text: str) -> None:
        """Place the text of a group that has ended."""
        line = " ".join(text.split())
        match word:
            case b"footnote":
                self._close_note(text)
            case b"annotation":
                self._add(apart(comment(self._author, line)) if line else "")
                self._author = ""
            case b"atnauthor":
                self._author = line
            case b"title":
                self.title = self.title or line
            case b"pntext" | b"listtext":
                self._add("- " if line in _BULLETS or not line else line + " ")
            case b"fldinst":
                self._close_instruction(text)
            case b"formfield":
                self._close_form_field()
            case _ if word in _HEADERS or word in _FOOTERS:
                self._place_margin(word, text)
            case _ if text:  # a text box
                self._texts[self._state.text].blocks += [text, "\n\n"]

    def _close_note(self, text: str) -> None:
        if text:
            self._notes.append(text)
            self._add(f"[{len(self._notes)}]")

    def _close_instruction(self, text: str) -> None:
        """Show what a field's instruction alone says: a symbol, or a tick box; keep the address of a link."""
        if found := _SYMBOL_FIELD.search(text):
            code = int(found[1], 16 if found[1].startswith("0x") else 10)
            self._add(symbol((found[2] or "Symbol").strip(), code))
        found = _LINK.search(text)
        self._link = found[1] if found else ""
        if b"ticked" in self._box:
            self._add(TICKED if self._box.pop(b"ticked") else UNTICKED)

    def _close_form_field(self) -> None:
        """Keep the state of a tick box; the text of the group was its name and help."""
        if self._box.get(b"fftype") == 1:
            result = self._box.get(b"ffres", _NO_RESULT)
            is_ticked = self._box.get(b"ffdefres", 0) if result == _NO_RESULT else result
            self._box = {b"ticked": int(bool(is_ticked))}

    def _place_margin(self, word: bytes, text: str) -> None:
        lines, name = (self._headers, "Header") if word in _HEADERS else (self._footers, "Footer")
        marked = margin(name, text)
        if marked:
            lines[marked] = None


# Words that change nothing but the state.
_CHANGES: Final[Mapping[bytes, Callable[[_State, int | None], _State]]] = {
    b"pard": lambda state, _: replace(state, in_table=False, outline=-1),
    b"intbl": lambda state, _: replace(state, in_table=True),
    b"outlinelevel": lambda state, number: replace(state, outline=number or 0),
    b"uc": lambda state, number: replace(state, num_fallback=max(number or 0, 0)),
    b"v": lambda state, number: replace(state, is_hidden=number != 0),
    b"super": lambda state, number: replace(state, is_raised=number != 0),
    b"sub": lambda state, _: replace(state, is_raised=False),
    b"nosupersub": lambda state, _: replace(state, is_raised=False),
    b"deleted": lambda state, number: replace(state, is_deleted=number != 0),
}
_OLD_ENCODINGS: Final = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}
_OPENERS: Final = frozenset(
    {b"fonttbl", b"footnote", b"annotation", b"atnauthor", b"title", b"pntext", b"listtext", b"fldinst"}
    | {b"formfield", b"shptxt", b"dptxbxtext", *_HEADERS, *_FOOTERS}
)


def _codec(number: int | None, default: str) -> str:
    """Return the codec of a code page; the default if there is none."""
    name = {65001: "utf-8", 10000: "mac_roman", 0: default}.get(number or 0, f"cp{number}")
    try:
        codecs.lookup(name)
    except LookupError:
        return default
    return name


def _whole(text: str) -> str:
    """Join the halves of characters beyond the first plane."""
    if not any("\ud800" <= each <= "\udfff" for each in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
