"""PDFs written object by object: fields, remarks, pictures and attached files as many programs write them."""

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

_FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page.

    Attributes:
        content: operators; `/F1` is Helvetica, `/Im1` the picture.
        annotations: dictionaries, each with all its keys; `$PAGE` is the page's number.
        more: further entries of the page.
        picture: a gray picture's pixels; None: there is none.
        picture_size: width and height of the picture.
    """

    content: str
    annotations: Sequence[str] = ()
    more: str = ""
    picture: bytes | None = None
    picture_size: tuple[int, int] = (8, 8)


@dataclass(slots=True)
class DrawnPdf:
    """A PDF's objects; `others` can be named by their numbers, from 10 on."""

    pages: Sequence[DrawnPage]
    others: Sequence[bytes | str] = ()
    catalog: str = ""
    acroform: str = ""
    fields: Sequence[int] | None = None
    _objects: dict[int, bytes] = field(default_factory=dict)

    def written(self) -> bytes:
        """Return the file."""
        self._objects[3] = _FONT.encode()
        for number, other in enumerate(self.others, 10):
            self._objects[number] = other if isinstance(other, bytes) else other.encode("latin-1")
        kids, found = [], []
        for page in self.pages:
            number = self._next()
            self._objects[number] = b""
            annotations = []
            for annotation in page.annotations:
                at = self._add(annotation.replace("$PAGE", str(number)))
                annotations.append(at)
                if "/Widget" in annotation and "/Parent" not in annotation:
                    found.append(at)
            self._write_page(number, page, annotations)
            kids.append(number)
        self._objects[2] = f"<< /Type /Pages /Count {len(kids)} /Kids [{_refs(kids)}] >>".encode()
        roots = found if self.fields is None else [*self.fields, *found]
        form = ""
        if roots or self.acroform:
            form = (
                f"/AcroForm << /Fields [{_refs(roots)}] /DA (/Helv 12 Tf 0 g)"
                f" /DR << /Font << /Helv 3 0 R >> >> {self.acroform} >>"
            )
        self._objects[1] = f"<< /Type /Catalog /Pages 2 0 R {form} {self.catalog} >>".encode("latin-1")
        return self._file()

    def _write_page(self, number: int, page: DrawnPage, annotations: Sequence[int]) -> None:
        content = self._add(stream(page.content.encode("latin-1")))
        pictures = ""
        if page.picture is not None:
            width, height = page.picture_size
            head = (
                f"/Type /XObject /Subtype /Image /Width {width} /Height {height}"
                " /ColorSpace /DeviceGray /BitsPerComponent 8"
            )
            pictures = f"/XObject << /Im1 {self._add(stream(page.picture, head))} 0 R >>"
        self._objects[number] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {content} 0 R"
            f" /Resources << /Font << /F1 3 0 R >> {pictures} >>"
            f" /Annots [{_refs(annotations)}] {page.more} >>"
        ).encode("latin-1")

    def _add(self, body: bytes | str) -> int:
        number = self._next()
        self._objects[number] = body if isinstance(body, bytes) else body.encode("latin-1")
        return number

    def _next(self) -> int:
        return max(10, *self._objects) + 1

    def _file(self) -> bytes:
        out = io.BytesIO()
        out.write(b"%PDF-1.7\n")
        offsets = {}
        for number, body in sorted(self._objects.items()):
            offsets[number] = out.tell()
            out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
        start, size = out.tell(), max(offsets) + 1
        out.write(b"xref\n0 1\n0000000000 65535 f \n")
        for number, offset in offsets.items():
            out.write(b"%d 1\n%010d 00000 n \n" % (number, offset))
        out.write(b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, start))
        return out.getvalue()


def stream(content: bytes, head: str = "") -> bytes:
    """A stream, deflated."""
    packed = zlib.compress(content)
    start = f"<< {head} /Length {len(packed)} /Filter /FlateDecode >>\nstream\n"
    return start.encode() + packed + b"\nendstream"


def appearance(text: str, width: int, height: int) -> bytes:
    """A form that draws a text, as the appearance of an annotation."""
    head = (
        f"/Type /XObject /Subtype /Form /BBox [0 0 {width} {height}] /Resources << /Font << /Helv 3 0 R >> >>"
    )
    return stream(f"/Tx BMC q BT /Helv 10 Tf 2 4 Td ({text}) Tj ET Q EMC".encode("latin-1"), head)


def words(x: int, y: int, text: str, size: int = 12) -> str:
    """The operators that draw a text."""
    return f"BT /F1 {size} Tf {x} {y} Td ({text}) Tj ET\n"


def widget(kind: str, name: str, rectangle: str, more: str = "") -> str:
    """A field with its place."""
    return (
        f"<< /Type /Annot /Subtype /Widget /FT /{kind} /T ({name}) /Rect [{rectangle}] /F 4"
        f" /DA (/Helv 12 Tf 0 g) {more} >>"
    )


def note(kind: str, rectangle: str, more: str) -> str:
    """An annotation that is no field."""
    return f"<< /Type /Annot /Subtype /{kind} /Rect [{rectangle}] {more} >>"


def _refs(numbers: Sequence[int]) -> str:
    return " ".join(f"{number} 0 R" for number in numbers)
