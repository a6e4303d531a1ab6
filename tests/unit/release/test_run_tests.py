"""The last line of `make test` adds up all steps, and no step that failed can look green."""

import json
import signal
from pathlib import Path

import pytest

from scripts.testing.run_tests import Ending, Step, read_ending, report, sum_up


def pytest_that(
    tmp_path: Path, *, status: int, ended: int | None = None, failed: str = "", counts: dict[str, int]
) -> Ending:
    """Judge a pytest that wrote these numbers and ended with `ended`, or else the status that it wrote."""
    file = tmp_path / "unit.json"
    file.write_text(json.dumps({"exit_status": status, "counts": counts, "failed": failed.split()}))
    step = Step("unit", ["python"], tmp_path / "unit.log", file)
    return read_ending(step, status if ended is None else ended)


def test_the_sum_has_the_numbers_of_both_processes_in_the_order_of_pytest() -> None:
    unit = Ending("unit", {"passed": 3270, "skipped": 14, "warnings": 1})
    rest = Ending(
        "rest", {"skipped": 1, "passed": 3393, "xfailed": 2, "failed": 1, "error": 2}, ["a", "b", "c"]
    )
    line = sum_up([unit, rest, Ending("mypy")], seconds=812.34)
    assert line.strip("= ") == (
        "1 failed, 6663 passed, 15 skipped, 2 xfailed, 1 warning, 2 errors in 812.34s (0:13:32)"
    )


def test_the_sum_of_a_green_run_is_that_of_pytest() -> None:
    assert sum_up([Ending("unit", {"passed": 6663})], seconds=3.217).strip("=") == " 6663 passed in 3.22s "


def test_outcomes_that_plugins_add_are_in_the_sum() -> None:
    line = sum_up([Ending("unit", {"passed": 2, "subtests passed": 7})], seconds=1)
    assert "2 passed, 7 subtests passed in" in line


def test_a_run_whose_tests_pass_or_are_skipped_is_green(tmp_path: Path) -> None:
    ending = pytest_that(tmp_path, status=0, counts={"passed": 3, "skipped": 1, "xfailed": 1, "warnings": 2})
    assert not ending.is_failure
    assert report([ending]) == []


def test_a_failed_test_is_reported_by_its_id(tmp_path: Path) -> None:
    ending = pytest_that(tmp_path, status=1, failed="tests/a.py::test_b", counts={"passed": 3, "failed": 1})
    assert ending.is_failure
    assert report([ending])[0] == "unit: FAILED tests/a.py::test_b"


@pytest.mark.parametrize(
    ("status", "counts", "ended", "words"),
    [
        (5, {}, None, "ran no test"),
        (5, {"deselected": 9}, None, "ran no test"),
        (0, {"warnings": 1}, None, "ran no test"),
        (0, {"passed": 9}, -signal.SIGKILL, "was killed by SIGKILL after it had reported status 0"),
        (0, {"passed": 9}, 1, "exited with status 1 after"),
        (1, {"passed": 9}, None, "exited with status 1"),
        (2, {"passed": 9}, None, "exited with status 2"),
        (3, {"passed": 9}, None, "exited with status 3"),
    ],
)
def test_a_pytest_that_did_not_run_its_tests_to_their_end_is_an_error(
    tmp_path: Path, status: int, counts: dict[str, int], ended: int | None, words: str
) -> None:
    ending = pytest_that(tmp_path, status=status, ended=ended, counts=counts)
    assert ending.is_failure
    assert words in report([ending])[0]
    assert "1 error in" in sum_up([ending], seconds=1)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"exit_status": 0}'])
def test_a_pytest_that_wrote_no_numbers_is_an_error(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "unit.json"
    if content is not None:
        file.write_text(content)
    ending = read_ending(Step("unit", ["python"], tmp_path / "unit.log", file), 0)
    assert ending.is_failure
    assert "wrote no numbers" in report([ending])[0]
    assert "1 error in" in sum_up([ending], seconds=1)


def test_lint_that_fails_is_an_error_of_the_whole_run(tmp_path: Path) -> None:
    ending = read_ending(Step("mypy", ["/bin/mypy"], tmp_path / "mypy.log"), 1)
    assert ending.is_failure
    assert report([ending]) == ["mypy: ERROR mypy exited with status 1"]
    line = sum_up([Ending("unit", {"passed": 5}), ending], seconds=1)
    assert "5 passed, 1 error in" in line


def test_lint_that_passes_adds_nothing(tmp_path: Path) -> None:
    ending = read_ending(Step("mypy", ["/bin/mypy"], tmp_path / "mypy.log"), 0)
    assert not ending.is_failure
    assert sum_up([ending], seconds=1).strip("=") == " no tests ran in 1.00s "
