"""Estimates of more documents than one request may have are put together."""

from typing import Any

import pytest

from longbatch.cli.commands.estimate import joined


def part(seconds: int | None, *, name: str = "doc_1") -> dict[str, Any]:
    return {
        "chunks": 3,
        "jobs": 4,
        "levels": 2,
        "prompt_tokens": 100,
        "completion_tokens": {"expected": 10, "max": 20},
        "estimated_seconds": seconds,
        "documents": [{"id": name, "tokens": 90, "chunks": 3, "levels": 2, "jobs": 4}],
    }


def test_parts_are_summed_and_documents_have_their_paths() -> None:
    whole = joined([part(9), part(9, name="doc_2")], {"doc_1": "a.txt", "doc_2": "b.txt"}, queued_seconds=0)
    assert (whole["chunks"], whole["jobs"], whole["levels"], whole["prompt_tokens"]) == (6, 8, 2, 200)
    assert whole["completion_tokens"] == {"expected": 20, "max": 40}
    assert [each["path"] for each in whole["documents"]] == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("seconds", "queued", "expected"),
    [
        ([], None, 0),
        ([70], None, 70),
        ([None], None, None),
        ([110, 130, 105], 100, 145),
        ([110, 130], 0, 240),
        ([110, 95], 100, 110),  # the queue has shrunk meanwhile
        ([110, None], 100, None),
        ([110, 130], None, None),
    ],
)
def test_what_is_queued_is_waited_for_once(
    seconds: list[int | None], queued: int | None, expected: int | None
) -> None:
    found = joined([part(each) for each in seconds], {}, queued_seconds=queued)
    assert found["estimated_seconds"] == expected
