import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbatch.documents.sources import Skipped, SourceFile, find


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
    skipped = Skipped()
    list(find([str(folder)], skipped=skipped))
    assert skipped == Skipped(kinds=Counter({".png": 1, "without a suffix": 1}))
    skipped = Skipped()
    list(find([str(folder / "a" / "no.png")], skipped=skipped))
    assert skipped == Skipped()


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


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder beside the one that is searched, with a secret."""
    made = tmp_path_factory.mktemp("outside")
    (made / "deep").mkdir()
    for name in ("secret.txt", "deep/secret.md"):
        (made / name).write_text("a secret")
    return made


def linked(folder: Path, outside: Path) -> dict[str, Path | str]:
    """Links that lead out of the folder, by their names in it."""
    return {
        "file.txt": outside / "secret.txt",
        "folder": outside,
        "a/up.txt": os.path.relpath(outside / "secret.txt", folder / "a"),
        "b/over.txt": "hop.txt",  # by way of another link
        "b/hop.txt": outside / "secret.txt",
        "b/parent": "../..",
    }


def test_links_that_lead_out_of_the_folder_are_skipped_and_named(folder: Path, outside: Path) -> None:
    links = linked(folder, outside)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    skipped = Skipped()
    found = [str(source.name) for source in find([str(folder)], skipped=skipped)]
    assert found == ["z.pdf", "a/x.TXT", "a/deep/er/y.md", "b/x.txt"]
    assert sorted(skipped.links) == sorted(f"{folder}/{name}" for name in links)
    assert skipped.broken == []


def test_links_are_followed_if_that_is_asked_for(folder: Path, outside: Path) -> None:
    (folder / "file.txt").symlink_to(outside / "secret.txt")
    (folder / "folder").symlink_to(outside)
    (outside / "back").symlink_to(folder)
    (outside / "again").symlink_to(outside)
    skipped = Skipped()
    found = [str(source.name) for source in find([str(folder)], skipped=skipped, follow_links=True)]
    followed = {"file.txt", "folder/secret.txt", "folder/deep/secret.md"}
    assert sorted(found) == sorted(["z.pdf", "a/x.TXT", "a/deep/er/y.md", "b/x.txt", *followed])
    assert skipped.links == []


def test_links_within_the_folder_are_documents_and_broken_ones_are_named(folder: Path, outside: Path) -> None:
    (folder / "b" / "same.txt").symlink_to("../z.pdf")
    (folder / "b" / "gone.txt").symlink_to("nothing.txt")
    (folder / "b" / "away.txt").symlink_to(outside / "nothing.txt")
    (folder / "b" / "one.txt").symlink_to("two.txt")
    (folder / "b" / "two.txt").symlink_to("one.txt")
    for follow_links in (False, True):
        skipped = Skipped()
        found = {str(each.name) for each in find([str(folder)], skipped=skipped, follow_links=follow_links)}
        assert found == {"z.pdf", "a/x.TXT", "a/deep/er/y.md", "b/x.txt", "b/same.txt"}
        broken = [f"{folder}/b/{name}.txt" for name in ("away", "gone", "one", "two")]
        assert (skipped.links, skipped.broken) == ([], broken)


def test_a_link_that_is_named_itself_is_followed(folder: Path, outside: Path) -> None:
    links = [folder / "named", folder / "named.txt"]
    links[0].symlink_to(outside)
    links[1].symlink_to(outside / "secret.txt")
    skipped = Skipped()
    found = [source.shown for source in find([str(each) for each in links], skipped=skipped)]
    assert found == [f"{links[0]}/secret.txt", f"{links[0]}/deep/secret.md", str(links[1])]
    assert skipped == Skipped()


@given(st.sets(st.from_regex(r"\A([abc]/){0,3}[abc]\.(txt|pdf)\Z"), min_size=1, max_size=12))
def test_no_two_files_have_one_name(paths: set[str]) -> None:
    found: list[SourceFile] = list(find([f"/nowhere/{path}" for path in sorted(paths)]))
    assert len({source.name for source in found}) == len(paths)
