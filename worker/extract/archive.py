"""Zip archives of strangers: opened only if what they unpack to has room."""

import io
import zipfile
from typing import Final

from worker.extract.draft import Limits, RefusedError, refuse_corrupt

_MAX_MEMBERS: Final = 10_000
_ENCRYPTED: Final = 1  # bit of a member's flags
# The directory of every OLE file that is an encrypted Office document names this stream.
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE: Final = "EncryptedPackage".encode("utf-16-le")


def open_archive(data: bytes, limits: Limits) -> zipfile.ZipFile:
    """The archive, whose members together take half of the memory at most.

    Their sizes are those that the directory declares: no member is ever read beyond its own.

    Raises:
        RefusedError: it is none, it is encrypted, or it is too large.
    """
    if data.startswith(_OLE):
        if _ENCRYPTED_PACKAGE in data:
            raise RefusedError("document_encrypted", "The document needs a password.")
        raise RefusedError("unsupported_document", "Files of Office 97-2003 are not read; save it anew.")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError):
        refuse_corrupt("The document is cut off or damaged: it is no zip archive.")
    members = archive.infolist()
    if any(member.flag_bits & _ENCRYPTED for member in members):
        raise RefusedError("document_encrypted", "The document needs a password.")
    most = limits.memory_bytes // 2
    if len(members) > _MAX_MEMBERS or sum(member.file_size for member in members) > most:
        message = f"The document unpacks to more than {most // 2**20} MiB or {_MAX_MEMBERS:,} files."
        raise RefusedError("document_too_large", message)
    return archive


def require(archive: zipfile.ZipFile, name: str, kind: str) -> None:
    """The archive has this member, without which it is of another kind.

    Raises:
        RefusedError: it has not.
    """
    if name not in archive.namelist():
        raise RefusedError("unsupported_document", f"The document is a zip archive, but no {kind}.")


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member.

    Raises:
        RefusedError: it is not there, or damaged.
    """
    try:
        return archive.read(name)
    except (KeyError, zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError):
        refuse_corrupt("A part of the document is missing or damaged.")
