"""The option `--template` of the commands: a TOML file whose words reach the prompts, or are refused."""

import csv
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import ApiProcess
from asking.answers import reply, run_jobs, settle_all
from jobs.models import Summary
from longbatch.cli.main import application
from summary_support import SMALL, plan_all, ready_document
from support import API_KEY, eventually, register_engine

MODEL = "llama-3.1-8b-instruct"
Background = Callable[..., Future[Any]]


def test_the_words_of_the_file_are_asked_and_other_words_are_another_run(
    server: ApiProcess, sessions: sessionmaker[Session], background: Background, tmp_path: Path
) -> None:
    body, file = "The rent is 900.", tmp_path / "template.toml"
    (tmp_path / "a.txt").write_text(body)
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model=MODEL)
        ready_document(session, body)

    def invoke() -> Result:
        environment = {"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": API_KEY}
        arguments = ["ask", tmp_path / "a.txt", "-q", "What is the rent?", "--template", file]
        arguments += ["--output", tmp_path / "table.csv"]
        return CliRunner().invoke(application(), [*map(str, arguments)], env=environment)

    def made() -> list[Summary]:
        with sessions() as session:
            return list(session.scalars(select(Summary).order_by(Summary.id)))

    prompts: list[str] = []
    for words in ("As a lawyer", "As a tenant"):
        file.write_text(f'whole = """\n{words}, say: {{{{question}}}}\n"""')
        before = len(made())
        running = background(invoke)
        eventually(lambda before=before, running=running: running.done() or len(made()) > before)
        with sessions.begin() as session:
            plan_all(session)
        with sessions.begin() as session:
            prompts += run_jobs(session, lambda *_: reply("900", "The rent is 900"), asked=lambda _: ("", ""))
        with sessions.begin() as session:
            settle_all(session)
        done: Result = running.result(30)
        assert done.exit_code == 0, done.output
        ((row),) = csv.DictReader((tmp_path / "table.csv").open(newline=""))
        assert row["answer"] == "900"
    assert ["As a lawyer, say: What is the rent?" in each for each in prompts] == [True, False]
    assert ["As a tenant, say: What is the rent?" in each for each in prompts] == [False, True]
    first, second = made()
    assert first.templates["whole"] != second.templates["whole"]


@pytest.mark.parametrize("content", ["whole", "", "whole = 3", '[map]\nwhole = "Sum up."'])
def test_a_file_that_is_no_template_is_a_usage_error(tmp_path: Path, content: str) -> None:
    file, schema, document = (tmp_path / each for each in ("t.toml", "s.json", "a.txt"))
    file.write_text(content)
    document.write_text("a text")
    schema.write_text(json.dumps({"type": "object", "properties": {"rent": {"type": "number"}}}))
    for command in (["summarize"], ["estimate"], ["ask", "-q", "Why?"], ["extract", "--schema", schema]):
        arguments = [*map(str, command), str(document), "--template", str(file)]
        done = CliRunner().invoke(application(), arguments)
        assert (done.exit_code, "--template" in done.output) == (2, True), done.output
