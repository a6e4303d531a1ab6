"""How many texts in known encodings are read right, and how long a long text takes.

`python -m bench.encodings FOLDER`: a folder of texts for each encoding, such as `tests` in the source archive
of chardet 5.2.0; the end of a folder's name may be a language (`windows-1251-russian`). A text is right if it
equals what the folder's encoding, read as browsers do, makes of it; byte order marks and line ends aside.
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder
from worker.extract.encodings import decode, decode_labelled

_LIMITS: Final = ExtractionLimits(2**31, 600, 1, 2**31)
_LANGUAGE: Final = re.compile(r"-(?=[a-z]{5,}$)(?!kr)[a-z]+$")
_NAMES: Final = {"macroman": "mac_roman", "maccyrillic": "mac_cyrillic"}
_LONG_LINE: Final = "Die Prüfung der Verträge kostet 12 € und beginnt am Montag.\n".encode("cp1252")


def main() -> None:
    """Print the texts that are read wrong, the share that is right, and the time for a long one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    texts = sorted(path for path in parser.parse_args().folder.glob("*/*") if path.is_file())
    wrong = [path for path in texts if not _is_right(path)]
    for path in wrong:
        sys.stdout.write(f"wrong: {path.parent.name}/{path.name}\n")
    right = len(texts) - len(wrong)
    sys.stdout.write(f"{right} of {len(texts)} right ({100 * right / max(1, len(texts)):.1f} %)\n")
    raw = _LONG_LINE * (10 * 10**6 // len(_LONG_LINE))
    began = time.perf_counter()
    decode(raw, TextBuilder(_LIMITS))
    sys.stdout.write(f"10 MB of cp1252: {time.perf_counter() - began:.2f} s\n")


def _is_right(path: Path) -> bool:
    raw = path.read_bytes()
    label = _LANGUAGE.sub("", path.parent.name.lower())
    try:
        found = decode(raw, TextBuilder(_LIMITS))
        expected = decode_labelled(raw, _NAMES.get(label, label), TextBuilder(_LIMITS))
    except ExtractionError:
        return False
    exact = _exactly(raw, _NAMES.get(label, label))
    return _plain(found) in [_plain(each) for each in (expected, *exact)] and bool(exact)


def _exactly(raw: bytes, encoding: str) -> Sequence[str]:
    """Decode with this very encoding; empty if Python lacks it."""
    try:
        return [raw.decode(encoding, errors="replace")]
    except LookupError:
        return []


def _plain(text: str) -> str:
    return text.lstrip("\ufeff").replace("\r\n", "\n")


if __name__ == "__main__":
    main()
