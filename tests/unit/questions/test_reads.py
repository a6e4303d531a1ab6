"""What the proof that each text is read once counts as a second reading, and what excuses one."""

import pytest

from asking.reads import Reads, Text, readings_of
from bench.stand.trace import Request

TEXT = Text("summary", 0)


def request(name: str, began: float, *, reused_blocks: int = 0, generated: int = 10) -> Request:
    return Request(name, 2000, 256, generated, began - 0.1, began, began + 1, reused_blocks)


def again(*requests: Request, workers: str = "", engine_deaths: tuple[float, ...] = ()) -> list[str]:
    """The excuses for what was read again; a worker for each request, else one for all."""
    runs = {
        each.request_id: (worker, TEXT)
        for each, worker in zip(requests, workers or "a" * len(requests), strict=True)
    }
    found = Reads(readings_of(requests, runs, tokens_per_block=64), 0, 0, engine_deaths)
    return [excuse for _, _, excuse in found.again()]


def test_a_question_about_a_text_that_the_engine_has_reads_nothing() -> None:
    assert again(request("1", 1), request("2", 2, reused_blocks=29), request("3", 3, reused_blocks=25)) == []


@pytest.mark.parametrize("reused_blocks", [0, 12, 24])
def test_a_text_that_one_worker_lets_read_twice_has_no_excuse(reused_blocks: int) -> None:
    assert again(request("2", 2, reused_blocks=reused_blocks), request("1", 1)) == [""]


def test_a_text_is_read_once_more_for_a_worker_that_took_over() -> None:
    cut = request("1", 1, generated=0)
    assert again(cut, request("2", 9), workers="ab") == ["its worker was killed while it was read"]
    assert again(request("1", 1), request("2", 9), workers="ab") == ["its worker was killed"]
    assert again(request("1", 1), request("2", 8), request("3", 9), workers="abb")[1] == ""


def test_a_killed_engine_has_nothing_any_more() -> None:
    assert again(request("1", 1), request("2", 9), engine_deaths=(5.0,)) == ["its engine was killed"]
    assert again(request("1", 1), request("2", 9), engine_deaths=(0.5, 10.0)) == [""]
