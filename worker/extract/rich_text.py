"""The text of rtf files."""

import re
from typing import Final

from worker.extract.draft import TextBuilder, refuse_corrupt

_TITLE: Final = re.compile(rb"\{\\title ([^{}\\]{1,300})\}")
_TITLE_WITHIN: Final = 100_000  # bytes
_GAPS: Final = re.compile(r"\n{3,}")


def read_rtf(data: bytes, draft: TextBuilder) -> None:
    """Read an rtf: its body, an empty line between paragraphs; headers and footnotes are left out."""
    if not data.lstrip()[:5].startswith(b"{\\rtf"):
        refuse_corrupt("The document does not begin as rtf.")
    from striprtf.striprtf import rtf_to_text

    found = _TITLE.search(data, 0, _TITLE_WITHIN)
    draft.set_title(found[1].decode("cp1252", "replace") if found else None)
    text: str = rtf_to_text(data.decode("cp1252", "replace"), errors="replace")  # type: ignore[no-untyped-call]
    lines = (line.rstrip() for line in text.split("\n"))
    draft.write(_GAPS.sub("\n\n", "\n\n".join(lines)).strip() + "\n")
