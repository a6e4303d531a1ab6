"""Real-world documents, each an example of a kind that readers get wrong, with its right outcome.

`cases.json` has one object per file: `contains`, `absent` and `once` are strings of the text, white space
collapsed; `before` are pairs in order; of each list in `one_of` one occurs; `longest` is the most characters;
`warns` and `refused_words` are words of a warning's code or message, and of a refusal's message; of each list
in `either`, one outcome holds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from jobs.documents.kinds import HEAD_BYTES, TAIL_BYTES, UnsupportedDocumentError, UploadHints, find_kind
from jobs.states.document import DocumentKind, DocumentWarningCode
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits

CASES: Final[Sequence[Mapping[str, Any]]] = json.loads(
    (Path(__file__).parent / "cases.json").read_text(encoding="utf-8")
)
FILES: Final = Path(__file__).parent / "cases"
PAGE: Final = (Path(__file__).resolve().parents[3] / "docs" / "what-is-read.md").read_text(encoding="utf-8")
SECTIONS: Final[Mapping[str, str]] = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)
SECTION_OF: Final = {
    **dict.fromkeys(("eml", "msg", "mbox"), "Mail"),
    "pdf": "PDF",
    **dict.fromkeys(("txt", "sh", "csv", "html", "gz"), "Text and HTML"),
}
LIMITS: Final = ExtractionLimits(memory_bytes=2**31, seconds=60, max_pages=5000, max_characters=10_000_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of reading a file.

    Attributes:
        text: white space collapsed; empty if it was refused.
        num_chars: of the text as it was read.
        warnings: code and message of each, in lower case.
        refusal: in lower case; empty if there is a text.
    """

    text: str
    num_chars: int = 0
    warnings: tuple[str, ...] = ()
    refusal: str = ""


@cache
def outcome_of(path: Path) -> Outcome:
    data = path.read_bytes()
    if not data:
        return Outcome("", refusal="the file is empty: it has no bytes.")  # the API's own error
    try:
        kind = find_kind(UploadHints(data[:HEAD_BYTES], data[-TAIL_BYTES:], path.name))
        draft = read(kind.value, data, LIMITS)
    except (UnsupportedDocumentError, ExtractionError) as refused:
        return Outcome("", refusal=refused.message.lower())
    text = " ".join(draft.text().split())
    if not text:
        return Outcome("", refusal="the document has no text.")
    warnings = tuple(f"{each['code']}: {each['message']}".lower() for each in draft.warnings)
    return Outcome(text, len(draft.text()), warnings)


def problems(case: Mapping[str, Any], found: Outcome) -> list[str]:
    """List what is wrong with the outcome."""
    if case["refused"]:
        is_refused = any(word in found.refusal for word in case["refused_words"])
        return [] if is_refused else [f"not refused: {found}"]
    wrong = []
    if found.refusal and not case.get("either"):
        wrong.append(f"refused: {found.refusal}")
    if not found.refusal:
        wrong += [f"missing: {each!r}" for each in case["contains"] if each not in found.text]
        wrong += [f"present: {each!r}" for each in case["absent"] if each in found.text]
        wrong += [
            f"{found.text.count(each)} times: {each!r}"
            for each in case["once"]
            if found.text.count(each) != 1
        ]
        wrong += [
            f"not in this order: {first!r}, {second!r}"
            for first, second in case["before"]
            if first not in found.text or second not in found.text.partition(first)[2]
        ]
        wrong += [
            f"none of: {each}"
            for each in case.get("one_of", ())
            if not any(one in found.text for one in each)
        ]
        wrong += [f"no warning: {each['about']}" for each in case["warns"] if not warns(each, found)]
    if found.num_chars > case.get("longest", found.num_chars):
        wrong.append(f"{found.num_chars} characters")
    wrong += [
        f"none of the outcomes: {outcomes}; found: {found.warnings} {found.refusal}"
        for outcomes in case.get("either", ())
        if not any(holds(outcome, found) for outcome in outcomes)
    ]
    return wrong


def holds(outcome: Mapping[str, Any], found: Outcome) -> bool:
    if "refused" in outcome:
        return any(word in found.refusal for word in outcome["refused"])
    if "warns" in outcome:
        return warns(outcome["warns"], found)
    if "contains_any_case" in outcome:
        return all(each.lower() in found.text.lower() for each in outcome["contains_any_case"])
    return not found.refusal and all(each in found.text for each in outcome["contains"])


def warns(expected: Mapping[str, Any], found: Outcome) -> bool:
    return any(word in warning for warning in found.warnings for word in expected["words"])


@pytest.mark.parametrize("case", CASES, ids=[case["file"] for case in CASES])
def test_a_file_is_read_as_a_person_would(case: Mapping[str, Any]) -> None:
    wrong = problems(case, outcome_of(FILES / case["file"]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", CASES, ids=[case["file"] for case in CASES])
def test_the_page_names_what_a_reader_warns_of(case: Mapping[str, Any]) -> None:
    path = FILES / case["file"]
    codes = {each.partition(":")[0] for each in outcome_of(path).warnings}
    section = SECTIONS[SECTION_OF.get(path.suffix[1:], "Office")] + SECTIONS["Attached files"]
    assert {code for code in codes if f"`{code}`" not in section} == set()


def test_the_page_names_every_warning_and_every_kind() -> None:
    assert {code for code in DocumentWarningCode if f"`{code}`" not in PAGE} == set()
    pictures = {DocumentKind.PNG, DocumentKind.JPG, DocumentKind.TIFF}  # docs/scans.md
    assert {kind for kind in DocumentKind if not re.search(rf"\b{kind}\b", PAGE)} <= pictures
