"""Untrusted zip archives: opened only if their unpacked size fits in memory."""

import io
import zipfile
import zlib
from typing import Final

from worker.extract.draft import ExtractionError, ExtractionLimits, refuse_corrupt

_MAX_MEMBERS: Final = 10_000
_ENCRYPTED: Final = 1  # bit of a member's flags
# The directory of every encrypted Office document, an OLE file, names this stream.
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE: Final = "EncryptedPackage".encode("utf-16-le")


def open_archive(data: bytes, limits: ExtractionLimits) -> zipfile.ZipFile:
    """Open an archive whose members together take at most half of the memory.

    The sizes are those that the directory declares: no member is ever read beyond its declared size.

    Raises:
        RefusedError: the bytes are not a zip archive, or it is encrypted or too large.
    """
    if data.startswith(_OLE):
        if _ENCRYPTED_PACKAGE in data:
            raise ExtractionError("document_encrypted", "The document needs a password.")
        message = "Word and PowerPoint 97-2003 files are not supported: save it as .docx or .pptx."
        raise ExtractionError("unsupported_document", message)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
        refuse_corrupt("The document is truncated or damaged: it is not a zip archive.")
    members = archive.infolist()
    if any(member.flag_bits & _ENCRYPTED for member in members):
        raise ExtractionError("document_encrypted", "The document needs a password.")
    most = limits.memory_bytes // 2
    if len(members) > _MAX_MEMBERS or sum(member.file_size for member in members) > most:
        message = f"The document unpacks to more than {most // 2**20} MiB or {_MAX_MEMBERS:,} files."
        raise ExtractionError("document_too_large", message)
    return archive


def require(archive: zipfile.ZipFile, name: str, kind: str) -> None:
    """Check that the archive has the member that marks its kind.

    Raises:
        RefusedError: the member is missing, so the archive is of another kind.
    """
    if name not in archive.namelist():
        raise ExtractionError(
            "unsupported_document", f"The document is a zip archive, but not of kind {kind}."
        )


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member of the archive.

    Raises:
        RefusedError: the member is missing or damaged.
    """
    try:
        with archive.open(name) as member:
            # A plain `read` would unpack all that there is before it compares that with the declared size.
            return member.read(archive.getinfo(name).file_size + 1)
    except (KeyError, zlib.error, zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError):
        refuse_corrupt("A part of the document is missing or damaged.")
