"""Office Open XML packages: parts found by their relationships, and read so that one bad part harms no other.

Parts are parsed here rather than by python-docx, python-pptx and openpyxl: those refuse a package by the
content type of its main part (macros, templates, shows), know no strict namespaces, and fail over a bad part.
"""

import io
import posixpath
import re
import zipfile
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from worker.extract.archive import open_archive, read_member
from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt

_ROOT_RELATIONS: Final = "_rels/.rels"
# The strict form of the standard names the same elements by other namespaces.
_STRICT: Final = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/(\w+)")
_TRANSITIONAL: Final = rb"http://schemas.openxmlformats.org/\1/2006/\2"
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_DECLARATION: Final = re.compile(r"^\s*<\?xml[^>]*\?>")
_ENTITIES: Final = re.compile(rb"<!DOCTYPE", re.IGNORECASE)  # no program writes any
_MOST_FIGURES: Final = 9

R: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
FALLBACK: Final = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a part to another.

    Attributes:
        kind: the last word of its type, such as `image`.
        target: path of the other part, or an address if it is external.
    """

    kind: str
    target: str
    is_external: bool


class DamagedPartError(Exception):
    """The part is missing, damaged, or not XML."""


class Package:
    """The parts of a document, by their paths without a leading slash; case is ignored, as in Office."""

    def __init__(self, data: bytes, draft: TextBuilder) -> None:
        self.archive: zipfile.ZipFile = open_archive(data, draft.limits)
        self._draft = draft
        self._names = {_normal(name).lower(): name for name in self.archive.namelist()}

    def main(self, folder: str, kind: str) -> str:
        """Return the path of the main part, which is below the folder of its kind.

        Raises:
            RefusedError: the package is of another kind.
        """
        found = [each.target for each in self.relations("").values() if each.kind == "officeDocument"]
        usual = {"word": "word/document.xml", "ppt": "ppt/presentation.xml", "xl": "xl/workbook.xml"}[folder]
        for path in (*found, usual):
            if path.lower().startswith(folder + "/") and path.lower() in self._names:
                return path
        message = f"The document is a zip archive, but not of kind {kind}."
        raise ExtractionError("unsupported_document", message)

    def title(self) -> str | None:
        """Return the document's own title; None if it has none."""
        for relation in self.relations("").values():
            if relation.kind == "core-properties":
                root = self.optional(relation.target, "the document's properties")
                title = None if root is None else root.findtext(".//{http://purl.org/dc/elements/1.1/}title")
                return None if title is None else str(title)
        return None

    def relations(self, part: str) -> dict[str, Relation]:
        """Return the relations of a part by their ids; the package's own for the empty path."""
        folder, name = posixpath.split(part)
        path = posixpath.join(folder, "_rels", name + ".rels") if part else _ROOT_RELATIONS
        if path.lower() not in self._names:
            return {}
        root = self.optional(path, f"the relations of {name or 'the document'}")
        relations = {}
        for each in root if root is not None else ():
            target, is_external = each.get("Target", ""), each.get("TargetMode") == "External"
            if not is_external:
                target = _normal(posixpath.join(folder, unquote(target).replace("\\", "/")))
            kind = each.get("Type", "").rpartition("/")[2]
            relations[each.get("Id", "")] = Relation(kind, target, is_external)
        return relations

    def read(self, part: str) -> bytes:
        """Return the bytes of a part.

        Raises:
            DamagedPartError: it is missing or damaged.
        """
        try:
            return read_member(self.archive, self._names.get(part.lower(), part))
        except ExtractionError as error:
            raise DamagedPartError(part) from error

    def source(self, part: str) -> bytes:
        """Return the XML of a part, its namespaces those of the transitional form.

        Raises:
            DamagedPartError: it is missing, damaged, or has entities.
        """
        raw = self.read(part)
        if raw.startswith(_WIDE_MARKS):
            raw = _DECLARATION.sub("", raw.decode("utf-16", "replace")).encode()
        if _ENTITIES.search(raw, 0, 4096):
            raise DamagedPartError(part)
        return _STRICT.sub(_TRANSITIONAL, raw) if b"purl.oclc.org/ooxml" in raw else raw

    def xml(self, part: str) -> Any:  # noqa: ANN401  # lxml is untyped
        """Parse a part.

        Raises:
            DamagedPartError: it is missing, damaged, or not XML.
        """
        from lxml import etree

        try:
            return etree.fromstring(self.source(part), _parser())
        except (etree.XMLSyntaxError, ValueError) as error:
            raise DamagedPartError(part) from error

    def optional(self, part: str, what: str) -> Any:  # noqa: ANN401
        """Parse a part that the document can do without; warn and return None if it is damaged."""
        try:
            return self.xml(part)
        except DamagedPartError:
            self.warn_damaged(what)
            return None

    def main_xml(self, part: str) -> Any:  # noqa: ANN401
        """Parse the main part; one that breaks off is read up to there, with a warning.

        Raises:
            RefusedError: nothing of it can be read.
        """
        try:
            return self.salvaged(part, "a piece of the main text")
        except DamagedPartError:
            refuse_corrupt("The main part of the document is missing or damaged.")

    def salvaged(self, part: str, what: str, pages: list[int] | None = None) -> Any:  # noqa: ANN401
        """Parse a part; leave out what is damaged in it, with a warning.

        Raises:
            DamagedPartError: it is missing, or nothing of it can be read.
        """
        from lxml import etree

        source = self.source(part)
        try:
            return etree.fromstring(source, _parser())
        except (etree.XMLSyntaxError, ValueError):
            pass
        try:
            root = etree.fromstring(source, _parser(recovers=True))
        except (etree.XMLSyntaxError, ValueError):
            root = None
        if root is None or not len(root):
            raise DamagedPartError(part)
        self.warn_damaged(what, pages)
        return root

    def warn_damaged(self, what: str, pages: list[int] | None = None) -> None:
        """Warn of something that cannot be read and is left out."""
        message = f"The document is damaged: {what} could not be read and was left out."
        self._draft.warn("parts_damaged", message, pages)

    def attach(self, part: str) -> None:
        """Add an embedded file to the document's attachments; a container of one file as that file."""
        try:
            data = self.read(part)
        except DamagedPartError:
            self.warn_damaged(f"the embedded file {posixpath.basename(part)}")
            return
        name, data = unwrap_object(posixpath.basename(part), data)
        self._draft.attach(name, data)


def unwrap_object(name: str, data: bytes) -> tuple[str, bytes]:
    """Return name and bytes of the file that an OLE object holds; the object itself if it holds none."""
    import olefile

    if not data.startswith(olefile.MAGIC):
        return name, data
    try:
        with olefile.OleFileIO(io.BytesIO(data)) as ole:
            stem = name.rpartition(".")[0] or name
            for stream, suffix in (("Package", ""), ("CONTENTS", ".pdf"), ("EmbeddedOdf", "")):
                if ole.exists(stream):
                    return stem + suffix, ole.openstream(stream).read()
            if ole.exists("\x01Ole10Native"):
                return _native(ole.openstream("\x01Ole10Native").read()) or (name, data)
    except Exception:  # noqa: BLE001  # the library raises anything on untrusted bytes
        return name, data
    return name, data


def _native(raw: bytes) -> tuple[str, bytes] | None:
    """Return label and bytes of a file that the packager of Windows wrapped."""
    label, _, rest = raw[6:].partition(b"\0")
    _, _, rest = rest.partition(b"\0")
    length = int.from_bytes(rest[4:8], "little")
    rest = rest[8 + length :]
    size = int.from_bytes(rest[:4], "little")
    if not label or len(rest) < 4 + size:
        return None
    return label.decode("cp1252", "replace"), rest[4 : 4 + size]


def whole(text: str | None, default: int) -> int:
    """Return a number of a file; the default if it is none, or of absurd length."""
    try:
        return int(text or "") if len(text or "") <= _MOST_FIGURES else default
    except ValueError:
        return default


def _normal(path: str) -> str:
    return posixpath.normpath(path.replace("\\", "/")).lstrip("/")


def _parser(*, recovers: bool = False) -> Any:  # noqa: ANN401
    from lxml import etree

    return etree.XMLParser(
        resolve_entities=False, no_network=True, recover=recovers, remove_comments=True, remove_pis=True
    )
