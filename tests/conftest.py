"""Real servers for the whole run, started once and only when a test asks for them."""

import gc
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import hypothesis
import psycopg
import pytest
import structlog
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

import browser_support
import lanes
import ready_cluster
import running_order
import server_logs
import zygote
from cli.stack import processes
from cli.stack.processes import Launch
from cli.stack.servers.postgres import NAME, EmbeddedPostgres
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import database, open_files
from jobs.database import schema
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from support import empty_database, ensure_api_key

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Their tests are taken by modules of tests; pytest does not know them for such.
pytest.register_assert_rewrite("entry_point_suite", "worker_suite")
# How long an example takes is no claim of a test.
hypothesis.settings.register_profile("longbatch", deadline=None)
hypothesis.settings.load_profile("longbatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--counts", help="write how many tests passed, failed, … into this JSON file")
    lanes.add_option(parser)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Write what `scripts.testing.run_tests` adds up: the numbers of pytest's last line, and what failed."""
    if path := config.getoption("counts"):
        stats = terminalreporter.stats
        counted = {
            outcome: sum(getattr(each, "count_towards_summary", True) for each in reports)
            for outcome, reports in stats.items()
            if outcome
        }
        failed = [each.nodeid for outcome in ("failed", "error") for each in stats.get(outcome, ())]
        content = {"exit_status": int(exitstatus), "counts": counted, "failed": failed}
        Path(path).write_text(json.dumps(content), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Raise the soft limit of open files as far as the product does: tests are a thousand callers at once."""
    open_files.raise_limit()
    if lanes.register(config) and any("unit" not in Path(each).parts for each in config.args):
        zygote.start_all()  # while the tests are collected; all lanes share them, and unit tests need none
    gc.disable()  # until all is collected: of what modules and tests are made, nothing is garbage


def pytest_collection_finish(session: pytest.Session) -> None:
    """Share a cluster among the lanes. Collect garbage again, but never look at the modules and the tests."""
    if session.config.getoption("lanes"):
        folders: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # pytest has no public way
        ready_cluster.share(folders.getbasetemp() / "ready-cluster")
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Remove the shared cluster once all lanes have ended."""
    ready_cluster.remove()


# structlog by itself draws each traceback with all local variables: seconds of CPU for one error in a loop,
# during which a worker of this process does nothing else.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=True),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test an id of its own: reports name a test by it.

    schemathesis gives each operation's test a name, but not an id.
    """
    running_order.sort(items)
    for item in items:
        _, bracket, params = item.name.partition("[")
        if bracket and not item.nodeid.endswith(item.name):
            item._id = replace(item.id, params=params.removesuffix("]"))
    (most, number), *_ = Counter(item.nodeid for item in items).most_common(1) or [("", 0)]
    if number > 1:
        raise pytest.UsageError(f"{number} tests have the id {most}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the browser, which may be on its way, before the test's own timeout begins."""
    if running_order.needs_browser(item):
        browser_support.missing()
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a browser where there is none; from one place, so that pytest says it in one line."""
    if running_order.needs_browser(item) and (reason := browser_support.missing()):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the engine servers that a failed test may have asked."""
    report = yield
    if report.failed:
        server_logs.add_to(report)
    return report


@pytest.fixture(autouse=True)
def _wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command wrap a line: where it would depends on the length of the test's own folder."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(scope="session")
def fork_program() -> "Callable[..., zygote.ForkedProcess | None]":
    """Start one of Longbatch's own programs, as `zygote.start` does; return None for any other one."""

    def start(program: tuple[str, ...], **how: Any) -> zygote.ForkedProcess | None:  # noqa: ANN401  # as it takes
        return zygote.start(program, **how) if program in zygote.PROGRAMS else None

    return start


@pytest.fixture(scope="session", autouse=True)
def _forked_stacks(fork_program: "Callable[..., zygote.ForkedProcess | None]") -> Iterator[None]:
    """Stacks that tests start fork Longbatch's own programs; `longbatch up` starts them as users do."""
    start = processes._start

    def fork_or_start(launch: Launch, output: IO[bytes]) -> "zygote.ForkedProcess | subprocess.Popen[bytes]":
        if launch.argv[:4] != (sys.executable, "-P", "-m", "longbatch_server") or launch.account is not None:
            return start(launch, output)
        how = {"env": launch.env, "cwd": launch.directory, "stdout": output, "start_new_session": True}
        return fork_program(launch.argv[4:], **how) or start(launch, output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_start", fork_or_start)
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A Postgres of this run's own."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))
    with ready_cluster.copied():
        server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        # No test of this server's looks at what survives its crash: commits need not wait for the disk.
        connection.execute(f"ALTER DATABASE {NAME} SET synchronous_commit = off")
    yield server
    server.remove()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A Redis-protocol server of this run's own."""
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def database_settings(postgres: EmbeddedPostgres) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(postgres.url))


@pytest.fixture(scope="session")
def engine(database_settings: DatabaseSettings) -> Iterator[Engine]:
    """Connections to a migrated database."""
    made = database.make_engine(database_settings, name="tests")
    schema.upgrade(made)
    with Session(made) as session, session.begin():
        ensure_api_key(session)
    yield made
    made.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions on a database without jobs."""
    made = database.make_sessions(engine)
    with made.begin() as session:
        empty_database(session)
    return made


@pytest.fixture
def session(sessions: sessionmaker[Session]) -> Iterator[Session]:
    """One open session; what a test does not commit is rolled back."""
    with sessions() as opened:
        yield opened


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The bundled tokenizer, Llama 3's."""
    return Tokenizer.load()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The browser of the cache; `pytest_runtest_setup` skips what needs one where it is missing."""
    with browser_support.running_browser() as made:
        yield made


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """An empty page, about which the browser may complain in nothing."""
    with browser_support.opened(browser) as made:
        yield made
