"""In which order test files run, and which of them run one after another in one process."""

from typing import Final

import pytest

# The longest first, so that no process ends the run alone with one of them. `make test` runs `unit` apart.
FOLDERS: Final = ("system", "guarantees", "contract", "integration", "migrations", "unit")
# The files of a group share what is dear to start: a running stack costs 3 s of CPU.
# A name may have its folder before it, where another folder has such a file.
TOGETHER: Final = (
    (
        "test_end_to_end.py",
        "test_summary_sources.py",
        "test_summaries_page.py",
        "test_openai_batches.py",
        "test_webhooks.py",
        "test_openapi.py",  # last: it leaves jobs of all kinds
    ),
    (
        "test_openai_chat.py",
        "test_events.py",
        "test_openai_javascript.py",
        "test_responses.py",
        "test_response_batches.py",
        "test_response_crashes.py",  # last: it kills
    ),
    ("test_structured_output.py", "answers/test_log_probs.py", "test_choices.py"),
    (
        "test_one_box_page.py",
        "test_soak.py",
        "test_first_result.py",
        "test_client.py",
        "test_stand_in.py",
        "test_webhooks_listen.py",
    ),
    ("test_cancel.py", "test_crashes.py"),
    ("test_summarize_many.py", "test_openai_crashes.py", "test_extract_many.py"),
    ("test_tokens.py", "test_tokens_files.py"),  # both load transformers
)
_GROUPS: Final = {
    name: (number, place) for number, group in enumerate(TOGETHER) for place, name in enumerate(group)
}


def group_of(item: pytest.Item) -> str:
    """Name what one process runs: a file, or a group of files."""
    number, _ = _grouped(item) or (None, 0)
    return str(item.path) if number is None else f"group {number}"


def needs_browser(item: pytest.Item) -> bool:
    """Return whether the test opens pages in a real browser."""
    return "browser" in getattr(item, "fixturenames", ())


def sort(items: list[pytest.Item]) -> None:
    """Sort by folders, with groups before single files; files that need the browser come last."""
    late = {item.path for item in items if needs_browser(item)}
    items.sort(key=lambda item: (item.path in late, *_place(item)))


def _place(item: pytest.Item) -> tuple[int, int, int]:
    folder = item.path.relative_to(item.config.rootpath).parts[1]
    rank = FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
    return rank, *(_grouped(item) or (len(TOGETHER), 0))


def _grouped(item: pytest.Item) -> tuple[int, int] | None:
    """Return the group of the test's file, and its place there; None for a file that runs alone."""
    name = item.path.name
    return _GROUPS.get(name) or _GROUPS.get(f"{item.path.parent.name}/{name}")
