"""Documents x questions in one command on the whole stack, with its processes killed meanwhile.

`make test` runs it with 8 documents and 4 questions; `make crashes` with 300 and 10.
"""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import psycopg
import pytest

from asking.reads import reads_of
from cli.stack.ready import API, INFERENCE_WORKER, POSTGRES, REDIS, SERVICE_WORKER, TRITON
from cli.stack.stack import Stack
from support import eventually
from system_support import OF_TESTS, text_of, trace_of

IS_PROOF = os.environ.get("LONGBATCH_PROVE") == "1"
NUM_DOCUMENTS, NUM_QUESTIONS = (300, 10) if IS_PROOF else (8, 4)
OURS = (INFERENCE_WORKER, SERVICE_WORKER, API)
VICTIMS = (*OURS, TRITON, POSTGRES, REDIS) * 2 if IS_PROOF else OURS
TIMEOUT = 3000 if IS_PROOF else 300
KILLS = True
# Of no other module: its stack has the rows of these questions alone, which are counted.
TIME_SCALE = 39.0
# Words that no other text has.
SUBJECTS = tuple(
    f"{head}{tail}" for head in ("quor", "brin", "tasm", "velk", "zund") for tail in ("vex", "dlom")
)
MARK = "[stand-in: extract, no model]"
MISSING = "What is the mirrelquand?"

pytestmark = pytest.mark.timeout(TIMEOUT + 120)


def fact(document: int, subject: str) -> str:
    return f"The {subject} of paper {document} is {document * 31 + len(subject)} zolts."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents with a fact about each subject, somewhere in a text; every eighth is asked in parts."""
    found = tmp_path / "papers"
    found.mkdir()
    rng = random.Random(NUM_DOCUMENTS)  # noqa: S311  # repeatable
    for number in range(NUM_DOCUMENTS):
        size = 30_000 if number % 8 == 7 else rng.choice([4000, 6000, 9000])
        facts = [fact(number, subject) for subject in SUBJECTS]
        begin = rng.randrange(200_000)
        pieces = [text_of(size // len(facts), start=begin + 4000 * place) for place in range(len(facts))]
        body = "\n\n".join(f"{said}\n\n{piece}" for said, piece in zip(facts, pieces, strict=True))
        (found / f"{number:03}.txt").write_text(f"Paper {number}\n\n{body}")
    return found


def questions() -> list[str]:
    asked = [f"What is the {subject}?" for subject in islice(SUBJECTS, NUM_QUESTIONS - 1)]
    return [*asked, MISSING]


def rows(stack: Stack, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(stack.urls.database_url or "") as connection:
        return connection.execute(query.encode()).fetchall()


def num_ended(stack: Stack) -> int:
    (found,) = rows(stack, "SELECT count(*) FROM jobs WHERE task LIKE 'answer%' AND state = 'completed'")
    return int(str(found[0]))


def finished_jobs(stack: Stack) -> dict[object, tuple[object, ...]]:
    """The completed jobs, with all that would change if one ran again."""
    query = (
        "SELECT id, started_at, finalized_at, attempt FROM jobs"
        " WHERE task LIKE 'answer%' AND state = 'completed'"
    )
    return {job_id: tuple(rest) for job_id, *rest in rows(stack, query)}


def ask(stack: Stack, folder: Path, output: Path, notes: Path) -> "subprocess.Popen[bytes]":
    listed = folder.parent / "questions.txt"
    listed.write_text("\n".join(questions()))
    variables = {
        **{name: value for name, value in os.environ.items() if name not in OF_TESTS},
        "LONGBATCH_API_URL": stack.urls.api_url or "",
        "LONGBATCH_API_KEY": stack.urls.api_key or "",
    }
    command = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()", "ask", str(folder))
    options = ("--questions", str(listed), "--output", str(output), "--chunk-tokens", "3000")
    with notes.open("wb") as file:
        return subprocess.Popen([*command, *options], env=variables, stdout=file, stderr=file)


def test_every_question_is_answered_once_for_every_document_whoever_is_killed(
    stack: Stack, folder: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    output, notes = tmp_path / "out" / "table.csv", tmp_path / "notes.txt"
    command = ask(stack, folder, output, notes)
    finished: dict[object, tuple[object, ...]] = {}
    least = NUM_DOCUMENTS * NUM_QUESTIONS
    engine_deaths = []
    try:
        for number, victim in enumerate(VICTIMS, start=1):
            due = number * least // (len(VICTIMS) + 1)
            eventually(lambda due=due: num_ended(stack) >= due, timeout=TIMEOUT, interval=0.2)
            assert command.poll() is None, notes.read_text()
            finished |= finished_jobs(stack)
            before = stack.pids[victim]
            stack.send(victim, signal.SIGKILL)
            if victim == TRITON:
                engine_deaths.append(time.monotonic())
            eventually(lambda victim=victim, before=before: stack.pids[victim] not in (before, None))
            eventually(lambda victim=victim: stack.answers(victim), timeout=TIMEOUT)
        assert command.wait(TIMEOUT) == 0, notes.read_text()
    finally:
        command.kill()
    seconds = time.monotonic() - began
    check_table(output)
    after = finished_jobs(stack)
    assert {job: after.get(job) for job in finished} == finished, "a finished job ran again"
    check_rows(stack)
    told = check_read_once(stack, engine_deaths=engine_deaths)
    print(f"{NUM_DOCUMENTS} documents x {NUM_QUESTIONS}, {len(VICTIMS)} kills, {seconds:.0f} s; {told}")  # noqa: T201  # the figures of the proof
    table = output.read_text()
    again = tmp_path / "again.csv"
    assert ask(stack, folder, again, notes).wait(TIMEOUT) == 0, notes.read_text()
    assert again.read_text() == table, "the same command again finds the same run"
    assert finished_jobs(stack) == after


def check_table(output: Path) -> None:
    """Each document has a row for each question, with the fact that the document has."""
    found = [*csv.DictReader(output.open(newline=""))]
    expected = [
        (number, subject)
        for number in range(NUM_DOCUMENTS)
        for subject in [*SUBJECTS[: NUM_QUESTIONS - 1], None]
    ]
    assert len(found) == len(expected) == NUM_DOCUMENTS * NUM_QUESTIONS
    for row, (number, subject) in zip(found, expected, strict=True):
        assert row["document"].endswith(f"{number:03}.txt")
        if subject is None:
            assert (row["question"], row["answer"], row["quote"]) == (MISSING, "not in the document", "")
        else:
            assert subject in row["question"]
            assert row["answer"] == f"{MARK} {fact(number, subject)}"
            assert row["quote"] == fact(number, subject)


def check_rows(stack: Stack) -> None:
    """Nothing is there twice, and nothing is left."""
    least = NUM_DOCUMENTS * NUM_QUESTIONS
    assert rows(stack, "SELECT state, count(*) FROM summaries WHERE purpose = 'answers' GROUP BY 1") == [
        ("completed", NUM_DOCUMENTS)
    ]
    assert rows(stack, "SELECT count(*), count(*) FILTER (WHERE is_quoted) FROM findings") == [
        (least, least - NUM_DOCUMENTS)
    ]
    jobs = "SELECT count(*) FROM jobs WHERE task LIKE 'answer%'"
    planned = "SELECT sum((plan->>'jobs')::int) FROM summaries WHERE purpose = 'answers'"
    assert rows(stack, jobs) == rows(stack, planned)
    ends = "SELECT count(*) FROM webhook_events WHERE type = 'answers.completed'"
    assert rows(stack, ends) == [(NUM_DOCUMENTS,)]
    # What a run left that the engine did not confirm drains for a moment.
    eventually(lambda: rows(stack, "SELECT count(*) FROM reservations") == [(0,)])


def check_read_once(stack: Stack, *, engine_deaths: Sequence[float]) -> str:
    """The engine read each text once, by its own trace, but for what a kill took from it."""
    tokens_per_block = int(str(rows(stack, "SELECT tokens_per_block FROM engines")[0][0]))
    found = reads_of(
        stack.urls.database_url or "",
        trace_of(stack),
        tokens_per_block=tokens_per_block,
        engine_deaths=engine_deaths,
    )
    texts = rows(
        stack,
        "SELECT count(DISTINCT (summary_nodes.summary_id, chunk)) FROM summary_nodes"
        " JOIN jobs ON jobs.id = job_id WHERE level = 0 AND task LIKE 'answer%'",
    )
    assert texts == [(len(found.readings),)]
    again = found.again()
    assert [each for each in again if not each[2]] == [], "read again though nothing was killed"
    excuses = ", ".join(
        f"{number} because {excuse}" for excuse, number in Counter(each[2] for each in again).items()
    )
    return (
        f"{len(found.readings)} texts, {len(again)} read again ({excuses or 'none'});"
        f" {found.computed_tokens:,} of {found.prompt_tokens:,} prompt tokens computed,"
        f" {sum(each[1].num_computed for each in again):,} of them again"
    )
