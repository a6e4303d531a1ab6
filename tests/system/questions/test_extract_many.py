"""The fields of many documents in one command on the whole stack, with its processes killed meanwhile.

`make test` runs it with 8 documents; `make crashes` with 200.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path

import psycopg
import pytest

from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.stack import Stack
from support import eventually
from system_support import OF_TESTS, text_of

IS_PROOF = os.environ.get("LONGBATCH_PROVE") == "1"
NUM_DOCUMENTS, NUM_KILLS = (200, 9) if IS_PROOF else (8, 3)
TIMEOUT = 3000 if IS_PROOF else 300
KILLS = True
CHUNK_TOKENS = 3000
# Words that no other text has.
FIELDS = {
    "quorvex": {"type": "number"},
    "brindlom": {"type": "string"},
    "mirrelquand": {"type": ["string", "null"]},  # in no document
    "tasmfee": {"type": "integer", "x-longbatch-join": "sum"},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": ["quorvex"]}
NUM_FEES = 4  # in a long document, each in another part; one in a short one

pytestmark = pytest.mark.timeout(TIMEOUT + 120)


def is_long(number: int) -> bool:
    return number % 4 == 3


def is_invalid(number: int) -> bool:
    """Without the field that is required."""
    return number == 1


def quorvex(number: int) -> str:
    return f"The quorvex of paper {number} is {number * 31 + 0.5}."


def brindlom(number: int) -> str:
    return f"The brindlom of paper {number} is called zolt{number}."


def fee(number: int, place: int) -> str:
    return f"A tasmfee of {number + place} is due."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "papers"
    found.mkdir()
    rng = random.Random(NUM_DOCUMENTS)  # noqa: S311  # repeatable
    for number in range(NUM_DOCUMENTS):
        pieces = [f"Paper {number}", "" if is_invalid(number) else quorvex(number)]
        for place in range(NUM_FEES if is_long(number) else 1):
            filler = text_of(6 * CHUNK_TOKENS if is_long(number) else 1000, start=rng.randrange(200_000))
            pieces += [fee(number, place), filler]
        (found / f"{number:03}.txt").write_text("\n\n".join([*pieces, brindlom(number)]))
    return found


def rows(stack: Stack, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(stack.urls.database_url or "") as connection:
        return connection.execute(query.encode()).fetchall()


def finished_jobs(stack: Stack) -> dict[object, tuple[object, ...]]:
    """The completed jobs, with all that would change if one ran again."""
    query = (
        "SELECT id, started_at, finalized_at, attempt FROM jobs"
        " WHERE task LIKE 'extraction%' AND state = 'completed'"
    )
    return {job_id: tuple(rest) for job_id, *rest in rows(stack, query)}


def extract(stack: Stack, folder: Path, output: Path, notes: Path) -> "subprocess.Popen[bytes]":
    schema = folder.parent / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    variables = {
        **{name: value for name, value in os.environ.items() if name not in OF_TESTS},
        "LONGBATCH_API_URL": stack.urls.api_url or "",
        "LONGBATCH_API_KEY": stack.urls.api_key or "",
    }
    command = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()", "extract", str(folder))
    options = ("--schema", str(schema), "--output", str(output), "--chunk-tokens", str(CHUNK_TOKENS))
    with notes.open("wb") as file:
        return subprocess.Popen([*command, *options], env=variables, stdout=file, stderr=file)


def test_every_document_has_its_row_once_whoever_is_killed(
    stack: Stack, folder: Path, tmp_path: Path
) -> None:
    output, notes = tmp_path / "out" / "table.csv", tmp_path / "notes.txt"
    command = extract(stack, folder, output, notes)
    finished: dict[object, tuple[object, ...]] = {}
    victims = [*islice(cycle([INFERENCE_WORKER, SERVICE_WORKER, API]), NUM_KILLS)]
    try:
        for number, victim in enumerate(victims, start=1):
            due = number * NUM_DOCUMENTS // (len(victims) + 1)
            eventually(lambda due=due: len(finished_jobs(stack)) >= due, timeout=TIMEOUT, interval=0.2)
            assert command.poll() is None, notes.read_text()
            finished |= finished_jobs(stack)
            before = stack.pids[victim]
            stack.send(victim, signal.SIGKILL)
            eventually(lambda victim=victim, before=before: stack.pids[victim] not in (before, None))
        assert command.wait(TIMEOUT) == 1, notes.read_text()  # a row is not valid
    finally:
        command.kill()
    assert f'{1:03}.txt: not valid: at its root: "quorvex" is a required property' in notes.read_text()
    check_table(output)
    after = finished_jobs(stack)
    assert {job: after.get(job) for job in finished} == finished, "a finished job ran again"
    check_rows(stack, num_jobs=len(after))
    table = output.read_text()
    assert extract(stack, folder, output, notes).wait(TIMEOUT) == 1, notes.read_text()
    assert output.read_text() == table, "the same command again finds the same run"
    assert finished_jobs(stack) == after


def check_table(output: Path) -> None:
    """Each document has a row of the facts that it has, each with its sentence."""
    found = [*csv.DictReader(output.open(newline=""))]
    assert len(found) == NUM_DOCUMENTS
    for number, row in enumerate(found):
        assert row["document"].endswith(f"{number:03}.txt")
        fees = [number + place for place in range(NUM_FEES if is_long(number) else 1)]
        said = {
            "quorvex": ("", "") if is_invalid(number) else (str(number * 31 + 0.5), quorvex(number)),
            "brindlom": (brindlom(number), brindlom(number)),
            "mirrelquand": ("", ""),
            "tasmfee": (str(sum(fees)), " | ".join(fee(number, place) for place in range(len(fees)))),
        }
        assert {name: (row[name], row[f"{name}.quote"]) for name in FIELDS} == said
        assert row["error"].startswith("[not valid]") == is_invalid(number)


def check_rows(stack: Stack, *, num_jobs: int) -> None:
    """Nothing is there twice, and nothing is left."""
    extractions = "FROM summaries WHERE purpose = 'extraction'"
    assert rows(stack, f"SELECT state, count(*) {extractions} GROUP BY 1") == [("completed", NUM_DOCUMENTS)]
    assert rows(stack, f"SELECT sum((plan->>'jobs')::int) {extractions}") == [(num_jobs,)]
    findings = "SELECT count(*) FROM findings JOIN summaries ON summary_id = id WHERE purpose = 'extraction'"
    assert rows(stack, findings) == [(NUM_DOCUMENTS * len(FIELDS),)]
    ends = "SELECT count(*) FROM webhook_events WHERE type = 'extractions.completed'"
    assert rows(stack, ends) == [(NUM_DOCUMENTS,)]
    # What a run left that the engine did not confirm drains for a moment.
    eventually(lambda: rows(stack, "SELECT count(*) FROM reservations") == [(0,)])
