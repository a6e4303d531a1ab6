import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import ApiProcess
from cli.stack.ports import free_port
from longbatch.cli.main import application
from longbatch.client import Client
from longbatch.documents.trees import Trees
from support import API_KEY, eventually, register_engine

Run = Callable[..., Result]


@pytest.fixture
def run(server: ApiProcess, sessions: sessionmaker[Session]) -> Run:  # noqa: ARG001  # without documents
    def invoke(*arguments: object, api_url: str = server.url, api_key: str = API_KEY) -> Result:
        environment = {"LONGBATCH_API_URL": api_url, "LONGBATCH_API_KEY": api_key}
        return CliRunner().invoke(application(), list(map(str, arguments)), env=environment)

    return invoke


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder whose documents are all refused as they are sent."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/a.txt"):
        (folder / name).touch()
    (folder / "deep" / "picture.pdf").write_bytes(b"GIF89a")
    return folder


def test_every_file_is_listed_with_its_error(run: Run, empty: Path) -> None:
    missing = empty / "missing"
    (empty / "photo.jpg").touch()
    done = run("summarize", empty, missing, "--format", "json")
    assert done.exit_code == 1
    codes = {each["path"]: each["error"]["code"] for each in json.loads(done.stdout)}
    assert codes == {
        f"{empty}/a.txt": "document_empty",
        f"{empty}/deep/a.txt": "document_empty",
        f"{empty}/deep/picture.pdf": "unsupported_document",
        str(missing): "file_unreadable",
    }
    assert "4 of 4 documents did not complete" in done.stderr
    assert "skipped files of other kinds: 1 .jpg" in done.stderr


def test_links_out_of_the_folder_are_skipped_and_reported(run: Run, empty: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").touch()
    (empty / "link.txt").symlink_to(tmp_path / "secret.txt")
    (empty / "gone.txt").symlink_to("nothing.txt")
    for verb in (["summarize"], ["ask", "-q", "Who?"], ["estimate"]):
        done = run(*verb, empty)
        said = done.stderr
        assert f"links that lead out of their folder: {empty}/link.txt (--follow-links reads them)" in said
        assert f"skipped broken links: {empty}/gone.txt" in said
        assert "3 of 3 documents did not complete" in said
        assert "4 of 4 documents did not complete" in run(*verb, empty, "--follow-links").stderr
    found = json.loads(run("estimate", empty, "--json").stdout)
    assert found["skipped"] == {
        "kinds": {},
        "links": [f"{empty}/link.txt"],
        "broken_links": [f"{empty}/gone.txt"],
    }
    watched = run("watch-folder", empty, tmp_path / "out", "--once", "--settle", "0", "--poll", "0.05")
    assert f"lead out of their folder: {empty}/link.txt" in watched.stderr
    assert "3 documents did not complete" in watched.stderr


def test_a_mistyped_path_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    mistyped = tmp_path / "documnets"
    for verb in ("summarize", "estimate"):
        done = run(verb, mistyped)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "no such file or folder" in done.stderr
        assert run(verb, mistyped, tmp_path / "other").exit_code == 2


def test_combined_too_every_file_is_listed(run: Run, empty: Path) -> None:
    done = run("summarize", empty, "--combine", "--format", "json")
    assert done.exit_code == 1
    assert [each["error"]["code"] for each in json.loads(done.stdout)] == [
        "document_empty",
        "document_empty",
        "unsupported_document",
    ]


def test_failures_are_written_beside_where_summaries_would_be(run: Run, empty: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("summarize", empty, "--output", out)
    assert (done.exit_code, done.stdout) == (1, "")
    files = {str(file.relative_to(out)) for file in out.rglob("*.*")}
    assert files == {"a.txt.error.json", "deep/a.txt.error.json", "deep/picture.pdf.error.json"}


def test_an_estimate_reports_what_cannot_be_read(run: Run, empty: Path) -> None:
    done = run("estimate", empty, "--json")
    assert done.exit_code == 1
    shown = json.loads(done.stdout)
    assert (shown["documents"], len(shown["failed"])) == ([], 3)


def test_the_time_of_the_queue_can_be_asked_for(server: ApiProcess, sessions: sessionmaker[Session]) -> None:
    with Client(server.url, API_KEY) as client:
        trees = Trees()
        queued = client.run(trees.queued_seconds({"length": 100, "style": "bullets"}))
        assert queued is None, "no engine is up"
        with sessions.begin() as session:
            register_engine(session, model=client.run(trees.model()))
        found = eventually(lambda: client.run(trees.queued_seconds({"length": 100, "chunk_tokens": 64})))
    assert 0 < found < 600


def test_a_watched_folder_is_done_once(run: Run, empty: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("watch-folder", empty, out, "--once", "--settle", "0", "--poll", "0.05")
    done = run(*arguments)
    assert done.exit_code == 1
    stamps = {file: file.stat().st_mtime_ns for file in out.rglob("*.error.json")}
    assert len(stamps) == 3
    (empty / "a.txt").write_bytes(b"\x7fELF")
    assert run(*arguments).exit_code == 1
    changed = {file.name for file, stamp in stamps.items() if file.stat().st_mtime_ns != stamp}
    assert changed == {"a.txt.error.json"}
    assert json.loads((out / "a.txt.error.json").read_text())["error"]["code"] == "unsupported_document"
    assert run(*arguments).exit_code == 0


def test_wrong_usage_is_exit_code_2(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "photo.jpg").touch()
    assert run("summarize", folder).exit_code == 2, "found no documents"
    (folder / "a.txt").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(folder)
    for arguments in (
        ("summarize",),
        ("summarize", folder, "--output", folder),
        ("summarize", folder, "--style", "poem"),
        ("summarize", folder, "--length", "15"),
        ("summarize", folder, "--length", "8193"),
        ("summarize", folder, "--chunk-tokens", "63"),
        ("summarize", folder, "--format", "xml"),
        ("estimate",),
        ("watch-folder", folder, folder),
        ("watch-folder", folder, tmp_path),
        ("watch-folder", folder, link),
        ("watch-folder", tmp_path / "missing", tmp_path / "out"),
    ):
        assert run(*arguments).exit_code == 2, arguments


def test_no_document_is_written_over(run: Run, tmp_path: Path) -> None:
    for name in ("a.txt", "a.txt.md", "a.txt.error.json", "summary.md"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    first = tmp_path / "a.txt"
    for others in (("a.txt.md",), ("a.txt.error.json",), ("--combine", "summary.md")):
        *options, name = others
        for out in (tmp_path, tmp_path / "link"):
            done = run("summarize", first, tmp_path / name, *options, "--output", out)
            assert (done.exit_code, done.stdout) == (2, ""), done
            assert "overwritten" in done.stderr.replace("\n", " ")
    assert run("summarize", tmp_path, "--output", tmp_path / "link").exit_code == 2
    assert {each.read_text() for each in tmp_path.iterdir() if each.is_file()} == {"mine"}


def test_a_combined_summary_that_cannot_be_written_is_one_line(run: Run, empty: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    done = run("summarize", empty, "--combine", "--output", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot write" in done.stderr


def test_no_server_is_exit_code_3_and_nothing_is_printed(run: Run, empty: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    for verb in ("summarize", "estimate"):
        done = run(verb, empty, api_url=nowhere)
        assert (done.exit_code, done.stdout) == (3, "")
        assert "no Longbatch server answers" in done.stderr


def test_a_key_that_does_not_fit_is_exit_code_4(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("A text.")
    done = run("summarize", file, "--format", "json", api_key="lb_wrong")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "invalid_api_key" in done.stderr
    assert run("watch-folder", tmp_path, tmp_path / "out", "--settle", "0", api_key="lb_wrong").exit_code == 4


def test_options_that_the_server_refuses_are_the_documents_errors(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("A text.")
    for options in ((), ("--combine",)):
        done = run("summarize", file, "--format", "json", "--focus", "x" * 1001, *options)
        assert done.exit_code == 1
        message = json.loads(done.stdout)[0]["error"]["message"]
        assert "focus: Must have at most 1000 characters, not 1001." in message


def test_results_of_names_too_long_for_a_suffix_are_saved_apart(run: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("x" * 250 + "a.txt", "x" * 250 + "b.txt", "é" * 124 + "c.txt"):
        (folder / name[-251:] if name.isascii() else folder / name).touch()
    first = run("summarize", folder, "--output", out)
    names = sorted(each.name for each in out.iterdir())
    assert "cannot write" not in first.stderr
    assert len(names) == 3
    assert all(name.endswith(".error.json") for name in names)
    run("summarize", folder, "--output", out)
    assert sorted(each.name for each in out.iterdir()) == names


def test_line_ends_in_a_name_stay_out_of_progress_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "two\nlines\x1b[31m.txt").touch()
    done = run("summarize", tmp_path)
    assert "two lines[31m.txt: " in done.stderr


def test_an_unknown_encoding_fails_each_text_by_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text")
    done = run("summarize", tmp_path, "--encoding", "klingon")
    assert "There is no encoding 'klingon'" in done.stderr
