"""Names of files that are not read, by their first and last bytes."""

import re
import struct
from pathlib import PurePosixPath
from typing import Final

# Beginnings of files that are not read, whatever their name: no text begins like this.
_BEGINNINGS: Final = (
    (b"GIF8", "a GIF picture"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 picture"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 picture"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL picture"),
    (b"8BPS\0", "a Photoshop picture"),
    (b"AT&TFORM", "a DjVu document"),
    (b"\x31\xbe\0\0\0\xab", "a document of Windows Write (.wri): save it as docx or PDF"),
    (b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d", "a OneNote section: export it as PDF or docx"),
    (b"\xdb\xa5\x2d\0", "a Word 2 document: save it as docx or PDF"),
    (b"HWP Document File V", "a Hangul document (.hwp): save it as docx or PDF"),
    (b"ITOLITLS", "a book of Microsoft Reader"),
    (b"\x1f\x9d", "an archive of compress (.Z): unpack it first"),
    (b"\x1f\xa0", "an archive of compress (.Z): unpack it first"),
    (b"bplist00", "a property list of macOS"),
    (b"%!PS", "a PostScript file: convert it to PDF"),
    (b"\xc5\xd0\xd3\xc6", "a PostScript file: convert it to PDF"),
    (b"\xffWPC", "a WordPerfect document"),
    (b"ITSF\x03", "a Windows help file"),
    (b"\x7fELF", "an executable program"),
    (b"MZ\x90", "an executable program"),
    (b"MZ\0", "an executable program"),
    (b"\xcf\xfa\xed\xfe", "an executable program"),
    (b"\xce\xfa\xed\xfe", "an executable program"),
    (b"\xca\xfe\xba\xbe", "an executable program"),
    (b"\0asm", "an executable program"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    *((b"BZh%d1AY&SY" % level, "a bzip2 archive: unpack it first") for level in range(1, 10)),
    (b"7z\xbc\xaf", "a 7-Zip archive: unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it first"),
    (b"\x04\x22\x4d\x18", "an LZ4 archive: unpack it first"),
    (b"LZIP\x01", "an lzip archive: unpack it first"),
    (b"MSCF\0", "a cabinet archive: unpack it first"),
    (b"!<arch>\n", "an archive of programs"),
    (b"PK\x07\x08", "a part of a split zip archive"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\0\1\0\0Standard Jet DB", "an Access database"),
    (b"\0\1\0\0Standard ACE DB", "an Access database"),
    (b"!BDN", "an Outlook data file (pst): export its messages first"),
    (b"PAR1", "a Parquet file: export it as CSV"),
    (b"ARROW1\0", "an Arrow file: export it as CSV"),
    (b"Obj\x01", "an Avro file: export it as CSV"),
    (b"ORC\x08", "an ORC file: export it as CSV"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    *((b"ID3" + bytes([version]), "an audio file") for version in (2, 3, 4)),
    (b"OggS", "an audio or video file"),
    (b"fLaC", "an audio file"),
    (b"MThd\0", "a music file"),
    (b"#!AMR", "an audio file"),
    (b"\x1a\x45\xdf\xa3", "a video file"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "an audio or video file"),
    (b"FLV\x01", "a video file"),
    (b"\0\0\x01\xba", "a video file"),
    (b"\0\0\x01\xb3", "a video file"),
    (b"wOFF", "a font"),
    (b"wOF2", "a font"),
    (b"OTTO\0", "a font"),
    (b"\0\1\0\0\0", "a font"),
    (b"-----BEGIN PGP MESSAGE-----", "an encrypted message: decrypt it first"),
    (b"age-encryption.org/", "an encrypted file: decrypt it first"),
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, not the file itself"),
)
# The same, if the bytes are no text.
_IF_NO_TEXT: Final = (
    (b"Salted__", "an encrypted file: decrypt it first"),
    (b"RIFF", "an audio or video file"),
    (b"BM", "a bitmap picture"),
    (b"\0\0\x01\0", "an icon"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\xff\xfb", "an audio file"),
    (b"\xff\xf3", "an audio file"),
    (b"\xff\xf1", "an audio file"),
    (b"AC10", "an AutoCAD drawing"),
    (b"\x01\0\0\0", "a picture or another binary file of Windows"),
)
_RIFF: Final = {b"WEBP": "a WebP picture", b"AVI ": "a video file", b"WAVE": "an audio file"}
_FTYP: Final = {
    b"heic": "an HEIC picture",
    b"heix": "an HEIC picture",
    b"mif1": "an HEIC picture",
    b"avif": "an AVIF picture",
    b"M4A ": "an audio file",
}
_TAR_AT: Final = 257
_KINDLE_AT: Final = 60
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# Members that identify the kind of an archive.
_ZIPPED: Final = (
    (
        b"application/vnd.oasis.opendocument.presentation",
        "an OpenDocument presentation: save it as pptx or PDF",
    ),
    (b"visio/document.xml", "a Visio drawing: save it as PDF"),
    (b"Index/Document.iwa", "a document of Apple's iWork: export it as PDF, docx, xlsx or pptx"),
    (b"Contents/header.xml", "a Hangul document (.hwpx): save it as docx or PDF"),
    (b"designmap.xml", "an InDesign document: export it as PDF"),
    (b"index.apxl", "a document of Apple's iWork: export it as PDF, docx, xlsx or pptx"),
    (b".fdseq", "an XPS document: save it as PDF"),
    (b"AndroidManifest.xml", "an Android program"),
    (b"META-INF/MANIFEST.MF", "a Java program"),
)
_STREAMS: Final = (
    ("EncryptedPackage", "an Office document with a password: remove the password first"),
    ("WordDocument", "a Word 97-2003 document (.doc): save it as docx or PDF"),
    ("PowerPoint Document", "a PowerPoint 97-2003 presentation (.ppt): save it as pptx or PDF"),
    ("VisioDocument", "a Visio drawing: save it as PDF"),
    ("HwpSummaryInformation", "a Hangul document (.hwp): save it as docx or PDF"),
    ("Quill", "a Publisher document: save it as PDF"),
    ("MatOST", "a document of Microsoft Works: save it as docx or PDF"),
)
_OLE_NAMES: Final = {
    "doc": "a Word 97-2003 document (.doc): save it as docx or PDF",
    "dot": "a Word 97-2003 document (.doc): save it as docx or PDF",
    "ppt": "a PowerPoint 97-2003 presentation (.ppt): save it as pptx or PDF",
    "pps": "a PowerPoint 97-2003 presentation (.ppt): save it as pptx or PDF",
    "hwp": "a Hangul document (.hwp): save it as docx or PDF",
    "wps": "a document of Microsoft Works: save it as docx or PDF",
    "mpp": "a plan of Microsoft Project: save it as PDF",
    "pub": "a Publisher document: save it as PDF",
    "msi": "an installer",
}
_ZIP_END: Final = b"PK\x05\x06"
# Controls that no text has; some programs of DOS end their files with \x1a, others set colours after \x1b.
_CONTROLS: Final = re.compile(rb"[\x01-\x06\x0e-\x19\x1c-\x1f\x7f]")
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_MAX_NULS: Final = 0.6
_MAX_CONTROLS: Final = 0.02


# Office documents in one XML file, by what their first bytes have; as plain text they are hard to read.
_XML_DOCUMENTS: Final = (
    (b'progid="Word.Document"', "a Word 2003 XML document: save it as docx"),
    (b'progid="Excel.Sheet"', "an Excel 2003 XML workbook: save it as xlsx"),
    (b"office:mimetype=", "a flat OpenDocument file: save it as odt, ods or odp"),
)


def known_xml(head: bytes) -> str | None:
    """Name an Office document that is one XML file; None if it is none."""
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<?xml", b"<office:document")):
        return None
    return next((name for mark, name in _XML_DOCUMENTS if mark in head), None)


def known_binary(head: bytes) -> str | None:
    """Name the file if its beginning says that it is no text; None if it may be one."""
    if found := next((name for begin, name in _BEGINNINGS if head.startswith(begin)), None):
        return found
    if head.startswith(b"RIFF") and head[8:12] in _RIFF:
        return _RIFF[head[8:12]]
    if head[4:8] == b"ftyp":
        return _FTYP.get(head[8:12], "a video file")
    if head[_TAR_AT:].startswith(b"ustar"):
        return "a tar archive: unpack it first"
    if head[_KINDLE_AT:].startswith((b"BOOKMOBI", b"TEXtREAd")):
        return "a Kindle book: convert it to EPUB"
    return None


def may_be_text(head: bytes) -> bool:
    """Return True if the bytes may be text: the process that reads it finds out which encoding it has."""
    if b"\0" not in head or head.startswith(_WIDE_MARKS):
        return True
    nuls = [head[place::4].count(0) for place in range(4)]
    if sum(nuls) <= _MAX_NULS * len(head):
        return len(_CONTROLS.findall(head)) <= _MAX_CONTROLS * len(head) or _is_wide(nuls, head)
    return _is_wide(nuls, head)


def _is_wide(nuls: list[int], head: bytes) -> bool:
    """Return True if the NULs are where UTF-16 or UTF-32 have them."""
    big, little = nuls[0] + nuls[2], nuls[1] + nuls[3]
    if 4 * min(big, little) <= max(big, little):
        name, size = "utf-16-be" if big > little else "utf-16-le", 2
    else:
        name, size = "utf-32-be" if nuls[0] > nuls[3] else "utf-32-le", 4
    if 50 * len(_NOT_IN_WIDE.findall(head.decode(name, errors="replace"))) <= len(head) // size:
        return True
    # The low byte of a letter may be NUL too, as of the Chinese "one", U+4E00.
    texts = [head.decode(name, errors="replace") for name in ("utf-16-le", "utf-16-be")]
    return any(
        50 * len(_NOT_IN_WIDE.findall(text)) <= len(text) < 2 * len(_EAST_ASIAN.findall(text))
        for text in texts
    )


_EAST_ASIAN: Final = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff5e]")
_NOT_IN_WIDE: Final = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\uffff]")


def describe(head: bytes, tail: bytes, filename: str) -> str:
    """Name a file that is not read: `a gzip archive: unpack it first`."""
    if found := known_binary(head):
        return found
    if head.startswith(_ZIP):
        return _describe_zip(head, tail)
    if head.startswith(_OLE):
        return _describe_ole(head, tail, filename)
    if found := known_xml(head):
        return found
    return "text" if may_be_text(head) else _describe_binary(head)


def _describe_binary(head: bytes) -> str:
    if not head.strip(b"\0"):
        return "no document: it has only NUL bytes"
    weak = next((name for begin, name in _IF_NO_TEXT if head.startswith(begin)), None)
    return weak or f"a binary file of an unknown format, with NUL at byte {head.index(0):,}"


def _describe_zip(head: bytes, tail: bytes) -> str:
    if found := next((name for mark, name in _ZIPPED if mark in head or mark in tail), None):
        return found
    at = tail.rfind(_ZIP_END)
    if at < 0 or at + 12 > len(tail):
        return "a zip archive that is truncated or damaged"
    (num_files,) = struct.unpack_from("<H", tail, at + 10)
    if not num_files:
        return "an empty zip archive"
    files = "1 file" if num_files == 1 else f"{num_files:,} files"
    is_encrypted = head.startswith(_ZIP[0]) and len(head) > 6 and head[6] & 1
    with_password = " with a password" if is_encrypted else ""
    return f"a zip archive of {files}{with_password}: unpack it first"


def _stream_name(head: bytes, tail: bytes) -> str | None:
    names = ((stream.encode("utf-16-le"), name) for stream, name in _STREAMS)
    return next((name for stream, name in names if stream in head or stream in tail), None)


def _describe_ole(head: bytes, tail: bytes, filename: str) -> str:
    if found := _stream_name(head, tail):
        return found
    suffix = PurePosixPath(filename).suffix.lower().removeprefix(".")
    return _OLE_NAMES.get(suffix, "a file of an old Microsoft program: save it in a newer format, or as PDF")
