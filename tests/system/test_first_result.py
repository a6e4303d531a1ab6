"""A run of documents begins with the shortest one, and prints once how long it takes."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from cli.stack.ready import INFERENCE_WORKER
from cli.stack.stack import Stack
from longbatch import AsyncClient, Client, DocumentSummary
from system_support import text_of, variables_of

SIZES = {"annual-report.txt": 16_000, "letter.txt": 2000, "note.txt": 300, "paper.txt": 6000}


# File names of the latest summaries, the one made last first.
_IN_ORDER = """
    SELECT documents.filename FROM summary_documents
    JOIN documents ON documents.id = document_id ORDER BY summary_id DESC LIMIT %s
"""


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    for name, size in SIZES.items():
        (made / name).write_text(f"{request.node.name} {name}.\n\n{text_of(size, start=size)}")
    return made


def command(stack: Stack, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "longbatch.cli", *arguments],
        env=variables_of(stack),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("verb", ["summarize", "ask", "extract"])
def test_the_duration_is_printed_once_before_the_first_result(
    stack: Stack, folder: Path, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"subject": {"type": "string"}}}')
    schema = str(tmp_path / "schema.json")
    options = {"ask": ["-q", "Who?"], "extract": ["--schema", schema]}.get(verb, [])
    stack.hold(INFERENCE_WORKER)  # no result comes first
    run = command(stack, verb, folder, *options)
    assert run.stderr is not None
    try:
        first = run.stderr.readline()
    finally:
        stack.resume(INFERENCE_WORKER)
    rest = run.stderr.read()
    run.wait()
    assert re.fullmatch(r"4 documents take about \d+ (s|min)\n", first), first + rest
    assert "take about" not in rest


def test_the_shortest_document_starts_first(stack: Stack, folder: Path) -> None:
    run = command(stack, "summarize", folder)
    _, notes = run.communicate()
    assert run.returncode == 0, notes
    assert "note.txt" in re.findall(r"\[1/4\] (\S+)", notes)[0]
    with psycopg.connect(stack.urls.database_url or "") as database:
        started = database.execute(_IN_ORDER, [len(SIZES)]).fetchall()
    assert started[-1] == ("note.txt",)


def test_the_client_starts_the_shortest_document_first_too(stack: Stack, folder: Path) -> None:
    with Client(stack.urls.api_url, stack.urls.api_key) as lb:
        first, *_ = lb.summarize(folder, length=64)
    assert first.path.endswith("note.txt")


def test_the_asynchronous_client_starts_the_shortest_document_first_too(stack: Stack, folder: Path) -> None:
    async def summaries() -> list[DocumentSummary]:
        async with AsyncClient(stack.urls.api_url, stack.urls.api_key) as lb:
            return [each async for each in lb.summarize(folder, length=64)]

    first, *_ = asyncio.run(summaries())
    assert first.path.endswith("note.txt")


def test_a_repeated_run_has_nothing_to_estimate(stack: Stack, folder: Path) -> None:
    for _ in range(2):
        run = command(stack, "summarize", folder)
        _, notes = run.communicate()
        assert run.returncode == 0, notes
    assert "take about" not in notes
