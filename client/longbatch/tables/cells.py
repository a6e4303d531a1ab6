"""Lines of CSV that a spreadsheet shows and does not compute."""

import csv
import io
from collections.abc import Iterable
from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def is_formula(text: str) -> bool:
    """Return True for a text that a spreadsheet would take for a formula."""
    return text.startswith(_FORMULA)


def inert(text: str) -> str:
    """Quote a text that could be a formula, even "- …", which looks like a list."""
    return f"'{text}" if is_formula(text) else text


def csv_line(cells: Iterable[object]) -> str:
    """Write a row; numbers stay numbers, and no text is taken for a formula."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(
        inert(each) if isinstance(each, str) else each for each in cells
    )
    return written.getvalue()
