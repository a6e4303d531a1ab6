"""Forms in XFA: XML within a PDF, from which only some of Adobe's programs draw the pages.

Other programs see a page that asks them to wait. The form's template has the labels, its data the values.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as ET

from pypdfium2 import PdfDocument, PdfiumError, raw

_MOST_DEPTH: Final = 60  # levels of a form, or of its data; real ones have 15
_UNSEEN: Final = frozenset({"hidden", "invisible", "inactive"})
_GROUPS: Final = frozenset({"subform", "subformSet", "area", "exclGroup", "pageSet", "pageArea", "template"})


def is_xfa_alone(pdf: PdfDocument) -> bool:
    """Return True if the document is an XFA form that no page shows: none has a field."""
    if raw.FPDF_GetXFAPacketCount(pdf) <= 0:
        return False
    return not any(_has_field(pdf, number) for number in range(len(pdf)))


def _has_field(pdf: PdfDocument, number: int) -> bool:
    try:
        page = pdf[number]
    except PdfiumError:
        return False
    try:
        for at in range(raw.FPDFPage_GetAnnotCount(page)):
            annotation = raw.FPDFPage_GetAnnot(page, at)
            kind = raw.FPDFAnnot_GetSubtype(annotation) if annotation else raw.FPDF_ANNOT_UNKNOWN
            if annotation:
                raw.FPDFPage_CloseAnnot(annotation)
            if kind == raw.FPDF_ANNOT_WIDGET:
                return True
        return False
    finally:
        page.close()


def read_xfa(pdf: PdfDocument) -> str:
    """Return labels and values of the form, a line for each field; empty if they cannot be read."""
    template = data = None
    for number in range(raw.FPDF_GetXFAPacketCount(pdf)):
        root = _parsed(_packet(pdf, number))
        for element in () if root is None else root.iter():
            name = _name(element)
            if name == "template" and template is None:
                template = element
            elif name == "datasets" and data is None:
                data = next((each for each in element if _name(each) == "data"), None)
    form = _Form()
    if template is not None:
        form.write_group(template, data, 0)
    if data is not None:
        form.write_rest(data, 0)
    return "\n".join(line for line in form.lines if line.strip())


def _packet(pdf: PdfDocument, number: int) -> bytes:
    size = ctypes.c_ulong()
    if not raw.FPDF_GetXFAPacketContent(pdf, number, None, 0, size) or not size.value:
        return b""
    content = ctypes.create_string_buffer(size.value)
    raw.FPDF_GetXFAPacketContent(pdf, number, content, size.value, size)
    return content.raw


def _parsed(content: bytes) -> "ET.Element | None":
    """Parse a packet; None if it is no XML of its own, like those that open and close the list."""
    try:
        return ET.fromstring(content)  # noqa: S314  # expat stops entities that expand a hundredfold
    except (ET.ParseError, ValueError, LookupError):
        return None


@dataclass(slots=True)
class _Form:
    """The lines of a form so far.

    Attributes:
        used: data that a field showed, by identity.
    """

    lines: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def write_group(self, group: "ET.Element", data: "ET.Element | None", depth: int) -> None:
        """Write the labels and fields of a part of the form."""
        if depth > _MOST_DEPTH:
            return
        is_row, first = group.get("layout") == "row", len(self.lines)
        chosen = self._take(data, _bound_name(group)) if _name(group) == "exclGroup" else None
        for element in group:
            name = _name(element)
            if element.get("presence") in _UNSEEN:
                self._use_hidden(element, data)
            elif name == "draw":
                self.lines.append(_value_of(element))
            elif name == "field":
                self._write_field(element, data, chosen)
            elif name in _GROUPS:
                for inner in self._instances(element, data):
                    self.write_group(element, inner, depth + 1)
        if is_row:
            self.lines[first:] = ["\t".join(self.lines[first:])]

    def _instances(self, group: "ET.Element", data: "ET.Element | None") -> "list[ET.Element | None]":
        """Return the data of each copy of a group, in a repeated one of each row."""
        name = _bound_name(group)
        if _name(group) != "subform" or not name:
            return [data]
        found = [] if data is None else [each for each in data if _name(each) == name]
        return [*found] or [data]

    def _take(self, data: "ET.Element | None", name: str) -> str | None:
        """Return the next unused value of this name; None if there is none."""
        for each in () if data is None or not name else data:
            if _name(each) == name and id(each) not in self.used:
                self.used.add(id(each))
                return _words(each)
        return None

    def _use_hidden(self, element: "ET.Element", data: "ET.Element | None") -> None:
        if _name(element) == "field":
            self._take(data, _bound_name(element))

    def _write_field(self, element: "ET.Element", data: "ET.Element | None", chosen: str | None) -> None:
        """Write a field: its label and its value, or a box and its label."""
        label = next((_value_of(each) for each in element if _name(each) == "caption"), "")
        value = self._take(data, _bound_name(element))
        if value is None:
            value = _value_of(element)
        kinds = {_name(each) for ui in element if _name(ui) == "ui" for each in ui}
        shown, saved = _options(element)
        if "checkButton" in kinds:
            on = (saved or shown or ["1"])[0]
            is_ticked = (value if chosen is None else chosen) == on
            self.lines.append(f"{'[x]' if is_ticked else '[ ]'} {label}".strip())
        elif "button" not in kinds:
            value = "" if "passwordEdit" in kinds else value
            if value in saved and len(saved) == len(shown):
                value = shown[saved.index(value)]
            self.lines.append(f"{label} {value}".strip())

    def write_rest(self, data: "ET.Element", depth: int) -> None:
        """Write the values that no field of the template shows, with their names."""
        for each in data if depth <= _MOST_DEPTH else ():
            if len(each) and not _is_rich(each):
                self.write_rest(each, depth + 1)
            elif id(each) not in self.used and (value := _words(each)):
                self.lines.append(f"{_name(each)}: {value}")


def _bound_name(element: "ET.Element") -> str:
    """Return the name of the data that a field or group shows; empty if it shows none."""
    for bind in element:
        if _name(bind) == "bind":
            if bind.get("match") == "none":
                return ""
            if bind.get("match") == "dataRef":
                return bind.get("ref", "").rpartition(".")[2].partition("[")[0]
    return element.get("name", "")


def _options(element: "ET.Element") -> tuple[list[str], list[str]]:
    """Return the options of a list as they are shown and as they are saved."""
    shown: list[str] = []
    saved: list[str] = []
    for items in element:
        if _name(items) == "items":
            (saved if items.get("save") == "1" else shown).extend(_words(each) for each in items)
    return shown or saved, saved or shown


def _value_of(element: "ET.Element") -> str:
    """Return the text in the element's own value."""
    return next((_words(each) for each in element if _name(each) == "value"), "")


def _words(element: "ET.Element") -> str:
    return " ".join(" ".join(_texts(element)).split())


def _texts(element: "ET.Element") -> Iterator[str]:
    """Return the texts in an element, without those of pictures."""
    for each in element.iter():
        if _name(each) != "image" and each.text:
            yield each.text
        if each is not element and each.tail:
            yield each.tail


def _is_rich(element: "ET.Element") -> bool:
    return any(_name(each) in ("body", "p", "html") for each in element)


def _name(element: "ET.Element") -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""
