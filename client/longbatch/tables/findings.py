"""What was found in documents, as texts of cells."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_NOT_IN_TEXT: Final = "[not in the text] "


def shown_pages(pages: Sequence[int] | None) -> str:
    """Write a range of pages: `4`, `4-6`, or nothing without pages."""
    if pages is None:
        return ""
    first, last = pages
    return str(first) if first == last else f"{first}-{last}"


def shown_gaps(gaps: Sequence[Mapping[str, Any]]) -> str:
    """Write which parts are missing: `pages 3-4, characters 5-9`."""
    return ", ".join(
        f"pages {shown_pages(gap['pages'])}" if gap["pages"] else f"characters {gap['start']}-{gap['end']}"
        for gap in gaps
    )


def shown_quote(quote: str | None, *, in_text: bool | None) -> str:
    """Write a quote, marked if its words are not in the text."""
    return f"{'' if in_text else _NOT_IN_TEXT}{quote}" if quote else ""


def shown_warnings(warnings: Sequence[Mapping[str, object]]) -> str:
    """Write the warnings of a document in a cell."""
    return " | ".join(str(each["message"]) for each in warnings)


def shown_failure(error: Mapping[str, object]) -> str:
    """Write an error in a cell."""
    return f"[failed] {error['message']} ({error['code']})"
