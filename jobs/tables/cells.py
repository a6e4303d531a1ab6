"""Lines of CSV that a spreadsheet shows and does not compute."""

import csv
import io
from collections.abc import Sequence
from typing import Final

# A spreadsheet takes a cell that begins like this for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def inert(text: str) -> str:
    """Quote a text that could be a formula, even "- …", which looks like a list."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_line(cells: Sequence[str]) -> str:
    """Write a row of texts."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow([inert(each) for each in cells])
    return written.getvalue()
