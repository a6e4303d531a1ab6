"""Files that are not read: their refusal names what they are."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from jobs.documents.encodings import find_encoding
from jobs.documents.kinds import (
    HEAD_BYTES,
    TAIL_BYTES,
    TEXT_EXTENSIONS,
    UnsupportedDocumentError,
    UploadHints,
    find_kind,
)
from jobs.errors import InvalidRequestError
from jobs.states.document import DocumentKind
from longbatch.documents.sources import SUFFIXES, find


def make_zip(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return out.getvalue()


def kind_of(data: bytes, name: str = "") -> DocumentKind:
    return find_kind(UploadHints(data[:HEAD_BYTES], data[-TAIL_BYTES:], name))


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"<!DOCTYPE html><html><p>Not found", "report.pdf", "HTML page"),
        (b"Not found\n", "report.pdf", "plain text"),
        (gzip.compress(b"text"), "a.txt", "gzip"),
        (b"\x7fELF\2\1\1" + bytes(60), "a", "executable"),
        (b"MZ\x90\0" + bytes(60), "a.exe", "executable"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a.jp2", "JPEG 2000"),
        (b"GIF89a" + bytes(9), "a.gif", "GIF"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "a.webp", "WebP"),
        (b"\0\0\0 ftypisom" + bytes(20), "a.mp4", "video"),
        (b"ID3\4" + bytes(9), "a.mp3", "audio"),
        (b"SQLite format 3\0" + bytes(80), "a.db", "SQLite"),
        (b"PAR1" + bytes(9), "a.parquet", "Parquet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "WordDocument".encode("utf-16-le"), "a.doc", "Word 97-2003"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(64), "a.ppt", "PowerPoint 97-2003"),
        (make_zip("a.txt", "b.txt"), "a.zip", "zip archive of 2 files"),
        (make_zip(), "a.zip", "empty zip archive"),
        (make_zip("META-INF/MANIFEST.MF"), "a.jar", "Java"),
        (b"x" * 257 + b"ustar\0", "a.tar", "tar archive"),
        (b"-----BEGIN PGP MESSAGE-----\n", "a.txt", "encrypted"),
        (bytes(200), "a.txt", "only NUL"),
        (bytes(range(256)) * 4, "a.bin", "binary file"),
    ],
)
def test_a_refusal_names_the_file_and_what_is_supported(data: bytes, name: str, words: str) -> None:
    with pytest.raises(UnsupportedDocumentError) as refused:
        kind_of(data, name)
    assert words in refused.value.message
    assert "docx" in refused.value.message


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.xml", "a.yaml", "a.log", "a.tsv", "a.srt"])
def test_texts_of_programs_are_texts(name: str) -> None:
    assert kind_of(b"<a>1</a>", name) == DocumentKind.TXT


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_text_without_its_mark_is_a_text(encoding: str) -> None:
    assert kind_of("Meeting notes\nAll agreed.\n".encode(encoding), "a.txt") == DocumentKind.TXT


def test_a_page_under_the_name_of_a_workbook_is_a_page() -> None:
    assert kind_of(b"<html><table><tr><td>1</table>", "export.xls") == DocumentKind.HTML
    assert kind_of(b"a\tb\n1\t2\n", "export.xls") == DocumentKind.TXT


def test_client_and_server_know_the_same_texts() -> None:
    assert {f".{each}" for each in TEXT_EXTENSIONS} <= SUFFIXES


@pytest.mark.parametrize(
    ("label", "name"), [("Shift_JIS", "shift_jis"), ("latin1", "windows-1252"), ("cp437", "cp437"), ("", "")]
)
def test_an_encoding_is_found_by_its_label(label: str, name: str) -> None:
    assert find_encoding(label) == name


@pytest.mark.parametrize("label", ["klingon", "rot13", "replacement", "x\0y", "\ud800"])
def test_an_unknown_encoding_is_refused_with_what_exists(label: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        find_encoding(label)
    assert refused.value.param == "encoding"
    assert "shift_jis" in refused.value.message


def test_leftovers_of_programs_are_no_documents(tmp_path: Path) -> None:
    for name in ("a.docx", "~$a.docx", ".~lock.a.docx#", ".DS_Store", "Thumbs.db", "desktop.ini", "._a.docx"):
        (tmp_path / name).write_bytes(b"x")
    assert [source.path.name for source in find([str(tmp_path)])] == ["a.docx"]


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"A PDF starts with\n%PDF-1.4\nand so on.", "notes.txt", DocumentKind.TXT),
        (b"# PDF\n\n`%PDF-1.7` is its header", "notes.md", DocumentKind.MD),
        (b"From: a@x\nTo: b@x\nSubject: S\n\n%PDF-1.4\n", "", DocumentKind.EML),
        (b"HTTP/1.1 200 OK\r\n\r\n%PDF-1.4\r\n%\xe2\xe3", "", DocumentKind.PDF),
        (b"junk%PDF-1.4", "a.pdf", DocumentKind.PDF),
    ],
)
def test_the_header_of_a_pdf_within_a_text_makes_it_no_pdf(
    data: bytes, name: str, kind: DocumentKind
) -> None:
    assert kind_of(data, name) == kind


def test_a_zip_of_pdfs_is_a_zip() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.pdf", b"%PDF-1.4\n")
    with pytest.raises(UnsupportedDocumentError, match="zip archive of 1 file"):
        kind_of(out.getvalue())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x31\xbe\0\0\0\xab" + bytes(90), "Windows Write"),
        (b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d" + bytes(90), "OneNote"),
        (b"\x1f\x9d\x90abc", "compress"),
        (make_zip("Contents/header.xml"), "Hangul"),
        (make_zip("designmap.xml"), "InDesign"),
    ],
)
def test_older_and_rarer_formats_are_named(data: bytes, words: str) -> None:
    with pytest.raises(UnsupportedDocumentError, match=words):
        kind_of(data)


@pytest.mark.parametrize(
    ("mark", "name", "words"),
    [
        ('<?mso-application progid="Word.Document"?><w:wordDocument>', "a.doc", "Word 2003 XML"),
        ('<?mso-application progid="Excel.Sheet"?><Workbook>', "a.xls", "Excel 2003 XML"),
        ('<office:document office:mimetype="application/x">', "a.fodt", "flat OpenDocument"),
    ],
)
def test_office_documents_of_one_xml_file_are_named(mark: str, name: str, words: str) -> None:
    source = f'<?xml version="1.0"?>\n{mark}'.encode()
    with pytest.raises(UnsupportedDocumentError, match=words):
        kind_of(source, name)
    assert kind_of(source, "a.xml") == DocumentKind.TXT
