"""The text of workbooks: each sheet is a page, each row a line, values as their formats show them."""

import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any, Final

from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.office.drawings import DGM, A, C, chart_lines, diagram_lines, paragraph_text
from worker.extract.office.marks import comment, letters
from worker.extract.office.number_formats import BUILT_IN, GENERAL, general, shown
from worker.extract.office.package import FALLBACK, DamagedPartError, Package, R, Relation, whole

_S: Final = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_XDR: Final = "{http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing}"
_T: Final = "{http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments}"
_CHARTEX: Final = "{http://schemas.microsoft.com/office/drawing/2014/chartex}chart"
_OFF: Final = frozenset({"0", "false", "off"})
_ADDRESS: Final = re.compile(r"\$?([A-Z]{1,3})\$?(\d{1,7})")
_MOST_TABS: Final = 20  # in a row; a wider gap is an address instead
_MOST_FORMATTED_BYTES: Final = 8 * 2**20  # of an xls; a million cells, which take some seconds
_NUM_COLUMNS: Final = 16_384
_MOST_NAMED: Final = 20  # rows, columns and the like in a warning
_MISSING: Final = Relation("worksheet", "", is_external=False)
_COUNTERFEIT: Final = "[Threaded comment]"  # what older programs show in place of the comment
# Control characters are escaped in texts, and so is an escape that is none.
_ESCAPED: Final = re.compile(r"_x([0-9A-Fa-f]{4})_")


def read_xlsx(data: bytes, draft: TextBuilder) -> None:
    """Read an xlsx: values, formulas without a value, comments, charts and text boxes; or an xlsb."""
    package = Package(data, draft)
    with package.archive:
        part = package.main("xl", "xlsx")
        if part.lower().endswith(".bin"):
            _read_calamine(data, draft)
            return
        root = package.main_xml(part)
        draft.set_title(package.title())
        _Book(package, draft, part, root).read()


def read_xls(data: bytes, draft: TextBuilder) -> None:
    """Read an xls, the format of Excel 97 to 2003: the values as their formats show them, and comments.

    A large or damaged file is read by the library that is faster and knows no formats.
    """
    book = _opened_xls(data) if len(data) <= _MOST_FORMATTED_BYTES else None
    if book is None:
        _read_calamine(data, draft)
    else:
        _OldBook(book, draft).read()


class _Book:
    """A workbook: what its sheets have in common."""

    def __init__(self, package: Package, draft: TextBuilder, part: str, root: Any) -> None:  # noqa: ANN401
        self.package = package
        self.draft = draft
        self._root = root
        self._relations = package.relations(part)
        properties = root.find(f"{_S}workbookPr")
        self.is_1904 = properties is not None and properties.get("date1904", "0") not in _OFF
        paths = {each.kind: each.target for each in self._relations.values() if not each.is_external}
        self.texts = _texts(package, paths.get("sharedStrings"))
        self.formats = _formats(package, paths.get("styles"))
        self.persons = _persons(package, paths.get("person"))
        self.num_formulas: Counter[str] = Counter()  # without a value, by sheet
        self.attached: set[str] = set()

    def read(self) -> None:
        """Write all sheets.

        Raises:
            RefusedError: all of them are damaged.
        """
        sheets = list(self._root.iterfind(f"{_S}sheets/{_S}sheet"))
        self.draft.announce_pages(len(sheets))
        hidden, damaged = [], []
        for number, sheet in enumerate(sheets, 1):
            self.draft.begin_page()
            name, is_hidden = sheet.get("name", ""), sheet.get("state", "visible") != "visible"
            self.draft.write(f"# {name}{' (hidden sheet)' if is_hidden else ''}\n\n")
            if is_hidden:
                hidden.append(number)
            relation = self._relations.get(sheet.get(f"{R}id", ""))
            try:
                _Sheet(self, name, number, relation or _MISSING).read()
            except DamagedPartError:
                damaged.append(number)
        names = [sheet.get("name", "") for sheet in sheets]
        _warn_of_sheets(self.draft, names, hidden, damaged)
        if self.num_formulas:
            message = (
                f"Formulas without a stored value are shown as formulas: {self.num_formulas.total():,}"
                f" (sheets: {_listed(list(self.num_formulas))}). Open and save the workbook in a spreadsheet"
                " program to store the values."
            )
            pages = [names.index(name) + 1 for name in self.num_formulas]
            self.draft.warn("formulas_without_values", message, pages)

    def format_of(self, style: str | None) -> str:
        """Return the number format of a cell's style."""
        place = whole(style, 0)
        return self.formats[place] if 0 <= place < len(self.formats) else GENERAL

    def attach(self, part: str) -> None:
        """Attach an embedded file, once."""
        if part not in self.attached:
            self.attached.add(part)
            self.package.attach(part)


def _texts(package: Package, path: str | None) -> list[str]:
    """Return the texts that cells refer to by number; those before the damage if there is any."""
    from lxml import etree

    texts: list[str] = []
    if path is None:
        return texts
    try:
        source = package.source(path)
        for _, element in etree.iterparse(
            io.BytesIO(source), tag=f"{_S}si", resolve_entities=False, no_network=True
        ):
            texts.append(_rich(element))
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]
    except (DamagedPartError, etree.XMLSyntaxError):
        package.warn_damaged("the texts of cells, or a part of them,")
    return texts


def _rich(element: Any) -> str:  # noqa: ANN401
    """Return a text without its phonetic guides."""
    pieces = [each.text or "" for each in element.iter(f"{_S}t") if each.getparent().tag != f"{_S}rPh"]
    return _unescaped("".join(pieces))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _formats(package: Package, path: str | None) -> list[str]:
    """Return the number format of each style of cells."""
    root = None if path is None else package.optional(path, "the formats of numbers and dates")
    if root is None:
        return []
    own = {
        each.get("numFmtId", ""): each.get("formatCode", "")
        for each in root.iterfind(f"{_S}numFmts/{_S}numFmt")
    }
    formats = []
    for each in root.iterfind(f"{_S}cellXfs/{_S}xf"):
        its_id = each.get("numFmtId", "0")
        built_in = BUILT_IN.get(whole(its_id, 0), GENERAL)
        formats.append(own.get(its_id, built_in))
    return formats


def _persons(package: Package, path: str | None) -> dict[str, str]:
    root = None if path is None else package.optional(path, "the authors of comments")
    return {} if root is None else {each.get("id", ""): each.get("displayName", "") for each in root}


@dataclass(slots=True)
class _Hidden:
    """Rows and columns that a sheet hides, as text."""

    rows: list[int] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    def warn(self, draft: TextBuilder, name: str, number: int) -> None:
        """Warn of hidden, damaged and unread parts of a sheet."""
        hidden = []
        if self.rows:
            hidden.append(f"rows {_listed(_runs(self.rows))}")
        if self.columns:
            hidden.append(f"columns {_listed(self.columns)}")
        if hidden:
            message = f"Hidden parts of sheet {name} were read as well: {' and '.join(hidden)}."
            draft.warn("hidden_parts", message, [number])


class _Sheet:
    """A reader of one sheet."""

    def __init__(self, book: _Book, name: str, number: int, relation: Relation) -> None:
        self._book = book
        self._name = name
        self._number = number
        self._part = relation.target
        self._kind = relation.kind
        self._relations = book.package.relations(relation.target)
        self._comments: dict[str, list[str]] = {}
        self._shared: dict[str, str] = {}
        self._hidden = _Hidden()

    def read(self) -> None:
        """Write rows, then comments of empty cells, charts and text boxes.

        Raises:
            DamagedPartError: the sheet is missing, or breaks off; what comes before is written.
        """
        draft = self._book.draft
        self._comments = self._all_comments()
        damage = None
        try:
            for line in self._rows():
                draft.write(line + "\n")
        except DamagedPartError as error:
            damage = error
        for address, comments in self._comments.items():
            for each in comments:
                draft.write(f"[{address}] {each}\n")
        for relation in self._relations.values():
            if relation.kind == "drawing" and not relation.is_external:
                self._write_drawing(relation.target)
            elif relation.kind in {"oleObject", "package"} and not relation.is_external:
                self._book.attach(relation.target)
        self._warn()
        if damage is not None:
            raise damage

    def _rows(self) -> Iterator[str]:
        from lxml import etree

        source = self._book.package.source(self._part)
        tags = (f"{_S}row", f"{_S}cols", f"{_S}oddHeader", f"{_S}oddFooter")
        try:
            for _, element in etree.iterparse(
                io.BytesIO(source), tag=tags, resolve_entities=False, no_network=True
            ):
                if element.tag == f"{_S}row":
                    if line := self._row(element):
                        yield line
                elif element.tag == f"{_S}cols":
                    self._note_columns(element)
                elif text := _margin(element.text or ""):
                    yield f"[{'Header' if element.tag.endswith('Header') else 'Footer'}: {text}]"
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]
        except etree.XMLSyntaxError as error:
            raise DamagedPartError(self._part) from error

    def _row(self, row: Any) -> str:  # noqa: ANN401
        """Return the line of a row; a gap of many cells becomes the address of the cell after it."""
        pieces: list[str] = []
        at = 0  # the column of the next piece
        column = -1
        for cell in row:
            address = cell.get("r")
            if cell.tag != f"{_S}c":
                continue
            found = _ADDRESS.fullmatch(address) if address else None
            column = _column(found[1]) if found else column + 1
            text = self._value(cell, address or "")
            if address and address in self._comments:
                text = " ".join([*([text] if text else []), *self._comments.pop(address)])
            if not text:
                continue
            gap = column - at
            if gap > _MOST_TABS or gap < 0:
                text = f"[{address or letters(column)}] {text}"
                gap = 0
            if pieces:
                pieces.append("\t")
            pieces += ["\t" * gap, text]
            at = column + 1
        line = "".join(pieces)
        if line and row.get("hidden", "0") not in _OFF:
            self._hidden.rows.append(whole(row.get("r"), 0))
        return line

    def _value(self, cell: Any, address: str) -> str:  # noqa: ANN401
        kind, raw, formula, inline = cell.get("t", "n"), None, None, None
        for child in cell:
            if child.tag == f"{_S}v":
                raw = child.text or ""
            elif child.tag == f"{_S}f":
                formula = child
            elif child.tag == f"{_S}is":
                inline = child
        if formula is not None and self._lacks_value(kind, raw):
            self._book.num_formulas[self._name] += 1
            return " ".join(self._formula(formula, address).split())
        if formula is not None and formula.get("si") and formula.text:
            self._shared[formula.get("si", "")] = address
        if inline is not None:
            return " ".join(_rich(inline).split())
        if not raw:
            return ""
        return " ".join(self._text(kind, raw, cell.get("s")).split())

    @staticmethod
    def _lacks_value(kind: str, raw: str | None) -> bool:
        return raw is None or (not raw and kind != "str")

    def _formula(self, formula: Any, address: str) -> str:  # noqa: ANN401
        if formula.text:
            if formula.get("si"):
                self._shared[formula.get("si", "")] = address
            return f"={formula.text}"
        return f"[formula as in {self._shared.get(formula.get('si', ''), 'another cell')}]"

    def _text(self, kind: str, raw: str, style: str | None) -> str:
        """Return a value as the sheet shows it."""
        book = self._book
        match kind:
            case "s":
                place = whole(raw, -1)
                text = book.texts[place] if 0 <= place < len(book.texts) else ""
            case "str" | "inlineStr":
                text = _unescaped(raw)
            case "b":
                text = "TRUE" if raw.strip() not in _OFF else "FALSE"
            case "d":
                text = raw.removesuffix("T00:00:00").replace("T", " ")
            case "n":
                with suppress(ValueError, OverflowError):
                    return shown(float(raw), book.format_of(style), is_1904=book.is_1904)
                text = raw
            case _:  # an error, such as #DIV/0!
                text = raw
        return text

    def _note_columns(self, columns: Any) -> None:  # noqa: ANN401
        for each in columns:
            first, last = whole(each.get("min"), 0), min(whole(each.get("max"), 0), _NUM_COLUMNS)
            if each.get("hidden", "0") not in _OFF and 0 < first <= last:
                run = (letters(first - 1), letters(last - 1))
                self._hidden.columns.append(run[0] if first == last else "-".join(run))

    def _all_comments(self) -> dict[str, list[str]]:
        """Map addresses of cells to their comments; threads come before their plain copies."""
        comments: dict[str, list[str]] = {}
        threaded = set()
        for kind in ("threadedComment", "comments"):
            for relation in self._relations.values():
                if relation.kind != kind or relation.is_external:
                    continue
                root = self._book.package.optional(relation.target, f"the comments of sheet {self._name}")
                if root is None:
                    continue
                if kind == "threadedComment":
                    for address, text in self._threads(root):
                        comments.setdefault(address, []).append(text)
                        threaded.add(address)
                else:
                    for address, text in _notes(root):
                        if address not in threaded:
                            comments.setdefault(address, []).append(text)
        return comments

    def _threads(self, root: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
        for each in root.iter(f"{_T}threadedComment"):
            text = " ".join((each.findtext(f"{_T}text") or "").split())
            if text:
                yield each.get("ref", ""), comment(self._book.persons.get(each.get("personId", ""), ""), text)

    def _write_drawing(self, part: str) -> None:
        from lxml import etree

        book = self._book
        root = book.package.optional(part, f"a drawing of sheet {self._name}")
        if root is None:
            return
        relations = book.package.relations(part)
        walk = etree.iterwalk(root, events=("start",))
        for _, element in walk:
            if element.tag == FALLBACK:
                walk.skip_subtree()
            elif element.tag == f"{A}p":
                if line := paragraph_text(element):
                    book.draft.write(f"[Text box] {line}\n")
                walk.skip_subtree()
            elif element.tag in {f"{C}chart", _CHARTEX}:
                self._write_lines(chart_lines, relations.get(element.get(f"{R}id", "")))
            elif element.tag == f"{DGM}relIds":
                self._write_lines(diagram_lines, relations.get(element.get(f"{R}dm", "")))

    def _write_lines(self, read: Any, relation: Relation | None) -> None:  # noqa: ANN401
        if relation is not None and not relation.is_external:
            self._book.draft.write("\n")
            for line in read(self._book.package, relation.target):
                self._book.draft.write(line + "\n")

    def _warn(self) -> None:
        self._hidden.warn(self._book.draft, self._name, self._number)


def _notes(root: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield address and text of each comment of the older kind."""
    authors = [each.text or "" for each in root.iterfind(f"{_S}authors/{_S}author")]
    for each in root.iter(f"{_S}comment"):
        number = whole(each.get("authorId"), -1)
        author = authors[number] if 0 <= number < len(authors) else ""
        text = " ".join(_rich(each).split())
        if text.startswith(_COUNTERFEIT):
            text, author = text.partition("Comment:")[2].strip() or text, ""
        text = text.removeprefix(f"{author}:").strip() if author else text
        if text:
            yield each.get("ref", ""), comment(author, text)


def _margin(text: str) -> str:
    """Return the words of a printed header or footer, without codes such as &P for the page's number."""
    text = re.sub(r'&"[^"]*"|&K[0-9A-Fa-f]{6}|&\d{1,3}|&[LCR]', " ", text)
    text = re.sub(r"&[A-Za-z]", "", text.replace("&&", "\0")).replace("\0", "&")
    text = " ".join(text.split())
    return text if re.search(r"[^\W\d_]{3}", text) and text.lower() not in {"page", "page of"} else ""


def _column(letters: str) -> int:
    """Return the place of a column, from 0 for A."""
    place = 0
    for letter in letters:
        place = place * 26 + ord(letter) - 64
    return place - 1


def _runs(rows: list[int]) -> list[str]:
    """Return rows in order as runs: 3-5, 9."""
    out: list[str] = []
    first = last = rows[0]
    for row in [*rows[1:], None]:
        if row is not None and row == last + 1:
            last = row
            continue
        out.append(str(first) if first == last else f"{first}-{last}")
        first = last = row or 0
    return out


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _opened_xls(data: bytes) -> Any | None:  # noqa: ANN401  # the library is untyped
    """Open an xls with its formats; None if the library cannot."""
    import xlrd

    try:
        return xlrd.open_workbook(
            file_contents=data, formatting_info=True, ragged_rows=True, logfile=_Nowhere()
        )
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # it raises anything on damaged files, which the other one may read
        return None


class _Nowhere(io.TextIOBase):
    """A file for what the library prints of its doubts."""

    def write(self, text: str) -> int:
        """Drop the text."""
        return len(text)


class _OldBook:
    """A workbook of Excel 97 to 2003."""

    def __init__(self, book: Any, draft: TextBuilder) -> None:  # noqa: ANN401
        self._book = book
        self._draft = draft

    def read(self) -> None:
        """Write all sheets."""
        sheets = self._book.sheets()
        self._draft.announce_pages(len(sheets))
        hidden = []
        for number, sheet in enumerate(sheets, 1):
            self._draft.begin_page()
            is_hidden = bool(sheet.visibility)
            self._draft.write(f"# {sheet.name}{' (hidden sheet)' if is_hidden else ''}\n\n")
            hidden += [number] if is_hidden else []
            self._read_sheet(sheet, number)
        _warn_of_sheets(self._draft, [sheet.name for sheet in sheets], hidden, [])

    def _read_sheet(self, sheet: Any, number: int) -> None:  # noqa: ANN401
        comments = {
            at: comment(note.author, text)
            for at, note in sheet.cell_note_map.items()
            if (text := " ".join(note.text.removeprefix(f"{note.author}:").split()))
        }
        unseen = _Hidden()
        for row in range(sheet.nrows):
            texts = [self._text(cell) for cell in sheet.row(row)]
            for column, text in enumerate(texts):
                if (row, column) in comments:
                    texts[column] = f"{text} {comments.pop((row, column))}".strip()
            if not (line := _line(texts)):
                continue
            self._draft.write(line + "\n")
            about = sheet.rowinfo_map.get(row)
            if about is not None and about.hidden:
                unseen.rows.append(row + 1)
        for (row, column), text in comments.items():
            self._draft.write(f"[{letters(column)}{row + 1}] {text}\n")
        unseen.columns = [
            letters(column)
            for column, about in sorted(sheet.colinfo_map.items())
            if about.hidden and column < sheet.ncols
        ]
        unseen.warn(self._draft, sheet.name, number)

    def _text(self, cell: Any) -> str:  # noqa: ANN401
        """Return a value as the sheet shows it."""
        import xlrd

        match cell.ctype:
            case xlrd.XL_CELL_TEXT:
                return str(cell.value)
            case xlrd.XL_CELL_NUMBER | xlrd.XL_CELL_DATE:
                return shown(float(cell.value), self._format(cell), is_1904=self._book.datemode == 1)
            case xlrd.XL_CELL_BOOLEAN:
                return "TRUE" if cell.value else "FALSE"
            case xlrd.XL_CELL_ERROR:
                return str(xlrd.error_text_from_code.get(cell.value, "#ERROR"))
            case _:
                return ""

    def _format(self, cell: Any) -> str:  # noqa: ANN401
        styles = self._book.xf_list
        style = styles[cell.xf_index] if 0 <= (cell.xf_index or 0) < len(styles) else None
        found = None if style is None else self._book.format_map.get(style.format_key)
        return GENERAL if found is None else str(found.format_str)


def _read_calamine(data: bytes, draft: TextBuilder) -> None:
    """Read a binary workbook, which the library knows without number formats, comments and charts."""
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError, SheetVisibleEnum

    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
    except PasswordError:
        raise ExtractionError("document_encrypted", "The workbook needs a password.") from None
    except CalamineError:
        refuse_corrupt("The workbook is truncated or damaged.")
    sheets = book.sheets_metadata
    draft.announce_pages(len(sheets))
    hidden, damaged = [], []
    for number, sheet in enumerate(sheets, 1):
        draft.begin_page()
        is_hidden = sheet.visible != SheetVisibleEnum.Visible
        draft.write(f"# {sheet.name}{' (hidden sheet)' if is_hidden else ''}\n\n")
        hidden += [number] if is_hidden else []
        try:
            rows = book.get_sheet_by_index(number - 1).iter_rows()
        except CalamineError:
            damaged.append(number)
            continue
        for row in rows:
            if line := _line(row):
                draft.write(line + "\n")
    _warn_of_sheets(draft, [sheet.name for sheet in sheets], hidden, damaged)


def _warn_of_sheets(draft: TextBuilder, names: list[str], hidden: list[int], damaged: list[int]) -> None:
    """Warn of hidden and damaged sheets.

    Raises:
        RefusedError: all sheets are damaged.
    """
    if damaged and len(damaged) == len(names):
        refuse_corrupt("All sheets are missing or damaged.")
    for number in damaged:
        what = f"sheet {names[number - 1]}, or the rest of it, could not be read and was left out."
        draft.warn("parts_damaged", f"The document is damaged: {what}", [number])
    if hidden:
        listed = _listed([names[number - 1] for number in hidden])
        draft.warn("hidden_parts", f"Hidden sheets were read and marked: {listed}.", hidden)


def _line(row: list[Any]) -> str:
    """Return the line of a row; the library gives no row numbers, so a wide gap names the column."""
    pieces: list[str] = []
    at = 0
    for column, value in enumerate(row):
        if value == "" or not (text := " ".join(_shown(value).split())):
            continue
        gap = column - at
        if gap > _MOST_TABS:
            gap, text = 0, f"[{letters(column)}] {text}"
        pieces += ["\t" * (gap + bool(pieces)), text]
        at = column + 1
    return "".join(pieces)


def _shown(value: object) -> str:
    """Return a value as a person reads it: dates in ISO 8601, whole numbers without a fraction."""
    match value:
        case bool():
            text = str(value).upper()
        case int() | float():
            text = general(value)
        case timedelta():
            minutes, seconds = divmod(round(value.total_seconds()), 60)
            text = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}".removesuffix(":00")
        case datetime():
            text = f"{value:%Y-%m-%d %H:%M:%S}".removesuffix(":00").removesuffix(" 00:00")
        case time():
            text = f"{value:%H:%M:%S}".removesuffix(":00")
        case _:
            text = str(value)
    return text
