"""One proof: a database of many jobs, work in flight, its loss, its restore to a moment, and a verdict."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.figures import until
from bench.restore.recipe import Operator, Recipe
from bench.restore.verdict import Life, judge
from bench.soak.caller import Caller, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Promise
from bench.soak.load import max_tokens_of, text_of
from bench.soak.stacks import options
from bench.stand.fill import fill
from cli.stack.ready import POSTGRES
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.stack import Stack

_MIB: Final = 2**20
_PATIENCE_S: Final = 300.0
# 512 bytes of text and 512 of token ids for each completed job.
_RESULTS: Final = """
    INSERT INTO results (job_id, output, output_ids)
    SELECT id, repeat(md5(id::text), 16), decode(repeat(md5(id::text), 32), 'hex') FROM jobs
    WHERE state = 'completed' AND model = 'bench-model'
"""
_FILLED: Final = "SELECT count(*) FROM jobs WHERE model = 'bench-model'"
_OPEN: Final = "SELECT count(*) FROM jobs WHERE model <> 'bench-model' AND finalized_at IS NULL"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to restore.

    Attributes:
        num_jobs: in the table; nine tenths are in the base backup, and the rest only in the archive.
        num_each: jobs that end before the moment, are in flight at it, and come after it.
    """

    num_jobs: int = 1_000_000
    num_each: int = 24


@dataclass
class Report:
    """What a proof measured and found.

    Attributes:
        seconds: how long each step took.
        mib: sizes of the database, the base backup and the archive.
        num_restored: filled jobs that are there again.
        num_ended: other jobs that had ended before the moment.
        num_open: jobs that were queued or running at the moment.
        num_sent_again: later jobs that their callers sent again.
        faults: what should not be.
    """

    plan: Plan
    seconds: dict[str, float] = field(default_factory=dict)
    mib: dict[str, float] = field(default_factory=dict)
    num_restored: int = 0
    num_ended: int = 0
    num_open: int = 0
    num_sent_again: int = 0
    faults: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return asdict(self) | {"is_good": not self.faults}

    @contextmanager
    def timing(self, step: str, say: Callable[[str], None]) -> Iterator[None]:
        """Time a step."""
        say(step)
        began = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - began, 1)


def prove(plan: Plan, directory: Path, *, say: Callable[[str], None] = lambda _: None) -> Report:
    """Fill, lose and restore a database in this empty directory.

    Raises:
        LongbatchError: the stack did not start.
        FailedCommandError: a command of the manual failed.
    """
    report, recipe = Report(plan), Recipe.read()
    operator = Operator(directory / "stack" / POSTGRES)
    stack = Stack(options(directory / "stack", {}))
    try:
        with stack:
            operator.prepare()
            _fill_and_back_up(report, stack, operator, recipe, say)
            life = _work(report, stack, say)
        shutil.rmtree(operator.cluster)
        _restore(report, operator, recipe, life.moment, say)
        with (stack := Stack(options(directory / "stack", {}))):
            _work_on(report, stack, life, say)
    finally:
        stack.stop()
        stack.remove_data()
    return report


def _fill_and_back_up(
    report: Report, stack: Stack, operator: Operator, recipe: Recipe, say: Callable[[str], None]
) -> None:
    """Fill nine tenths, back them up, and fill the rest."""
    plan, url = report.plan, stack.urls.database_url or ""
    num_archived = plan.num_jobs // 10
    with report.timing("fill", say), _connected(url) as database:
        fill(database, completed=plan.num_jobs - num_archived)
        database.execute(_RESULTS)
        database.execute("CHECKPOINT")
    operator.run(recipe.archive, url=url)
    stack.hold(POSTGRES)
    stack.resume(POSTGRES)
    with report.timing("base backup", say):
        operator.run(recipe.back_up, url=url)
    with report.timing("fill the rest", say), _connected(url) as database:
        fill(database, queued=num_archived)
        (size,) = database.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
    report.mib |= {"database": round(size / _MIB), "base backup": _size_of(operator.backup)}


def _work(report: Report, stack: Stack, say: Callable[[str], None]) -> Life:
    """Have jobs end before the moment, be in flight at it, and come after it; all of them end at last."""
    life, num = Life(), report.plan.num_each
    caller, checker = _caller(stack), _checker(stack)
    say("jobs before the moment")
    life.earlier += _submit(caller, "before", range(num))
    _drain(checker, life.earlier)
    life.ended = frozenset(checker.seen.jobs)
    life.earlier += _submit(caller, "at", range(num, 2 * num))
    with _connected(stack.urls.database_url or "") as database:
        (life.moment,) = database.execute("SELECT clock_timestamp()::text").fetchone() or ("",)
        say(f"the moment: {life.moment}; jobs after it")
        life.later += _submit(caller, "after", range(num))
        _drain(checker, [*life.earlier, *life.later])
        archived(database)  # by itself it may take a minute
    life.seen, report.num_ended = checker.seen, len(life.ended)
    return life


def _restore(
    report: Report, operator: Operator, recipe: Recipe, moment: str, say: Callable[[str], None]
) -> None:
    """Put the backup in place of the lost cluster, and wait until Postgres has reached the moment."""
    report.mib["archive"] = _size_of(operator.archive)
    with report.timing("restore: copy", say):
        operator.run(recipe.restore, moment=moment)
    postgres = EmbeddedPostgres(operator.postgres)
    try:
        with report.timing("restore: replay", say):
            operator.run(recipe.wait, url=postgres.start())
        with _connected(postgres.url) as database:
            (report.num_restored,) = database.execute(_FILLED).fetchone() or (0,)
            (report.num_open,) = database.execute(_OPEN).fetchone() or (0,)
    finally:
        postgres.stop()


def _work_on(report: Report, stack: Stack, life: Life, say: Callable[[str], None]) -> None:
    """Let workers go on with what was in flight, and callers send later requests again; then judge."""
    caller, checker = _caller(stack), _checker(stack)
    here = [each.id for each in life.later if caller.get(f"/v1/jobs/{each.id}").status_code != 404]
    report.faults += [f"{each} came after the moment, and is there" for each in here]
    with report.timing("what was in flight", say):
        _drain(checker, life.earlier)
    again = _submit(caller, "after", range(report.plan.num_each))
    _drain(checker, [*life.earlier, *again])
    report.num_sent_again = len(again)
    report.faults += judge(life, checker.seen, again)
    if report.num_restored != report.plan.num_jobs:
        report.faults.append(f"{report.num_restored} of {report.plan.num_jobs} filled jobs are there")
    if not report.num_open or not report.num_ended:
        report.faults.append("no job was in flight at the moment, or none had ended")


def archived(database: psycopg.Connection) -> None:
    """Wait until Postgres has archived all that was committed so far."""
    (last,) = database.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
    query = "SELECT last_archived_wal >= %s FROM pg_stat_archiver"
    until(lambda: (database.execute(query, [last]).fetchone() or (False,))[0], seconds=_PATIENCE_S)


def _submit(caller: Caller, name: str, numbers: range) -> list[Promise]:
    """Submit a job for each number, each under a key of its own."""
    made = []
    for number in numbers:
        asked = {"input": text_of(number), "task": "summarize", "max_tokens": max_tokens_of(number)}
        key = f"{name}-{number}"
        answer = caller.post("/v1/jobs", key=key, json=asked | {"custom_id": key})
        made.append(Promise("job", answer.json()["id"], key, prompt=f"text {number}"))
    return made


def _drain(checker: Checker, promises: list[Promise]) -> None:
    """Look until all of these jobs have ended."""

    def is_over() -> bool:
        checker.look(promises)
        return all(each.id in checker.seen.outputs for each in promises)

    with suppress(TimeoutError):  # what has not ended by then is lost, which the verdict says
        until(is_over, seconds=_PATIENCE_S, every=0.5)


def _caller(stack: Stack) -> Caller:
    return Caller([stack.urls.api_url or ""], stack.urls.api_key or "", Repeats())


def _checker(stack: Stack) -> Checker:
    return Checker(_caller(stack))


def _connected(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True)


def _size_of(folder: Path) -> float:
    return round(sum(each.lstat().st_size for each in folder.rglob("*")) / _MIB)
