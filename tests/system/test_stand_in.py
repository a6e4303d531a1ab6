"""What people see of the stand-in: marked as what it is, and none of our prompt's words."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.stack.stack import Stack
from system_support import Client, variables_of

Run = Callable[..., str]
MARK = "[stand-in: extract, no model]"


@pytest.fixture
def run(stack: Stack, tmp_path: Path) -> Run:
    def longbatch(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "longbatch.cli", *arguments],
            env=variables_of(stack),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    return longbatch


def test_the_summary_of_a_short_file_is_its_text_after_the_mark(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n")
    (found,) = json.loads(run("summarize", "x.csv", "--format", "json"))
    assert found["summary"].startswith(f"{MARK} ")
    assert "document" not in found["summary"]


def test_the_summary_of_a_long_file_has_the_mark_once(run: Run, tmp_path: Path) -> None:
    facts = [
        f"The bridge of town {number} carries {number} lanes of traffic over a river."
        for number in range(300)
    ]
    (tmp_path / "long.txt").write_text(" ".join(facts))
    (found,) = json.loads(run("summarize", "long.txt", "--chunk-tokens", "2000", "--format", "json"))
    assert len(found["chunks"]) > 1
    assert found["summary"].startswith(f"{MARK} ")
    assert found["summary"].count(MARK) == 1


def test_an_answer_has_the_mark_and_its_quote_has_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lease.txt").write_text("The parties are Ada and Bob. The monthly rent is 900 euros.")
    (row,) = csv.DictReader(io.StringIO(run("ask", "lease.txt", "-q", "How much is the monthly rent?")))
    assert row["quote"] == "The monthly rent is 900 euros."
    assert row["answer"] == f"{MARK} {row['quote']}"


def test_a_chat_has_the_mark(client: Client) -> None:
    model = client.http.get("/v1/models").json()["data"][0]["id"]
    asked = {"model": model, "messages": [{"role": "user", "content": "Tell me about bridges."}]}
    made = client.http.post("/v1/chat/completions", json=asked)
    assert made.json()["choices"][0]["message"]["content"] == f"{MARK} Tell me about bridges."
