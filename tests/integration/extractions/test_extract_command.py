"""The command `extract` over the API: a row for each file, its problems named, and the same run again."""

import csv
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from openpyxl import load_workbook
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import ApiProcess
from asking.answers import settle_all
from asking.fields import SCHEMA, run
from jobs.models import Summary
from longbatch.cli.main import application
from summary_support import SMALL, plan_all, ready_document
from support import API_KEY, eventually, register_engine

MODEL = "llama-3.1-8b-instruct"
BODIES = {"a.txt": "The rent is 900. The parties are Ada and Bob.", "b.txt": "The fee is 3."}
Background = Callable[..., Future[Any]]


def test_a_table_is_written_and_the_same_command_finds_the_same_run(
    server: ApiProcess, sessions: sessionmaker[Session], background: Background, tmp_path: Path
) -> None:
    folder, schema = tmp_path / "in", tmp_path / "schema.json"
    folder.mkdir()
    schema.write_text(json.dumps(SCHEMA))
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model=MODEL)
        for name, body in BODIES.items():
            (folder / name).write_text(body)
            ready_document(session, body)

    def invoke(*more: object) -> Result:
        environment = {"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": API_KEY}
        arguments = ["extract", folder, "--schema", schema, "--length", 96, *more]
        return CliRunner().invoke(application(), [*map(str, arguments)], env=environment)

    running = background(invoke, "--output", tmp_path / "table.csv")

    def num_made() -> int:
        with sessions() as session:
            return session.scalar(select(func.count()).select_from(Summary)) or 0

    eventually(lambda: running.done() or num_made() == len(BODIES))
    for step in (plan_all, run, settle_all):
        with sessions.begin() as session:
            step(session)
    done: Result = running.result(30)
    assert done.exit_code == 1, done.output  # a row is not valid
    assert 'b.txt: not valid: at its root: "rent" is a required property' in done.stderr
    first, second = csv.DictReader((tmp_path / "table.csv").open(newline=""))
    assert (first["rent"], first["parties"], first["rent.quote"]) == (
        "900.0",
        '["Ada", "Bob"]',
        "The rent is 900.",
    )
    assert (first["error"], second["fee"]) == ("", "3")
    assert second["error"].startswith("[not valid] ")
    book = tmp_path / "out" / "table.xlsx"
    assert invoke("--format", "xlsx", "--output", book).exit_code == 1
    (sheet,) = load_workbook(book).worksheets
    assert [cell.value for cell in sheet["B"]] == ["rent", 900, None]
    assert invoke("--format", "jsonl", "--output", tmp_path / "rows").exit_code == 1
    lines = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [each["values"]["notice"] for each in lines] == [None, None]
    assert num_made() == len(BODIES), "the same files with the same schema are the same run"


def test_what_cannot_be_asked_is_a_usage_error(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    for more in (["--format", "xlsx"], ["--join", "rent"], ["--join", "sky=first"]):
        done = CliRunner().invoke(application(), ["extract", str(tmp_path), "--schema", str(schema), *more])
        assert done.exit_code == 2, done.output
