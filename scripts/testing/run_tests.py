"""Run the tests in two lanes side by side: the unit tests and then lint, and all other tests.

The output of the unit lane appears whole, step by step; the output of the other lane streams. The last line
adds up both in pytest's own style. A step that fails without a failed test (lint, a killed pytest, a pytest
that ran nothing) counts as one error there, so that no such run looks green.

    python -m scripts.testing.run_tests                     both lanes
    python -m scripts.testing.run_tests --without-lint      the tests alone
    python -m scripts.testing.run_tests --quick             the unit tests and lint of changed files
    python -m scripts.testing.run_tests -- tests/unit/http  these tests alone, in one process
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Semaphore, Thread
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = Path(sys.executable).parent
# More processes than cores: these tests mostly wait. Two leave a third of two cores idle.
REST: Final = ("--lanes", "5", "--ignore=tests/unit")
UNIT: Final = ("--lanes", "2", "tests/unit")
# The order of pytest's last line.
OUTCOMES: Final = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
WIDTH: Final = 80
# Where `tests/support/browser_support.py` finds the log of the fetch, and its exit status once it has ended.
# Without the prefix of settings: the product refuses unknown ones.
BROWSER_FETCH: Final = "BROWSER_FETCH"
# Where mypy keeps what it knows of each file, by content: another checkout saves half a minute of CPU.
MYPY_CACHE: Final = "MYPY_CACHE_DIR"


@dataclass(frozen=True)
class Step:
    """One command of a lane; `counts` is the file into which a pytest writes its numbers."""

    name: str
    command: Sequence[str]
    log: Path
    counts: Path | None = None


@dataclass(frozen=True)
class Ending:
    """How a step ended.

    Attributes:
        counts: tests by outcome, as pytest names them.
        failed: the failed tests.
        problem: why the step failed although no test did.
    """

    name: str
    counts: Mapping[str, int] = field(default_factory=dict)
    failed: Sequence[str] = ()
    problem: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the whole run fails because of this step."""
        return bool(self.problem or self.failed or self.counts.get("failed") or self.counts.get("error"))


def read_ending(step: Step, status: int) -> Ending:
    """Judge a step by its exit status and, if it is a pytest, by the numbers that it wrote."""
    ended = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    if step.counts is None:
        return Ending(step.name, problem=f"{step.command[0].rpartition('/')[2]} {ended}" if status else None)
    try:
        written = json.loads(step.counts.read_text(encoding="utf-8"))
        counts, failed, own = dict(written["counts"]), tuple(written["failed"]), written["exit_status"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Ending(step.name, problem=f"pytest {ended} and wrote no numbers ({type(error).__name__})")
    ran = sum(number for outcome, number in counts.items() if outcome not in {"deselected", "warnings"})
    problem = None
    if status != own:
        problem = f"pytest {ended} after it had reported status {own}"
    elif not ran:
        problem = "pytest ran no test"
    elif status and not (status == 1 and (counts.get("failed") or counts.get("error"))):
        problem = f"pytest {ended}"
    return Ending(step.name, counts, failed, problem)


def sum_up(endings: Iterable[Ending], *, seconds: float) -> str:
    """Return one line in the style of pytest's last one."""
    total = Counter[str]()
    for ending in endings:
        total.update(ending.counts)
        total["error"] += ending.problem is not None
    order = [*OUTCOMES, *sorted(set(total) - set(OUTCOMES))]
    parts = [_counted(outcome, total[outcome]) for outcome in order if total[outcome]]
    return f" {', '.join(parts) or 'no tests ran'} in {_duration(seconds)} ".center(WIDTH, "=")


def _counted(outcome: str, number: int) -> str:
    singular = {"warnings": "warning", "error": "error"}
    plural = {"warnings": "warnings", "error": "errors"}
    return f"{number} {(singular if number == 1 else plural).get(outcome, outcome)}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{seconds:.2f}s" if seconds < 60 else f"{seconds:.2f}s ({hours}:{rest // 60:02}:{rest % 60:02})"


def report(endings: Iterable[Ending]) -> list[str]:
    """Return what failed, one line each."""
    lines = []
    for ending in endings:
        lines += [f"{ending.name}: FAILED {test}" for test in ending.failed]
        lines += [f"{ending.name}: ERROR {ending.problem}"] if ending.problem else []
    return lines


class Output:
    """Standard output that two lanes share: blocks never interrupt a line of the other lane."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_line_open = False

    def write(self, data: bytes) -> None:
        """Write a part of the streaming lane's output."""
        with self._lock:
            if data:
                self._write(data)

    def write_block(self, title: str, data: bytes) -> None:
        """Write what a step of the quiet lane printed."""
        with self._lock:
            ends = b"" if not data or data.endswith(b"\n") else b"\n"
            before = b"\n" if self._is_line_open else b""
            self._write(before + f" {title} ".center(WIDTH, "-").encode() + b"\n" + data + ends)

    def _write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        self._is_line_open = not data.endswith(b"\n")


class Processes:
    """The running commands.

    Their output goes to files: what a killed pytest leaves behind would hold a pipe open.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self.is_interrupted = False

    def run(self, command: Sequence[str], log: Path, look: Callable[[], object] = lambda: None) -> int:
        """Run the command, call `look` several times a second meanwhile, and return the exit status."""
        with log.open("wb") as file, self._lock:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._environment,
                cwd=ROOT,
            )
            self._running.append(process)
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                look()

    def interrupt(self) -> None:
        """Make running tests stop and clean up, as Ctrl-C does."""
        with self._lock:
            for process in self._running:
                process.send_signal(signal.SIGINT)


def run_quietly(steps: Sequence[Step], endings: list[Ending], output: Output, processes: Processes) -> None:
    """Run one step after another; print the output of each at its end."""
    for step in steps:
        if processes.is_interrupted:
            return
        began = time.monotonic()
        status = processes.run(step.command, step.log)
        ending = read_ending(step, status)
        word = "FAILED" if ending.is_failure else "done"
        title = f"{step.name}: {word} in {_duration(time.monotonic() - began)}"
        output.write_block(title, step.log.read_bytes())
        endings.append(ending)


def run_streaming(step: Step, endings: list[Ending], output: Output, processes: Processes) -> None:
    """Run the step and print its output as it comes."""
    step.log.touch()
    with step.log.open("rb") as log:
        status = processes.run(step.command, step.log, lambda: output.write(log.read()))
        output.write(log.read())
    endings.append(read_ending(step, status))


@contextmanager
def fetched_browser(folder: Path) -> Iterator[None]:
    """Fetch the browser of the console's tests unless it is in the cache; write log and status to the folder.

    Tests wait for it. A run that ends first needs no browser and ends the fetch.
    """
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [ROOT / "scripts" / "setup_browser.sh"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            start_new_session=True,
        )

    def note() -> None:
        status = process.wait()
        (folder / "part").write_text(str(status))
        (folder / "part").rename(folder / "status")

    waiting = Thread(target=note)
    waiting.start()
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        waiting.join()


def user_cache() -> Path:
    """Return the folder of this user's caches, as the scripts of setup choose it."""
    given = os.environ.get("LONGBATCH_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "longbatch"


def changed_files() -> list[str]:
    """Return untracked files, and those that differ from the merge base with the main branch.

    That is `origin/main`, or `main` where there is no such remote branch.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=ROOT)  # noqa: S607  # the git of the PATH
        return done.stdout.split("\0" if "-z" in arguments else "\n")

    bases = (git("merge-base", "HEAD", branch)[0] for branch in ("origin/main", "main"))
    base = next(filter(None, bases), "HEAD")
    changed = git("diff", "-z", "--name-only", "--diff-filter=d", base, "--")
    return sorted(filter(None, {*changed, *git("ls-files", "-z", "--others", "--exclude-standard")}))


def lint_steps(python_files: Sequence[str] | None, folder: Path) -> list[Step]:
    """Return the steps of lint: ruff over these files (None: all), mypy and the import contracts over all.

    A changed file can break the types of files that use it. mypy's cache spares it the unchanged ones.
    """
    names = python_files or ()
    commands = {
        "ruff check": ["ruff", "check", *names],
        "ruff format": ["ruff", "format", "--check", *names],
        "mypy": ["mypy"],
        "import contracts": ["lint-imports"],
    }
    return [
        Step(name, [str(BIN / program), *arguments], folder / f"{name}.log")
        for name, (program, *arguments) in commands.items()
        if names or python_files is None or program != "ruff"
    ]


def pytest_step(name: str, arguments: Sequence[str], folder: Path) -> Step:
    """Return a run of pytest whose numbers go to a file in the folder."""
    counts = folder / f"{name}.json"
    color = ["--color=yes"] if sys.stdout.isatty() else []
    command = [sys.executable, "-m", "pytest", *color, "--durations=15", f"--counts={counts}", *arguments]
    return Step(name, command, folder / f"{name}.log", counts)


def choose_steps(options: argparse.Namespace, folder: Path) -> tuple[list[Step], Step]:
    """Return the steps whose output appears at their end, and the one whose output streams."""
    unit = pytest_step("unit", UNIT, folder)
    if options.quick:
        return lint_steps([name for name in changed_files() if name.endswith(".py")], folder), unit
    lint = [] if options.without_lint else lint_steps(None, folder)
    if options.arguments:
        return lint, pytest_step("chosen tests", options.arguments, folder)
    return [unit, *lint], pytest_step("rest", REST, folder)


def run(quiet: Sequence[Step], streaming: Step, processes: Processes) -> list[Ending]:
    """Run both lanes to their ends."""
    endings: list[Ending] = []
    output = Output()
    finished = Semaphore(0)

    def run_lane(lane: Callable[[], None]) -> None:
        try:
            lane()
        finally:
            finished.release()

    lanes = [
        partial(run_quietly, quiet, endings, output, processes),
        partial(run_streaming, streaming, endings, output, processes),
    ]
    for lane in lanes:
        Thread(target=run_lane, args=(lane,)).start()
    running = len(lanes)
    while running:  # no join: Python 3.11 takes a thread for ended if its join is interrupted
        try:
            finished.acquire()
            running -= 1
        except KeyboardInterrupt:  # a terminal sends it to the tests too
            processes.is_interrupted = True
    missing = {step.name for step in (*quiet, streaming)} - {ending.name for ending in endings}
    return [*endings, *(Ending(name, problem="did not run to its end") for name in sorted(missing))]


def main() -> int:
    """Run the lanes, print what failed and the sum, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--without-lint", action="store_true", help="run the tests alone")
    parser.add_argument("--quick", action="store_true", help="run the unit tests and lint of changed files")
    parser.add_argument("arguments", nargs="*", help="of one pytest process, instead of all tests")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="longbatch-tests-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        browser = folder / "browser"
        quiet, streaming = choose_steps(options, folder)
        processes = Processes(
            {MYPY_CACHE: str(user_cache() / "mypy"), **os.environ, BROWSER_FETCH: str(browser)}
        )

        def stop(*_: object) -> None:
            processes.interrupt()
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        with nullcontext() if options.quick else fetched_browser(browser):
            endings = run(quiet, streaming, processes)
    if lines := report(endings):
        sys.stdout.write("\n".join(["", " failed ".center(WIDTH, "="), *lines, ""]))
    sys.stdout.write(sum_up(endings, seconds=time.monotonic() - began) + "\n")
    return int(any(ending.is_failure for ending in endings))


if __name__ == "__main__":
    sys.exit(main())
