"""The answers of all documents as one table, in the order of the files: CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any, Final, TextIO

from cli.summaries.results import DocumentResult

_COLUMNS: Final = ("document", "question", "answer", "pages", "quote")
NOT_IN_DOCUMENT: Final = "not in the document"
_NOT_IN_TEXT: Final = "[not in the text] "
# A spreadsheet takes a cell that begins like this for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class TableFormat(StrEnum):
    """File format of answers."""

    CSV = "csv"
    JSON = "json"


class TableWriter:
    """Writes the answers of each document once those of all before it are written.

    Attributes:
        num_complete: documents of which every question was answered, or found to have no answer.

    Args:
        out: where to write.
        questions: that every document was asked.
        aside: hides what is shown on the same terminal while something is written.
    """

    def __init__(
        self,
        out: TextIO,
        kind: TableFormat,
        questions: Sequence[str],
        *,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._out = out
        self._kind = kind
        self._questions = questions
        self._aside = aside
        self._waiting: dict[int, Callable[[], DocumentResult]] = {}
        self._next = 0
        self._num_written = 0
        self.num_complete = 0
        self._out.write(_line(_COLUMNS) if kind is TableFormat.CSV else "[")

    def take(self, place: int, fetch: Callable[[], DocumentResult]) -> None:
        """Write the result of the file at this place, now or when its turn comes.

        Args:
            place: index of the file, from 0.
            fetch: returns the result and is called once, so a waiting result takes no memory.
        """
        self._waiting[place] = fetch
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next)())
            self._next += 1

    def close(self) -> None:
        """Write what waits for missing results, and end the table."""
        for place in sorted(self._waiting):
            self._write(self._waiting.pop(place)())
        if self._kind is TableFormat.JSON:
            self._out.write("\n]\n" if self._num_written else "]\n")
        self._out.flush()

    def _write(self, result: DocumentResult) -> None:
        self.num_complete += result.error is None and all(each["error"] is None for each in result.answers)
        with self._aside():
            if self._kind is TableFormat.CSV:
                self._out.write(rows(result, self._questions))
            else:
                written = json.dumps(as_object(result), indent=2, ensure_ascii=False)
                self._out.write(f"{',' if self._num_written else ''}\n{written}")
            self._out.flush()
        self._num_written += 1


def as_object(result: DocumentResult) -> dict[str, object]:
    """Convert the answers of a document to a JSON object."""
    return {
        "document": result.source.shown,
        "answers": list(result.answers),
        "usage": result.usage,
        "error": result.error,
    }


def rows(result: DocumentResult, questions: Sequence[str]) -> str:
    """Write a row for each question, also of a document that failed."""
    name = result.source.shown
    if result.error is not None:
        failed = _failure(result.error)
        return "".join(_line((name, question, failed, "", "")) for question in questions)
    return "".join(
        _line((name, each["question"], _answer(each), _pages(each["pages"]), _quote(each)))
        for each in result.answers
    )


def _answer(each: Mapping[str, Any]) -> str:
    if each["error"] is not None:
        return _failure(each["error"])
    answer = each["answer"] if each["found"] else NOT_IN_DOCUMENT
    if not each["gaps"]:
        return str(answer)
    parts = ", ".join(
        f"pages {_pages(gap['pages'])}" if gap["pages"] else f"characters {gap['start']}-{gap['end']}"
        for gap in each["gaps"]
    )
    return f"{answer} [not asked: {parts}]"


def _quote(each: Mapping[str, Any]) -> str:
    return f"{'' if each['quote_in_text'] else _NOT_IN_TEXT}{each['quote']}" if each["quote"] else ""


def _pages(pages: Sequence[int] | None) -> str:
    if pages is None:
        return ""
    first, last = pages
    return str(first) if first == last else f"{first}-{last}"


def _failure(error: Mapping[str, object]) -> str:
    return f"[failed] {error['message']} ({error['code']})"


def _line(cells: Sequence[str]) -> str:
    """Write a row; quote what a spreadsheet would take for a formula."""
    written = io.StringIO()
    safe = [f"'{each}" if each.startswith(_FORMULA) else each for each in cells]
    csv.writer(written, lineterminator="\n").writerow(safe)
    return written.getvalue()
