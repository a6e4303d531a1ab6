"""A corpus of bad files: each ends with its code and leaves nothing running."""

import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from document_support import SMALL_MEMORY_MB, bad_documents
from jobs.documents.kinds import HEAD_BYTES, TAIL_BYTES, UnsupportedDocumentError, UploadHints, find_kind
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentKind
from worker.documents.sandbox import ExtractionFailure, Sandbox

SETTINGS = DocumentSettings(extraction_seconds=60, extraction_memory_mb=SMALL_MEMORY_MB)
_ROOT = Path(__file__).resolve().parents[3]
_GIF = b"GIF89a" + bytes(100)


def hints(data: bytes, filename: str, wanted: DocumentKind | None = None) -> UploadHints:
    return UploadHints(data[:HEAD_BYTES], data[-TAIL_BYTES:], filename, wanted=wanted)


def test_every_bad_document_ends_with_its_code_within_its_memory() -> None:
    # In a process of its own: whatever children it has had, they were extraction's.
    path = os.pathsep.join(map(str, (_ROOT, _ROOT / "tests" / "support")))
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def every_bad_document_ends_with_its_code_within_its_memory() -> None:
    for name, (data, filename, code) in bad_documents().items():
        kind = find_kind(hints(data, filename))
        outcome = Sandbox(SETTINGS).run([data], kind=kind, num_bytes=len(data))
        assert isinstance(outcome, ExtractionFailure), name
        assert outcome.code.value == code, (name, outcome)
        assert outcome.message.endswith("."), name
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert children <= SETTINGS.extraction_memory_mb * 1024
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    ("data", "filename", "kind"),
    [
        (b"%PDF-1.7\n", "report.docx", DocumentKind.PDF),
        (b"\xef\xbb\xbf%PDF-1.7\n", "", DocumentKind.PDF),
        (b"PK\x03\x04....word/document.xml", "report.pdf", DocumentKind.DOCX),
        (b"PK\x03\x04....mimetypeapplication/epub+zip", "", DocumentKind.EPUB),
        (b"PK\x03\x04....", "a.xlsx", DocumentKind.XLSX),
        (b"<!DOCTYPE html><p>a", "", DocumentKind.HTML),
        (b"<!DOCTYPE html><p>a", "a.txt", DocumentKind.TXT),
        (b"# a", "README.MD", DocumentKind.MD),
        (b"a", "", DocumentKind.TXT),
        (b"a", "a.strange", DocumentKind.TXT),
        (b"\xff\xfea\0", "a.txt", DocumentKind.TXT),
        (b"\x89PNG\r\n\x1a\n\0", "a.txt", DocumentKind.PNG),
        (b"\xff\xd8\xff\xe0", "scan.tif", DocumentKind.JPG),
        (b"MM\0*\0", "scan.pdf", DocumentKind.TIFF),
        (b"From: a@example.org\n\nb", "a.eml", DocumentKind.EML),
    ],
)
def test_bytes_decide_what_a_file_is_and_its_name_where_they_look_alike(
    data: bytes, filename: str, kind: DocumentKind
) -> None:
    assert find_kind(hints(data, filename)) is kind


@pytest.mark.parametrize(
    ("data", "filename", "wanted"),
    [
        (_GIF, "a.txt", None),
        (_GIF, "a.pdf", None),
        (b"plain text", "a.pdf", None),
        (b"plain text", "a.docx", None),
        (b"\0" * 100 + b"a", "", None),
        (b"PK\x03\x04....", "a.zip", None),
        (b"no header at all", "a.eml", None),
        (b"%PDF-1.7\n", "a.pdf", DocumentKind.DOCX),
        (b"plain text", "a.txt", DocumentKind.PDF),
    ],
)
def test_what_is_not_read_is_refused(data: bytes, filename: str, wanted: DocumentKind | None) -> None:
    with pytest.raises(UnsupportedDocumentError):
        find_kind(hints(data, filename, wanted))


def test_finding_the_kind_of_hostile_beginnings_takes_no_time() -> None:
    began = time.thread_time()
    for data in (
        b"<!--" * 1024,
        b" " * 4096,
        b"a:" * 2048,
        b"A:\n" * 1365,
        b"<?xml " * 682,
        b"<!---->" * 585,
    ):
        for filename in ("", "a.eml", "a.html"):
            with suppress(UnsupportedDocumentError):
                find_kind(hints(data, filename))
    assert time.thread_time() - began < 3


if __name__ == "__main__":
    every_bad_document_ends_with_its_code_within_its_memory()
