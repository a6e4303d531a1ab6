"""In which order test files run, and which of them run one after another in one process."""

from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling

# The longest first, so that no process ends the run alone with one of them.
FOLDERS: Final = ("system", "guarantees", "contract", "integration", "migrations", "unit")
# The files of a group share what is dear to start: a running stack costs 15 s of CPU.
TOGETHER: Final = (
    (
        "test_end_to_end.py",
        "test_summary_sources.py",
        "test_summaries_page.py",
        "test_openai_batches.py",
        "test_webhooks.py",
        "test_openapi.py",  # last: it leaves jobs of all kinds
    ),
    ("test_openai_chat.py", "test_events.py", "test_openai_javascript.py"),
    ("test_cancel.py", "test_crashes.py"),
    ("test_summarize_many.py", "test_openai_crashes.py"),
    ("test_tokens.py", "test_tokens_files.py"),  # both load transformers
)
_GROUPS: Final = {
    name: (number, place) for number, group in enumerate(TOGETHER) for place, name in enumerate(group)
}


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Hand out whole files, and whole groups of files."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        number, _ = _GROUPS.get(file.rpartition("/")[2], (None, 0))
        return file if number is None else f"group {number}"


def sort(items: list[pytest.Item]) -> None:
    """Put the items in the order of their folders, groups before single files."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[int, int, int]:
    folder = item.path.relative_to(item.config.rootpath).parts[1]
    rank = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
    return rank, *_GROUPS.get(item.path.name, (len(TOGETHER), 0))
