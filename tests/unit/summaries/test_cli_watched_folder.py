from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from longbatch.cli.watched_folder import Arrival, FolderInUseError, FolderWatcher, Ledger
from longbatch.documents.sources import Skipped, find


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "out", options="a") as opened:
        yield opened


def watched(
    folder: Path,
    ledger: Ledger,
    *,
    settle: float = 0.0,
    follow_links: bool = False,
    say: Callable[[Skipped], object] = lambda _: None,
) -> FolderWatcher:
    out = folder / "out" if (folder / "out").exists() else folder.parent / "out"
    search = partial(find, [str(folder)], left_out=out, follow_links=follow_links)
    return FolderWatcher(search, ledger, report=say, settle=settle, poll=0.01, stop=Event())


def after(num_looks: int) -> Callable[[bool], bool]:
    looks = iter(range(num_looks))
    return lambda _is_idle: next(looks, None) is None


def names(found: Iterator[Arrival]) -> list[str]:
    return [str(arrival.source.name) for arrival in found]


def test_a_file_counts_once(folder: Path, ledger: Ledger) -> None:
    (folder / "a.txt").write_text("x")
    (folder / "deep").mkdir()
    (folder / "deep" / "a.txt").write_text("x")
    (folder / "a.part").write_text("x")
    assert names(watched(folder, ledger).arrivals(until=after(3))) == ["a.txt", "deep/a.txt"]


def test_a_link_out_of_the_folder_does_not_count_and_is_reported_once(
    folder: Path, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    (folder / "a.txt").symlink_to(tmp_path / "secret.txt")
    said: list[list[str]] = []
    watching = watched(folder, ledger, say=lambda skipped: said.append(skipped.links))
    assert names(watching.arrivals(until=after(3))) == []
    assert said == [[f"{folder}/a.txt"]]
    followed = watched(folder, ledger, follow_links=True)
    assert names(followed.arrivals(until=after(3))) == ["a.txt"]


def test_a_file_that_grows_does_not_count(folder: Path, ledger: Ledger) -> None:
    file = folder / "a.txt"
    file.write_text("x")

    def grow(_is_idle: bool) -> bool:  # noqa: FBT001  # as it is called
        file.write_text(file.read_text() + "x")
        return len(file.read_text()) > 5

    assert names(watched(folder, ledger, settle=0.001).arrivals(until=grow)) == []
    assert names(watched(folder, ledger, settle=0.001).arrivals(until=after(4))) == ["a.txt"]


def test_what_is_done_stays_done_until_it_changes(folder: Path, ledger: Ledger) -> None:
    file = folder / "a.txt"
    file.write_text("x")
    first = watched(folder, ledger)
    for arrival in first.arrivals(until=lambda is_idle: is_idle):
        first.end(arrival, is_done=True)
    assert names(watched(folder, ledger).arrivals(until=after(2))) == []
    file.write_text("xy")
    assert names(watched(folder, ledger).arrivals(until=after(2))) == ["a.txt"]


def test_what_was_taken_and_not_ended_comes_again_after_a_restart(folder: Path, ledger: Ledger) -> None:
    (folder / "a.txt").write_text("x")
    assert names(watched(folder, ledger).arrivals(until=after(2))) == ["a.txt"]
    assert names(watched(folder, ledger).arrivals(until=after(2))) == ["a.txt"]


def test_other_options_make_other_results(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").write_text("x")
    for options, found in (("a", 1), ("a", 0), ("b", 1)):
        with Ledger(tmp_path / "out", options=options) as ledger:
            ledger.forget_missing(folder)
            looked = watched(folder, ledger)
            arrivals = list(looked.arrivals(until=after(1)))
            assert len(arrivals) == found
            for arrival in arrivals:
                looked.end(arrival, is_done=True)


def test_two_cannot_write_into_one_folder(ledger: Ledger, tmp_path: Path) -> None:  # noqa: ARG001  # holds it
    with pytest.raises(FolderInUseError):
        Ledger(tmp_path / "out", options="a")


def test_the_results_are_no_documents(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "out" / "a.txt.md").write_text("x")
    (tmp_path / "b.txt").write_text("x")
    assert names(watched(tmp_path, ledger).arrivals(until=after(2))) == ["b.txt"]
