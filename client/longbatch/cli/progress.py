"""The progress of each document on standard error: bars on a terminal, lines elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from longbatch.documents.results import DocumentResult
from longbatch.documents.run import Observer
from longbatch.documents.sources import SourceFile
from longbatch.markdown import on_one_line

if TYPE_CHECKING:
    from typing_extensions import Self

_LIVE_POLL_SECONDS: Final = 2
_QUIET_POLL_SECONDS: Final = 20


class ProgressDisplay(Observer, Protocol):
    """A display of every document's progress."""

    def __enter__(self) -> "Self":
        """Start the display."""

    def __exit__(self, *_error: object) -> None:
        """Stop the display."""

    def aside(self) -> AbstractContextManager[None]:
        """Hide the display while the block writes to the same terminal."""


def progress(console: Console, *, total: int | None, live: bool) -> ProgressDisplay:
    """Choose the display that suits this console.

    Args:
        console: where to show it.
        total: number of documents; None if it is not known.
        live: show each document's progress even if the console is not a terminal.
    """
    return _Barred(console, total) if console.is_terminal else _Lines(console, total, live=live)


class _Lines:
    def __init__(self, console: Console, total: int | None, *, live: bool) -> None:
        self.poll_seconds = _LIVE_POLL_SECONDS if live else _QUIET_POLL_SECONDS
        self._console = console
        self._total = total
        self._live = live
        self._lock = Lock()
        self._num_ended = 0
        self._last: dict[str, str] = {}

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def began(self, source: SourceFile) -> None:
        if self._live:
            self._report(source.shown, "started")

    def seen(self, source: SourceFile, summary: Mapping[str, Any]) -> None:
        if self._live:
            self._report(source.shown, _words(summary))

    def seen_whole(self, summary: Mapping[str, Any]) -> None:
        self._report("all", _words(summary))

    def ended(self, source: SourceFile, result: DocumentResult | None) -> None:
        with self._lock:
            self._num_ended += 1
            self._last.pop(source.shown, None)
            of = "" if self._total is None else f"/{self._total}"
            self._print(f"[{self._num_ended}{of}] {source.shown}: {_outcome(result)}")

    def grew(self, number: int) -> None:
        with self._lock:
            self._total = None if self._total is None else self._total + number

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _report(self, name: str, words: str) -> None:
        """Print one line for each change."""
        with self._lock:
            if self._last.get(name) != words:
                self._last[name] = words
                self._print(f"{name}: {words}")

    def _print(self, line: str) -> None:
        self._console.print(on_one_line(line), markup=False)


class _Barred:
    poll_seconds = _LIVE_POLL_SECONDS

    def __init__(self, console: Console, total: int | None) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,  # standard output is for the results
            redirect_stderr=False,
        )
        self._lock = Lock()
        self._all = self._bars.add_task("[bold]documents[/]", total=total, detail="")
        self._each: dict[SourceFile, TaskID] = {}

    def __enter__(self) -> "Self":
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def began(self, source: SourceFile) -> None:
        with self._lock:
            name = escape(on_one_line(source.shown[-40:]))
            self._each[source] = self._bars.add_task(name, total=None, detail="sending")

    def seen(self, source: SourceFile, summary: Mapping[str, Any]) -> None:
        self._show(self._each[source], summary)

    def seen_whole(self, summary: Mapping[str, Any]) -> None:
        self._show(self._all, summary)

    def ended(self, source: SourceFile, result: DocumentResult | None) -> None:
        with self._lock:
            self._bars.remove_task(self._each.pop(source))
            self._bars.advance(self._all)
            done = self._bars.tasks[0]
            total = "" if done.total is None else f" of {done.total:.0f}"
            self._bars.update(self._all, detail=f"{done.completed:.0f}{total}")
        if result is not None:
            self._bars.console.print(on_one_line(f"{source.shown}: {_outcome(result)}"), markup=False)

    def grew(self, number: int) -> None:
        with self._lock:
            total = self._bars.tasks[0].total
            self._bars.update(self._all, total=None if total is None else total + number)

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()

    def _show(self, task: TaskID, summary: Mapping[str, Any]) -> None:
        counts = summary["progress"]
        self._bars.update(
            task, total=counts["jobs"] or None, completed=counts["completed"], detail=_words(summary)
        )


def _words(summary: Mapping[str, Any]) -> str:
    """Describe the progress: `running, 3 of 12 parts, 1 failed`."""
    counts = summary["progress"]
    parts = f", {counts['completed']:,} of {counts['jobs']:,} parts" if (counts["jobs"] or 0) > 1 else ""
    failed = f", {counts['failed']:,} failed" if counts["failed"] else ""
    return f"{summary['state']}{parts}{failed}"


def _outcome(result: DocumentResult | None) -> str:
    if result is None:
        return "completed"
    error = result.error or {"code": "unknown", "message": ""}
    return f"{error['message']} [{error['code']}]"
