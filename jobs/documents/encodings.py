"""The encodings that an upload may name for its text."""

from typing import Final

from webencodings import lookup
from webencodings.labels import LABELS

from jobs.errors import InvalidRequestError
from jobs.states.document import DocumentKind

# The kinds whose text has the encoding; others name their own.
ENCODED_KINDS: Final = frozenset({DocumentKind.TXT, DocumentKind.MD, DocumentKind.HTML, DocumentKind.EML})
_UNREADABLE: Final = frozenset({"replacement", "x-user-defined"})
# What browsers do not read: DOS, other Macs, mail in seven bits, UTF-32.
_OTHERS: Final = (
    *(
        "cp437",
        "cp720",
        "cp737",
        "cp775",
        "cp850",
        "cp852",
        "cp855",
        "cp857",
        "cp858",
        "cp860",
        "cp861",
        "cp862",
    ),
    *("cp863", "cp864", "cp865", "cp869", "mac-greek", "mac-latin2", "mac-turkish", "johab", "big5hkscs"),
    *("hz", "iso-2022-kr", "utf-32", "utf-32-le", "utf-32-be", "utf-7"),
)
NAMES: Final = tuple(sorted({*LABELS.values(), *_OTHERS} - _UNREADABLE))


def find_encoding(label: str) -> str:
    """Return the name of the encoding with this label; empty if the label is.

    Raises:
        InvalidRequestError: there is no such encoding.
    """
    name = label.strip().lower()
    found = lookup(name) if name.isascii() else None
    if found is not None:
        name = found.name
    if name and name not in NAMES:
        shown = "".join(char if char.isprintable() else "?" for char in label[:64])
        message = f"There is no encoding {shown!r}; this server reads {', '.join(NAMES)}."
        raise InvalidRequestError(message, param="encoding")
    return name
