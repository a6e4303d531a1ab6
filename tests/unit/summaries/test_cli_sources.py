import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.summaries.sources import SourceFile, find


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/x.txt", "a/x.TXT", "a/deep/er/y.md", "z.pdf", "a/no.png", ".git/x.txt", "a/.~lock.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path


def shown(*paths: str, left_out: Path | None = None) -> list[str]:
    return [source.shown for source in find(paths, left_out=left_out)]


def test_a_folder_gives_its_documents_in_order_and_nothing_hidden(folder: Path) -> None:
    found = list(find([str(folder)]))
    assert [str(source.name) for source in found] == ["z.pdf", "a/x.TXT", "a/deep/er/y.md", "b/x.txt"]
    assert [source.shown for source in found] == [f"{folder}/{source.name}" for source in found]


def test_files_of_other_kinds_are_counted(folder: Path) -> None:
    (folder / "b" / "Makefile").touch()
    others: Counter[str] = Counter()
    list(find([str(folder)], others=others))
    assert others == {".png": 1, "without a suffix": 1}
    others.clear()
    list(find([str(folder / "a" / "no.png")], others=others))
    assert not others


def test_a_named_file_is_always_given_and_as_it_was_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert shown("./a/no.png", "missing", ".git/x.txt") == ["./a/no.png", "missing", ".git/x.txt"]
    assert shown("a/") == ["a/x.TXT", "a/deep/er/y.md"]


def test_a_file_named_twice_is_given_once(folder: Path) -> None:
    one = str(folder / "b" / "x.txt")
    assert shown(one, str(folder), one).count(one) == 1
    assert len(shown(str(folder), str(folder / "a"))) == 4


def test_the_folder_of_the_results_is_not_read(folder: Path) -> None:
    assert shown(str(folder), left_out=folder / "a") == [f"{folder}/z.pdf", f"{folder}/b/x.txt"]


def test_the_folder_of_the_results_is_not_read_through_a_link_either(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder / "a")
    assert shown(str(folder), left_out=tmp_path / "link") == [f"{folder}/z.pdf", f"{folder}/b/x.txt"]


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("x")
    (source,) = find([str(tmp_path)])
    source.shown.encode()
    assert source.path.read_text() == "x"


def test_a_loop_of_links_ends(folder: Path) -> None:
    (folder / "a" / "loop").symlink_to(folder)
    assert len(shown(str(folder))) == 4


@given(st.sets(st.from_regex(r"\A([abc]/){0,3}[abc]\.(txt|pdf)\Z"), min_size=1, max_size=12))
def test_no_two_files_have_one_name(paths: set[str]) -> None:
    found: list[SourceFile] = list(find([f"/nowhere/{path}" for path in sorted(paths)]))
    assert len({source.name for source in found}) == len(paths)
