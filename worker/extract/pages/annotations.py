"""What lies on a page of a PDF: fields of forms, text typed on top, remarks, stamps and attached files.

A page's text has none of it. Values of fields and typed text belong to a place on the page; remarks stand at
its end. What has no text of its own, such as a stamp, is read from its appearance.
"""

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from typing import Any, Final

from pypdfium2 import PdfPage, raw

from worker.extract.pages.placing import Rectangle, rectangle

_HIDDEN: Final = 2 | 32  # flags of annotations: hidden, not viewed
_DRAWS_LETTERS: Final = re.compile(r"\bT[jJ]\b|\bDo\b|[\x27\"]\s*$")
_PASSWORD: Final = 1 << 13  # flag of a text field
_UNKNOWN_FIELD: Final = -1
_TICKED: Final = frozenset({raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON})
_CHOSEN: Final = frozenset({raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX})
_VALUED: Final = _TICKED | _CHOSEN | {raw.FPDF_FORMFIELD_TEXTFIELD}
_MOST_QUOTED: Final = 200  # characters of the text that a remark is about
_MOST_QUADS: Final = 100  # lines of it
_RECORDED: Final = frozenset(
    {raw.FPDF_ANNOT_SOUND, raw.FPDF_ANNOT_MOVIE, raw.FPDF_ANNOT_SCREEN, raw.FPDF_ANNOT_RICHMEDIA}
)
_UNREMARKABLE: Final = _RECORDED | {
    raw.FPDF_ANNOT_LINK,
    raw.FPDF_ANNOT_PRINTERMARK,
    raw.FPDF_ANNOT_TRAPNET,
    raw.FPDF_ANNOT_WATERMARK,
    raw.FPDF_ANNOT_THREED,
}
_MARKUP: Final = frozenset(
    {
        raw.FPDF_ANNOT_HIGHLIGHT,
        raw.FPDF_ANNOT_UNDERLINE,
        raw.FPDF_ANNOT_SQUIGGLY,
        raw.FPDF_ANNOT_STRIKEOUT,
    }
)
_TAG: Final = re.compile("<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Item:
    """A value or a typed text, and where it lies.

    Attributes:
        text: empty if the field is, or while only its appearance has the text.
        is_tick: a box or a radio button; its text is `[x]` or `[ ]`.
        is_drawn: its text is read from its appearance.
        name: of a field, for pages whose labels are unknown.
        own: the page's own text at its place, if its text is read from its appearance.
    """

    place: Rectangle
    text: str
    is_tick: bool = False
    is_drawn: bool = False
    name: str = ""
    own: str = ""

    @property
    def named(self) -> str:
        """The text and the field's name, in place of a label."""
        if not self.name:
            return self.text
        return f"{self.text} {self.name}" if self.is_tick else f"{self.name}: {self.text}"


@dataclass(slots=True)
class PageNotes:
    """What lies on a page.

    Attributes:
        remarks: each as it is shown at the page's end.
        stamps: each with the remark to show if its appearance has no text.
        attached: name and bytes of each file; None if they cannot be read.
        num_hidden: fields with a value that the page does not show.
        num_drawings: drawings by pen without a word about them.
        num_recordings: sounds and films.
    """

    items: list[Item] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    stamps: list[tuple[Item, str]] = field(default_factory=list)
    attached: list[tuple[str, bytes | None]] = field(default_factory=list)
    num_hidden: int = 0
    num_drawings: int = 0
    num_recordings: int = 0

    @property
    def has_text(self) -> bool:
        """Whether anything of it is text."""
        return bool(self.remarks) or any(item.text for item in self.items)


def read_notes(page: PdfPage, quoted: Callable[[Rectangle], str], *, has_labels: bool) -> PageNotes:
    """Read what lies on the page.

    Args:
        page: with its form, if it has one.
        quoted: returns the page's own text within a rectangle.
        has_labels: the page has enough text of its own, so that fields need not be named.
    """
    notes = PageNotes()
    seen: set[tuple[str, str, Rectangle]] = set()
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        with _opened(raw.FPDFPage_GetAnnot(page, number)) as annotation:
            if annotation is None:
                continue
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            if kind == raw.FPDF_ANNOT_WIDGET:
                _read_field(page, annotation, notes=notes, quoted=quoted, has_labels=has_labels)
            elif not raw.FPDFAnnot_GetFlags(annotation) & _HIDDEN:
                _read_note(annotation, kind, notes=notes, quoted=quoted, seen=seen)
    return notes


def _read_field(
    page: PdfPage,
    annotation: Any,  # noqa: ANN401
    *,
    notes: PageNotes,
    quoted: Callable[[Rectangle], str],
    has_labels: bool,
) -> None:
    """Read a field's value as the page shows it."""
    form = page.formenv
    place = _place(annotation)
    kind = _UNKNOWN_FIELD if form is None else raw.FPDFAnnot_GetFormFieldType(form, annotation)
    if raw.FPDFAnnot_GetFlags(annotation) & _HIDDEN or place.is_empty:
        notes.num_hidden += kind in _VALUED and bool(_typed(form, annotation))
        return
    text, is_tick = "", kind in _TICKED
    if is_tick:
        text = "[x]" if _is_ticked(form, annotation) else "[ ]"
    elif kind in _CHOSEN:
        text = _chosen(form, annotation)
    elif kind == raw.FPDF_FORMFIELD_TEXTFIELD:
        is_secret = raw.FPDFAnnot_GetFormFieldFlags(form, annotation) & _PASSWORD
        text = "" if is_secret else _typed(form, annotation)
    elif kind == _UNKNOWN_FIELD and (state := _state_of_a_lone_box(annotation)):
        text, is_tick = "[ ]" if state == "Off" else "[x]", True
    elif kind == _UNKNOWN_FIELD and not _is_secret(annotation):
        text = _string(annotation, "V")
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    # A signature, a button's caption, or a field that the form does not list: as it is drawn.
    # So is a typed text that the program drew without storing it.
    is_drawn = (
        not text and not _is_secret(annotation) and (kind not in _VALUED or _is_drawn(annotation, kind))
    )
    name = "" if has_labels else _field_name(form, annotation)
    own = quoted(place) if is_drawn else ""
    notes.items.append(Item(place, text, is_tick=is_tick, is_drawn=is_drawn, name=name, own=own))


def _is_secret(annotation: Any) -> bool:  # noqa: ANN401
    """Return True if a field that the form does not list is one for a password."""
    flags = ctypes.c_float()
    raw.FPDFAnnot_GetNumberValue(annotation, b"Ff", flags)
    return _string(annotation, "FT") == "Tx" and bool(int(flags.value) & _PASSWORD)


def _is_drawn(annotation: Any, kind: int) -> bool:  # noqa: ANN401
    """Return True if a text field without a value shows letters."""
    if kind != raw.FPDF_FORMFIELD_TEXTFIELD:
        return False
    appearance = _text(partial(raw.FPDFAnnot_GetAP, annotation, raw.FPDF_ANNOT_APPEARANCEMODE_NORMAL))
    return _DRAWS_LETTERS.search(appearance) is not None


def _state_of_a_lone_box(annotation: Any) -> str:  # noqa: ANN401
    """Return the state of a box that the form does not list; empty if it is none."""
    state = _string(annotation, "AS")
    return state if _string(annotation, "FT") in ("Btn", "") else ""


def _field_name(form: Any, annotation: Any) -> str:  # noqa: ANN401
    """Return what the field is called for people, or else its own name."""
    if form is None:
        return _string(annotation, "T")
    return " ".join(
        (
            _text(partial(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation))
            or _text(partial(raw.FPDFAnnot_GetFormFieldName, form, annotation))
        ).split()
    )


def _typed(form: Any, annotation: Any) -> str:  # noqa: ANN401
    """Return the value of a field."""
    return _text(partial(raw.FPDFAnnot_GetFormFieldValue, form, annotation))


def _is_ticked(form: Any, annotation: Any) -> bool:  # noqa: ANN401
    """Return True if the box has the state that it shows when it is ticked.

    Some programs set the field's value and leave each box as it was; viewers tick it when it is opened.
    """
    state = _string(annotation, "AS")
    if state not in ("", "Off"):
        return True
    value = _string(annotation, "V") or _typed(form, annotation)
    if value in ("", "Off"):
        return False
    own = _text(partial(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation))
    return own == value or (not own and raw.FPDFAnnot_GetFormControlCount(form, annotation) <= 1)


def _chosen(form: Any, annotation: Any) -> str:  # noqa: ANN401
    """Return the chosen options as the list shows them, or what was typed instead."""
    labels = [
        _text(partial(raw.FPDFAnnot_GetOptionLabel, form, annotation, at))
        for at in range(max(0, raw.FPDFAnnot_GetOptionCount(form, annotation)))
        if raw.FPDFAnnot_IsOptionSelected(form, annotation, at)
    ]
    return ", ".join(labels) or _typed(form, annotation)


def _read_note(
    annotation: Any,  # noqa: ANN401
    kind: int,
    *,
    notes: PageNotes,
    quoted: Callable[[Rectangle], str],
    seen: set[tuple[str, str, Rectangle]],
) -> None:
    """Read what a person added to the page."""
    place = _place(annotation)
    text = _contents(annotation)
    author = " ".join(_string(annotation, "T").split())
    by = f" by {author}" if author else ""
    if kind == raw.FPDF_ANNOT_FILEATTACHMENT:
        _take_file(annotation, notes)
        text = "" if any(text == name for name, _ in notes.attached) else text
    notes.num_recordings += kind in _RECORDED
    if kind in _UNREMARKABLE or (text and (author, text, place) in seen):
        return
    if kind == raw.FPDF_ANNOT_POPUP:
        with _opened(raw.FPDFAnnot_GetLinkedAnnot(annotation, b"Parent")) as parent:
            if parent is not None and _contents(parent):
                return
    seen.add((author, text, place))
    is_reply = raw.FPDFAnnot_HasKey(annotation, b"IRT")
    if kind == raw.FPDF_ANNOT_FREETEXT and not is_reply:
        own = "" if text else quoted(place)
        notes.items.append(Item(place, text, is_drawn=not text, own=own))
        return
    said = " ".join(text.split())
    about = _quoted(annotation, quoted) if kind in _MARKUP else ""
    if kind == raw.FPDF_ANNOT_STAMP:
        named = said or " ".join(re.findall("[A-Z][a-z]+|[^A-Z]+", _string(annotation, "Name")))
        notes.stamps.append(
            (Item(place, "", is_drawn=True, own=quoted(place)), f"[Stamp{by}: {named}]" if named else "")
        )
    elif kind == raw.FPDF_ANNOT_STRIKEOUT and about:
        more = f": {said}" if said and said != about else ""
        notes.remarks.append(f"[Struck out{by}: “{about}”{more}]")
    elif said and said != about:
        on = f" on “{about}”" if about else ""
        notes.remarks.append(f"[{'Reply' if is_reply else 'Remark'}{by}{on}: {said}]")
    elif kind == raw.FPDF_ANNOT_INK:
        notes.num_drawings += 1


def _quoted(annotation: Any, quoted: Callable[[Rectangle], str]) -> str:  # noqa: ANN401
    """Return the text that is marked."""
    lines: list[str] = []
    points = raw.FS_QUADPOINTSF()
    for number in range(min(raw.FPDFAnnot_CountAttachmentPoints(annotation), _MOST_QUADS)):
        if raw.FPDFAnnot_GetAttachmentPoints(annotation, number, points):
            xs = (points.x1, points.x2, points.x3, points.x4)
            ys = (points.y1, points.y2, points.y3, points.y4)
            lines.append(quoted(Rectangle(min(xs), min(ys), max(xs), max(ys))))
    text = " ".join(" ".join(lines).split())
    return text if len(text) <= _MOST_QUOTED else text[: _MOST_QUOTED - 1].rstrip() + "…"


def _contents(annotation: Any) -> str:  # noqa: ANN401
    """Return what an annotation says, without the format of rich text."""
    text = _string(annotation, "Contents")
    if not text.strip():
        text = " ".join(unescape(_TAG.sub(" ", _string(annotation, "RC"))).split())
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _take_file(annotation: Any, notes: PageNotes) -> None:  # noqa: ANN401
    attached = raw.FPDFAnnot_GetFileAttachment(annotation)
    if attached:
        notes.attached.append(read_attachment(attached))


def read_attachment(attached: Any) -> tuple[str, bytes | None]:  # noqa: ANN401
    """Return the name and bytes of a file within the document; None if they are damaged or too many."""
    name = _text(partial(raw.FPDFAttachment_GetName, attached))
    size = ctypes.c_ulong()
    if not raw.FPDFAttachment_GetFile(attached, None, 0, size):
        return name, None
    try:
        content = ctypes.create_string_buffer(size.value)
    except MemoryError:
        return name, None
    is_read = raw.FPDFAttachment_GetFile(attached, content, size.value, size)
    return name, content.raw if is_read else None


def _place(annotation: Any) -> Rectangle:  # noqa: ANN401
    found = raw.FS_RECTF()
    raw.FPDFAnnot_GetRect(annotation, found)
    return rectangle(found)


def _string(annotation: Any, key: str) -> str:  # noqa: ANN401
    return _text(lambda room, size: raw.FPDFAnnot_GetStringValue(annotation, key.encode(), room, size))


def _text(fill: Callable[[Any, int], int]) -> str:
    """Read a text of PDFium, which first returns the bytes that it needs, and then fills them."""
    size = fill(None, 0)
    if size <= 2:  # the end mark of UTF-16
        return ""
    room = (ctypes.c_ushort * (size // 2 + 1))()
    fill(room, size)
    return bytes(room)[:size].decode("utf-16-le", "replace").rstrip("\0")


@contextmanager
def _opened(annotation: Any) -> Iterator[Any]:  # noqa: ANN401
    """Close the annotation at the end; None if there is none."""
    if not annotation:
        yield None
        return
    try:
        yield annotation
    finally:
        raw.FPDFPage_CloseAnnot(annotation)
