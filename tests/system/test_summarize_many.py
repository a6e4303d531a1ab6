"""Many documents in one command on the whole stack, with workers killed meanwhile, and memory watched.

`make test` runs it with 20 documents; `make crashes` with 500.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import psycopg
import pytest

from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.stack import Stack
from support import eventually
from system_support import OF_TESTS, text_of

IS_PROOF = os.environ.get("LONGBATCH_PROVE") == "1"
NUM_DOCUMENTS = 500 if IS_PROOF else 20
SEED = int(os.environ.get("LONGBATCH_SEED", "20261121"))
TIMEOUT = 3000 if IS_PROOF else 400
KILLS = True
# The allocator's own noise, and caches that fill once: tokenizers, compiled patterns, connection pools.
MAX_GROWTH_MIB = 96

pytestmark = pytest.mark.timeout(TIMEOUT + 120)

COMMAND = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()")
OPTIONS = ("--length", "60", "--chunk-tokens", "3000", "--format", "json")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Documents of mixed size in several folders, no two alike: some are trees, one is empty."""
    folder = tmp_path / "corpus"
    rng = random.Random(SEED)  # noqa: S311  # repeatable
    for number in range(NUM_DOCUMENTS - 1):
        size = rng.choice([300, 1500, 4000, 8000]) if number % 10 else rng.choice([20_000, 60_000, 120_000])
        file = folder / f"part-{number % 7}" / f"{number // 7:03}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"Document {number}.\n\n{text_of(size, start=rng.randrange(300_000))}")
    (folder / "empty.txt").touch()
    return folder


def variables(stack: Stack) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in OF_TESTS},
        "LONGBATCH_API_URL": stack.urls.api_url or "",
        "LONGBATCH_API_KEY": stack.urls.api_key or "",
    }


class Command:
    """A running `longbatch summarize`; what it prints goes to files."""

    def __init__(self, stack: Stack, folder: Path, *arguments: str) -> None:
        self._printed = folder / "stdout.json"
        self.notes = folder / "stderr.txt"
        # A test run that was put into the background ignores Ctrl-C, and its children would too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with self._printed.open("wb") as stdout, self.notes.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, "summarize", *arguments], env=variables(stack), stdout=stdout, stderr=stderr
            )
        signal.signal(signal.SIGINT, before)

    def ended(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit code and what was printed."""
        try:
            code = self.process.wait(TIMEOUT)
        finally:
            self.process.kill()
        printed = self._printed.read_text()
        return code, json.loads(printed) if printed else []

    @property
    def has_printed(self) -> bool:
        """A result stands on its standard output."""
        return b'"path"' in self._printed.read_bytes()

    @property
    def num_ended(self) -> int:
        """Documents that it has told the end of."""
        return sum(line.startswith("[") for line in self.notes.read_text().splitlines())


class Memory:
    """The resident memory of processes while something runs, by name and process id."""

    def __init__(self, stack: Stack, command: Command) -> None:
        self._stack = stack
        self._command = command
        self._stop = Event()
        self._thread = Thread(target=self._sample)
        self.samples: dict[tuple[str, int], list[int]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            for name, pid in {**self._stack.pids, "command": self._command.process.pid}.items():
                # One that was killed and still loads its modules grows by them.
                is_loaded = (name, pid) in self.samples or name == "command" or self._stack.answers(name)
                if pid is not None and is_loaded and (resident := resident_bytes(pid)):
                    self.samples.setdefault((name, pid), []).append(resident)

    def growth(self) -> dict[str, int]:
        """By how many bytes the most of each process's second half is above the most of its first."""
        found: dict[str, int] = {}
        for (name, _), samples in self.samples.items():
            half = len(samples) // 2
            if half >= 10:
                grown = max(samples[half:]) - max(samples[:half])
                found[name] = max(grown, found.get(name, grown))
        return found

    def most(self) -> dict[str, int]:
        """The most resident memory of each kind of process, in MiB."""
        found: dict[str, int] = {}
        for (name, _), samples in self.samples.items():
            found[name] = max(found.get(name, 0), max(samples) // 2**20)
        return found


def resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def rows(stack: Stack, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.urls.database_url or "") as connection:
        return connection.execute(query.encode()).fetchall()


def finished_jobs(stack: Stack) -> dict[object, tuple[object, ...]]:
    """The completed jobs of trees, with all that would change if one ran again."""
    query = (
        "SELECT id, started_at, finalized_at, attempt, num_rescues FROM jobs"
        " WHERE summary_id IS NOT NULL AND state = 'completed'"
    )
    return {job_id: tuple(rest) for job_id, *rest in rows(stack, query)}


def kill(stack: Stack, victim: str) -> None:
    before = stack.pids[victim]
    stack.send(victim, signal.SIGKILL)
    eventually(lambda: stack.pids[victim] not in (before, None))


def test_many_documents_in_one_command_whoever_is_killed(stack: Stack, corpus: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    command = Command(stack, tmp_path, str(corpus), *OPTIONS)
    finished: dict[object, tuple[object, ...]] = {}
    victims = [INFERENCE_WORKER, SERVICE_WORKER, API] * (3 if IS_PROOF else 1)
    with Memory(stack, command) as memory:
        for number, victim in enumerate(victims, start=1):
            due = number * NUM_DOCUMENTS // (len(victims) + 1)

            def reached(due: int = due) -> bool:
                return command.num_ended >= due or command.process.poll() is not None

            eventually(reached, timeout=TIMEOUT, interval=0.2)
            assert command.process.poll() is None, "it ended before all were killed"
            finished |= finished_jobs(stack)
            kill(stack, victim)
        code, printed = command.ended()
    seconds = time.monotonic() - began
    check(stack, corpus, code, printed)
    after = finished_jobs(stack)
    assert {job: after.get(job) for job in finished} == finished, "a finished chunk ran again"
    grown = {name: num_bytes // 2**20 for name, num_bytes in memory.growth().items()}
    assert max(grown.values(), default=0) <= MAX_GROWTH_MIB, grown
    num_jobs = len(after)
    print(  # noqa: T201  # the figures of the proof
        f"{len(printed)} documents, {num_jobs} jobs, {len(victims)} kills, {seconds:.0f} s;"
        f" MiB: {memory.most()}, grown in the second half: {grown}"
    )
    again = Command(stack, tmp_path, str(corpus), *OPTIONS)
    assert again.ended() == (code, printed), "the same command again finds the same run"
    assert len(finished_jobs(stack)) == num_jobs


def check(stack: Stack, corpus: Path, code: int, printed: list[dict[str, Any]]) -> None:
    """Every file is listed; all but the empty one are summarized, and each character stands in one chunk."""
    files = {str(file): file for file in corpus.rglob("*.txt")}
    assert code == 1
    assert [each["path"] for each in printed] != []
    assert {each["path"] for each in printed} == files.keys()
    assert len(printed) == len(files) == NUM_DOCUMENTS
    failed = {each["path"]: each["error"]["code"] for each in printed if each["error"]}
    assert failed == {str(corpus / "empty.txt"): "document_empty"}
    for each in printed:
        if each["error"] is None:
            assert each["summary"].strip()
            ends = [0, *(chunk["end"] for chunk in each["chunks"])]
            assert [chunk["start"] for chunk in each["chunks"]] == ends[:-1]
            assert ends[-1] == len(files[each["path"]].read_text())
            assert all(chunk["summary"] for chunk in each["chunks"])
    assert any(len(each["chunks"]) > 3 for each in printed)
    states = rows(stack, "SELECT state, count(*) FROM jobs WHERE summary_id IS NOT NULL GROUP BY state")
    assert [state for state, _ in states] == ["completed"]
    assert rows(stack, "SELECT count(*) FROM reservations") == [(0,)]


def test_an_interrupted_command_goes_on_where_it_was(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text(
            f"Interrupted {number}.\n\n{text_of(24_000, start=900 * number)}"
        )
    before = rows(stack, "SELECT count(*) FROM summaries")[0][0]
    arguments = (str(folder), *OPTIONS, "--concurrency", "2")
    command = Command(stack, tmp_path, *arguments)
    eventually(lambda: command.has_printed, timeout=120)
    command.process.send_signal(signal.SIGINT)
    code, printed = command.ended()
    assert code == 130
    assert 1 <= len(printed) < 8
    finished = finished_jobs(stack)
    code, whole = Command(stack, tmp_path, *arguments).ended()
    assert (code, len(whole)) == (0, 10)
    assert [each for each in whole if each["path"] in {one["path"] for one in printed}] == printed
    after = finished_jobs(stack)
    assert {job: after.get(job) for job in finished} == finished
    assert rows(stack, "SELECT count(*) FROM summaries")[0][0] == before + 10


def test_a_watched_folder_is_served_over_restarts_of_everything(stack: Stack, tmp_path: Path) -> None:
    inbox, out = tmp_path / "in", tmp_path / "out"
    inbox.mkdir()
    arguments = ["watch-folder", str(inbox), str(out), "--poll", "0.2", "--settle", "0.4", "--length", "60"]

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*COMMAND, *arguments], env=variables(stack), stderr=subprocess.DEVNULL)

    def written() -> set[str]:
        return {str(path.relative_to(out)) for path in out.rglob("*") if not path.name.startswith(".")}

    watching = start()
    try:
        (inbox / "a.txt").write_text(f"First.\n\n{text_of(3000)}")
        (inbox / "bad.pdf").write_bytes(b"%PDF-1.7\nthis is none")
        eventually(lambda: written() == {"a.txt.md", "bad.pdf.error.json"}, timeout=90, interval=0.2)
        stamp = (out / "a.txt.md").stat().st_mtime_ns
        (inbox / "deep").mkdir()
        for number in range(6):
            (inbox / "deep" / f"{number}.txt").write_text(f"{number}\n\n{text_of(9000, start=1000 * number)}")
        eventually(lambda: len(written()) > 3, timeout=90, interval=0.1)
        watching.kill()
        watching.wait()
        watching = start()
        kill(stack, API)
        names = {"a.txt.md", "bad.pdf.error.json", "deep", *(f"deep/{number}.txt.md" for number in range(6))}
        eventually(lambda: written() == names, timeout=120, interval=0.2)
        assert (out / "a.txt.md").stat().st_mtime_ns == stamp, "what was done was done again"
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(20) == 0
    finally:
        watching.kill()
        watching.wait()
    summaries = rows(stack, "SELECT custom_id, count(*) FROM summaries GROUP BY 1 HAVING count(*) > 1")
    assert summaries == [], "a run was started twice"
