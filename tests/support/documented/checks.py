"""What pages show of `longbatch engine inspect`, compared with what it prints."""

import re

from scripts.docs.build import ROOT


def assert_shown(page: str, printed: str) -> None:
    """Each check that the page shows was printed, whatever its addresses and numbers."""
    shown = re.findall(r"^    ([✓!?✗] .+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) > 5
    assert [each for each in shown if _words(each) not in _words(printed)] == []


def _words(check: str) -> str:
    """The text without what differs from server to server, and without what a page leaves out."""
    named = re.sub(r"entry point: \S+: ", "entry point: ", check)
    numbered = re.sub(r"http://[\w.:]+|\b[0-9a-f]{8}\b|\d[\d.,]*", "N", named)
    return numbered.partition(", …")[0].partition("; …")[0]
