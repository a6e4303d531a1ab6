"""Documents and results in object storage: what the commands list, skip, refuse and report."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import ApiProcess
from bucket_support import Bucket, serving_bucket
from longbatch.cli.main import application
from longbatch.documents import buckets
from longbatch.documents.buckets import BucketError
from support import API_KEY

Run = Callable[..., Result]


@pytest.fixture
def run(
    server: ApiProcess,
    sessions: sessionmaker[Session],  # noqa: ARG001  # without documents
    bucket: Bucket,  # noqa: ARG001  # in the environment
) -> Run:
    def invoke(*arguments: object) -> Result:
        environment = {"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": API_KEY}
        return CliRunner().invoke(application(), list(map(str, arguments)), env=environment)

    return invoke


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    buckets.connect.cache_clear()
    with serving_bucket() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield found
    buckets.connect.cache_clear()


def found(*paths: str, left_out: str | None = None) -> list[tuple[str, str]]:
    skipped = buckets.parse(left_out) if left_out else None
    return [(source.shown, str(source.name)) for source in buckets.find(paths, left_out=skipped)]


def test_a_prefix_is_searched_like_a_folder(bucket: Bucket) -> None:
    keys = ("in/b/x.txt", "in/a/x.TXT", "in/z.pdf", "in/a/no.png", "in/.git/x.txt", "in/a/", "inner/x.txt")
    bucket.objects = dict.fromkeys((*keys, "in/out/x.txt.md", "in/x#1?.txt"), b"x")
    names = ["a/x.TXT", "b/x.txt", "x#1?.txt", "z.pdf"]
    expected = [(f"s3://bucket/in/{name}", name) for name in names]
    for written in ("s3://bucket/in", "s3://bucket/in/"):
        assert found(written, left_out="s3://bucket/in/out") == expected
    assert len(found("s3://bucket")) == len(expected) + 2


def test_a_named_object_is_found_once_whatever_it_is_called(bucket: Bucket) -> None:
    bucket.objects = dict.fromkeys(("in/a/x", "in/b/y.txt"), b"x")
    assert found("s3://bucket/in/b/y.txt") == [("s3://bucket/in/b/y.txt", "y.txt")]
    assert [name for _, name in found("s3://bucket/in/a/x", "s3://bucket/in/b", "s3://bucket/in")] == [
        "a/x",
        "b/y.txt",
    ]


def test_a_document_that_changed_since_it_was_listed_is_reported(run: Run, bucket: Bucket) -> None:
    bucket.objects = {"in/a.txt": b""}
    (listed,) = buckets.find(["s3://bucket/in"])
    bucket.objects["in/a.txt"] = b"new"
    with pytest.raises(Exception, match="changed"), listed.at_hand():
        pass
    del bucket.objects["in/a.txt"]
    with pytest.raises(OSError, match=r"in/a\.txt"), listed.at_hand():
        pass
    assert run("summarize", "s3://bucket/in").exit_code == 1


def test_what_fails_is_named_and_written_beside_where_its_summary_would_be(run: Run, bucket: Bucket) -> None:
    bucket.objects = {"in/a.txt": b"", "in/deep/picture.pdf": b"GIF89a"}
    done = run("summarize", "s3://bucket/in", "--output", "s3://bucket/out")
    assert (done.exit_code, done.stdout) == (1, "")
    error = json.loads(bucket.objects["out/deep/picture.pdf.error.json"])
    assert error["path"] == "s3://bucket/in/deep/picture.pdf"
    assert error["error"]["code"] == "unsupported_document"
    bucket.objects["out/a.txt.md"] = b"of an earlier run"
    assert run("summarize", "s3://bucket/in", "--output", "s3://bucket/out").exit_code == 1
    assert "out/a.txt.md" not in bucket.objects


def test_results_of_a_bucket_may_lie_in_a_folder(run: Run, bucket: Bucket, tmp_path: Path) -> None:
    bucket.objects = {"in/a.txt": b""}
    assert run("summarize", "s3://bucket/in", "--output", tmp_path / "out").exit_code == 1
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["a.txt.error.json"]


def test_wrong_usage_is_refused(run: Run, bucket: Bucket, tmp_path: Path) -> None:
    bucket.objects = {"in/a.txt": b"x", "in/a.txt.md": b"mine"}
    for arguments, words in (
        (("s3://bucket/in", "--output", "s3://bucket/in/"), "must not be an input"),
        (("s3://bucket/in/a.txt", "s3://bucket/in/a.txt.md", "--output", "s3://bucket/in"), "overwritten"),
        (("s3://bucket/in", tmp_path), "or none"),
    ):
        done = run("summarize", *arguments)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert words in done.stderr
    assert bucket.objects["in/a.txt.md"] == b"mine"


def test_a_table_lies_where_it_is_told_to(run: Run, bucket: Bucket, tmp_path: Path) -> None:
    bucket.objects = {"in/a.txt": b""}
    here = tmp_path / "here.txt"
    here.write_text("")
    for source, output in (
        ("s3://bucket/in", tmp_path / "new" / "table.csv"),
        ("s3://bucket/in", "s3://bucket/in/table.csv"),
        ("s3://bucket/in", "s3://bucket/in/table.csv"),  # again: the table is no document of its own
        (here, "s3://bucket/out.csv"),
    ):
        done = run("ask", source, "-q", "Who?", "--output", output)
        assert (done.exit_code, done.stdout) == (1, ""), done.output
    begun = "document,question,answer,pages,quote,warnings\ns3://bucket/in/a.txt,Who?,[failed] "
    assert bucket.objects["in/table.csv"].decode().startswith(begun)
    assert (tmp_path / "new" / "table.csv").read_text().startswith(begun)
    assert str(here) in bucket.objects["out.csv"].decode()
    assert bucket.gets == ["in/a.txt"] * 2 + ["in/table.csv", "in/a.txt"]


def test_a_table_that_cannot_be_stored_is_one_error(run: Run, bucket: Bucket) -> None:
    bucket.objects, bucket.is_read_only = {"in/a.txt": b"", "table.csv": b"of an earlier run"}, True
    done = run("ask", "s3://bucket/in", "-q", "Who?", "--output", "s3://bucket/table.csv")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot write s3://bucket/table.csv: " in done.stderr
    assert bucket.objects["table.csv"] == b"of an earlier run"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("s3://bucket/in/a.txt", "s3://bucket/in/a.txt is a document"),
        ("s3://bucket/out/", "is a folder"),
        ("s3://bucket", "is a folder"),
        (".", "is a folder"),
    ],
)
def test_a_table_never_overwrites_a_document(run: Run, bucket: Bucket, output: str, words: str) -> None:
    bucket.objects = {"in/a.txt": b"x"}
    done = run("ask", "s3://bucket/in", "-q", "Who?", "--output", output)
    assert (done.exit_code, done.stdout, bucket.gets) == (2, "", []), done.output
    assert words in " ".join(done.stderr.replace("│", "").split())
    assert bucket.objects == {"in/a.txt": b"x"}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["s3://"], "names no bucket"),
        (["s3://bucket/missing"], "nothing lies at s3://bucket/missing"),
        (["s3://bucket/in", "s3://other/in"], "in one bucket"),
    ],
)
def test_a_wrong_address_is_named(bucket: Bucket, paths: list[str], message: str) -> None:
    bucket.objects = {"in/a.txt": b"x"}
    with pytest.raises(BucketError, match=message):
        list(buckets.find(paths))


def test_a_storage_that_refuses_is_one_error(run: Run, bucket: Bucket) -> None:
    bucket.objects, bucket.is_refusing = {"in/a.txt": b"x"}, True
    done = run("estimate", "s3://bucket/in")
    assert isinstance(done.exception, BucketError)
    assert "cannot list s3://bucket/in: " in done.exception.message
    assert "\n" not in done.exception.message
