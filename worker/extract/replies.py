"""The answers of external extractors as text: JSON by their contracts, taken for granted in nothing."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from worker.extract.draft import ExtractionError, TextBuilder
from worker.extract.plain import first_heading

_ITEMS: Final = ("texts", "tables", "pictures", "key_value_items", "form_items")
_BODY: Final = "body"  # the layer that Markdown shows; others are headers and footers


def read_docling(raw: bytes, draft: TextBuilder) -> None:
    """Read an answer of docling-serve; its first line is the mark that ends its pages."""
    mark, _, body = raw.partition(b"\n")
    answer = _parsed(body)
    try:
        status, document = answer["status"], answer["document"]
        if status in ("failure", "skipped"):
            message = "The external extractor could not read the document."
            raise ExtractionError("extractor_refused", message)
        markdown, content = document["md_content"], document.get("json_content") or {}
        parts = markdown.split(mark.decode())
        numbers = _pages_of(content)
    except (KeyError, TypeError, AttributeError):
        _refuse()
    if status == "partial_success":
        draft.warn("extracted_in_part", "The external extractor could not read all of the document.")
    _write(parts, numbers if len(numbers) == len(parts) else [], draft)


def read_open_webui(raw: bytes, draft: TextBuilder) -> None:
    """Read an answer to Open WebUI: a text, or a list of them, which are pages if they are numbered."""
    answer = _parsed(raw)
    try:
        parts = [each["page_content"] for each in (answer if isinstance(answer, list) else [answer])]
        given = [(each.get("metadata") or {}).get("page") for each in answer if isinstance(answer, list)]
    except (KeyError, TypeError, AttributeError):
        _refuse()
    if not all(isinstance(part, str) for part in parts):
        _refuse()
    counts = [[*range(first, first + len(parts))] for first in (0, 1)]
    _write(parts, counts[1] if given in counts else [], draft)


def _write(parts: Sequence[str], numbers: Sequence[int], draft: TextBuilder) -> None:
    """Write the parts, on the pages of these numbers; without numbers, the text has no pages."""
    draft.set_title(first_heading(parts[0]) if parts else None)
    if not numbers:
        draft.write("\n\n".join(part.strip() for part in parts))
        return
    draft.announce_pages(numbers[-1])
    on_page = dict(zip(numbers, parts, strict=True))
    for number in range(1, numbers[-1] + 1):
        draft.begin_page()
        draft.write(on_page.get(number, "").strip())


def _pages_of(content: dict[str, Any]) -> list[int]:
    """List the pages that have something on them, in their order."""
    found = set()
    for item in _items(content):
        if item.get("content_layer", _BODY) == _BODY:
            found |= {each["page_no"] for each in item.get("prov") or ()}
    return sorted(found) if all(type(each) is int and each > 0 for each in found) else []


def _items(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _ITEMS:
        yield from content.get(name) or ()


def _parsed(body: bytes) -> Any:  # noqa: ANN401  # JSON
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        _refuse()


def _refuse() -> NoReturn:
    message = "The external extractor's answer is not what its contract says."
    raise ExtractionError("extractor_invalid", message) from None
