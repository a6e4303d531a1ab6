from datetime import UTC, datetime, timedelta

import pytest

from jobs.states import WaitReason
from jobs.views import QueueReply, rfc3339
from longbatch.cli.queue_text import in_words

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def said(position: int | None, reason: str | None, left: timedelta | None) -> str:
    start = None if left is None else rfc3339(NOW + left)
    return in_words(
        QueueReply(position=position, reason=reason, estimated_start_at=start, detail=None), now=NOW
    )


def test_place_start_and_reason_are_one_line() -> None:
    assert said(3, "behind", timedelta(seconds=250)) == "number 3, starts in about 4 min: others go first"
    assert said(1, None, timedelta(0)) == "number 1: starts any moment"
    assert said(None, "preparing", None) == "its tokens are being counted"
    assert said(12_345, "behind", timedelta(days=3)).startswith("number 12,345, starts in about 3 d")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "1 s"),
        (90, "90 s"),
        (150, "2 min"),
        (3599, "1 h"),
        (5202, "1 h 27 min"),
        (20_000, "5 h 33 min"),
        (200_000, "2 d"),
    ],
)
def test_spans_are_as_exact_as_an_estimate_is_worth(seconds: int, words: str) -> None:
    assert f"in about {words}:" in said(1, "slots", timedelta(seconds=seconds))


def test_every_reason_has_words() -> None:
    assert all(said(None, reason, None) != reason for reason in WaitReason)
