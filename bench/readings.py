"""How well and at what cost documents are read: words, time and memory per file, in two versions of the code.

`python -m bench.readings FOLDER --before CHECKOUT`: a folder of documents of any kinds. The expected text of
`report.docx` is in `report.docx.txt`, if there is one. CHECKOUT is a work tree of another commit with its own
`.venv`. Each document is read in the confined process that the worker uses, with the default limits.
Words are counted, in writing without blanks characters; time includes the start of the process.
"""

import argparse
import json
import re
import statistics
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zstandard

from jobs.documents.kinds import kind_by_name
from jobs.settings import DocumentSettings

_HERE: Final = Path(__file__).resolve().parents[1]
_HEADER: Final = struct.Struct(">Q")
# A process that is small itself: the kernel's figure for a child starts with the size of its parent.
_MEASURE: Final = """
import os, resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run([*sys.argv[1:], f"--parent={os.getpid()}"], stderr=subprocess.DEVNULL)
seconds = time.perf_counter() - began
print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""
_WORD: Final = re.compile(r"[^\W_]+")
_NO_BLANKS: Final = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one version of the code makes of a document.

    Attributes:
        text: empty if the document is refused.
        notes: codes of its warnings, or of its refusal.
        mib: the largest resident memory of the confined process.
    """

    text: str
    notes: Sequence[str]
    seconds: float
    mib: float


def main() -> None:
    """Print a row for each document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, help="a work tree to compare with")
    parser.add_argument("--repeat", type=int, default=3, help="readings of a document; time is their median")
    parser.add_argument("--texts", type=Path, help="write the texts here, to judge them by eye")
    options = parser.parse_args()
    checkouts = [*([options.before.resolve()] if options.before else []), _HERE]
    columns = ("missing", "extra", "ms", "MiB", "notes")
    names = ["before", "after"] if options.before else ["now"]
    heads = [f"{column} {name}" for name in names for column in columns]
    sys.stdout.write(f"| file | words | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}\n")
    for path in _documents(options.folder):
        aside = path.with_name(f"{path.name}.txt")
        expected = _words(aside.read_text("utf-8")) if aside.exists() else None
        cells = [path.name, f"{expected.total():,}" if expected else ""]
        for name, checkout in zip(names, checkouts, strict=True):
            found = _read(path, checkout, repeat=options.repeat)
            if options.texts:
                options.texts.mkdir(parents=True, exist_ok=True)
                (options.texts / f"{path.name}.{name}.txt").write_text(found.text, "utf-8")
            cells += _cells(found, expected)
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()


def _documents(folder: Path) -> Sequence[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    asides = {f"{path.name}.txt" for path in files}
    return [path for path in files if path.name not in asides]


def _cells(found: Reading, expected: Counter[str] | None) -> Sequence[str]:
    words = _words(found.text)
    compared = ["", ""]
    if expected is not None:
        compared = [f"{(expected - words).total():,}", f"{(words - expected).total():,}"]
    return [*compared, f"{found.seconds * 1000:.0f}", f"{found.mib:.0f}", ", ".join(found.notes)]


def _words(text: str) -> Counter[str]:
    text = _NO_BLANKS.sub(lambda found: f" {found[0]} ", text.casefold())
    return Counter(_WORD.findall(text))


def _read(path: Path, checkout: Path, *, repeat: int) -> Reading:
    """Read a document as the worker of a work tree does."""
    data = path.read_bytes()
    kind = kind_by_name(path.name) or "txt"
    settings = DocumentSettings()
    program = [str(checkout / ".venv/bin/python"), "-E", "-s", "-B", "-m", "worker.extract", kind]
    options = {
        "size": len(data),
        "memory": settings.extraction_memory_mb * 2**20,
        "seconds": int(settings.extraction_seconds) + 1,
        "pages": settings.max_pages,
        "characters": settings.max_characters,
        "attached": settings.max_bytes,
    }
    known = subprocess.run(
        [*program[:-1], "--help"], capture_output=True, text=True, cwd=checkout, check=True
    )
    program += [f"--{name}={value}" for name, value in options.items() if f"--{name} " in known.stdout]
    runs = []
    for _ in range(repeat):
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MEASURE, *program],
            input=data,
            capture_output=True,
            cwd=checkout,
            check=True,
        )
        seconds, kib = map(float, run.stderr.split())
        runs.append((seconds, kib / 1024))
    text, notes = _parse(run.stdout)
    return Reading(
        text, notes, statistics.median(each[0] for each in runs), statistics.median(each[1] for each in runs)
    )


def _parse(output: bytes) -> tuple[str, Sequence[str]]:
    """Return the text of a process's output, and what there is to note of it."""
    if not output:
        return "", ["crashed"]
    (size,) = _HEADER.unpack_from(output)
    described = json.loads(output[_HEADER.size : _HEADER.size + size])
    if "code" in described:
        return "", [f"refused: {described['code']}"]
    rest = output[_HEADER.size + size :]
    text = zstandard.ZstdDecompressor().decompressobj().decompress(rest[: described.get("size")]).decode()
    codes = Counter(str(each["code"]) for each in described["warnings"])
    return text, [f"{code} x {num}" if num > 1 else code for code, num in codes.items()]


if __name__ == "__main__":
    main()
