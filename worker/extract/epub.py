"""The text of epub files: each chapter file is a page."""

import posixpath
import zipfile
from typing import Final
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from worker.extract.archive import open_archive, read_member, require
from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.encodings import decode_markup
from worker.extract.markup import write_html

_CONTAINER: Final = "META-INF/container.xml"
_ENCRYPTION: Final = "META-INF/encryption.xml"
_MOST_NAMED: Final = 20  # chapters in a warning
_TEXTS: Final = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})


def read_epub(data: bytes, draft: TextBuilder) -> None:
    """Read an epub, chapter by chapter in reading order; one that is missing or damaged is left out."""
    with open_archive(data, draft.limits) as archive:
        require(archive, _CONTAINER, "epub")
        path = _package_path(archive)
        package = _parse(read_member(archive, path))
        chapters = _chapters(package, posixpath.dirname(path))
        _refuse_encrypted(archive, chapters)
        draft.set_title(package.findtext(".//{http://purl.org/dc/elements/1.1/}title"))
        draft.announce_pages(len(chapters))
        damaged = []
        for number, chapter in enumerate(chapters, 1):
            draft.begin_page()
            try:
                text = decode_markup(read_member(archive, chapter), draft)
            except ExtractionError:
                damaged.append(number)
                continue
            write_html(text, draft)
        if len(damaged) == len(chapters):
            refuse_corrupt("All chapters of the epub are missing or damaged.")
        if damaged:
            names = ", ".join(chapters[number - 1] for number in damaged[:_MOST_NAMED])
            message = f"Chapters that are missing or damaged were left out ({len(damaged)}): {names}."
            draft.warn("parts_damaged", message, damaged)


def _package_path(archive: zipfile.ZipFile) -> str:
    """Return the path of the book's list of parts: as the container names it, or the first one."""
    names = archive.namelist()
    try:
        rootfile = _parse(read_member(archive, _CONTAINER)).find(".//{*}rootfile")
    except ExtractionError:
        rootfile = None
    path = "" if rootfile is None else unquote(rootfile.get("full-path", ""))
    if path in names:
        return path
    return next((name for name in names if name.lower().endswith(".opf")), path)


def _chapters(package: ET.Element, folder: str) -> list[str]:
    """List the archive members of the chapters, in reading order; all of them if no order is given."""
    items = {
        item.get("id"): item.get("href", "")
        for item in package.iterfind("{*}manifest/{*}item")
        if item.get("media-type") in _TEXTS
    }
    named = [
        items[ref.get("idref")]
        for ref in package.iterfind("{*}spine/{*}itemref")
        if ref.get("idref") in items
    ] or list(items.values())
    if not named:
        refuse_corrupt("The epub lists no chapters.")
    return [posixpath.normpath(posixpath.join(folder, unquote(urlsplit(href).path))) for href in named]


def _refuse_encrypted(archive: zipfile.ZipFile, chapters: list[str]) -> None:
    """Check that no chapter is encrypted.

    Copy protection encrypts chapters. Scrambled fonts are common and harmless.

    Raises:
        RefusedError: a chapter is encrypted.
    """
    if _ENCRYPTION not in archive.namelist():
        return
    try:
        root = _parse(read_member(archive, _ENCRYPTION))
    except ExtractionError:
        return  # chapters that turn out to be no text are left out
    found = root.iterfind(".//{*}CipherReference")
    if {unquote(each.get("URI", "")) for each in found} & set(chapters):
        raise ExtractionError("document_encrypted", "The epub is copy-protected.")


def _parse(xml: bytes) -> ET.Element:
    # Expat, from 2.4 on, stops entities that expand to more than a hundred times the input.
    try:
        return ET.fromstring(xml)  # noqa: S314
    except ET.ParseError:
        refuse_corrupt("A part of the epub is not valid XML.")
