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
_TEXTS: Final = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})


def read_epub(data: bytes, draft: TextBuilder) -> None:
    """Read an epub, chapter by chapter in reading order."""
    with open_archive(data, draft.limits) as archive:
        require(archive, _CONTAINER, "epub")
        rootfile = _parse(read_member(archive, _CONTAINER)).find(".//{*}rootfile")
        path = "" if rootfile is None else rootfile.get("full-path", "")
        package = _parse(read_member(archive, path))
        chapters = _chapters(package, posixpath.dirname(path))
        _refuse_encrypted(archive, chapters)
        draft.set_title(package.findtext(".//{http://purl.org/dc/elements/1.1/}title"))
        draft.announce_pages(len(chapters))
        for chapter in chapters:
            draft.begin_page()
            write_html(decode_markup(read_member(archive, chapter), draft), draft)


def _chapters(package: ET.Element, folder: str) -> list[str]:
    """List the archive members of the chapters, in reading order."""
    items = {
        item.get("id"): item.get("href", "")
        for item in package.iterfind("{*}manifest/{*}item")
        if item.get("media-type") in _TEXTS
    }
    named = [
        items[ref.get("idref")]
        for ref in package.iterfind("{*}spine/{*}itemref")
        if ref.get("idref") in items
    ]
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
    found = _parse(read_member(archive, _ENCRYPTION)).iterfind(".//{*}CipherReference")
    if {unquote(each.get("URI", "")) for each in found} & set(chapters):
        raise ExtractionError("document_encrypted", "The epub is copy-protected.")


def _parse(xml: bytes) -> ET.Element:
    # Expat, from 2.4 on, stops entities that expand to more than a hundred times the input.
    try:
        return ET.fromstring(xml)  # noqa: S314
    except ET.ParseError:
        refuse_corrupt("A part of the epub is not valid XML.")
