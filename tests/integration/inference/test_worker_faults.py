"""What goes wrong around a running job, and that it ends once and right all the same."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text, update

from claiming.claims import claim
from cli.stack.servers.engine_options import EngineOptions, OracleFaults
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import lifecycle
from jobs.database import database_now, transaction
from jobs.errors import RetryableEngineError
from jobs.ids import uuid7
from jobs.models import Engine, Job
from jobs.prompts.tokenizer import Tokenizer, ensure_default_tokenizer, unpack_ids
from jobs.settings import BrokerSettings, DatabaseSettings, EngineSettings, JobSettings, Settings
from jobs.states import TERMINAL
from local_engine import KillableEngine, RunningEngine, engine_module, killable_engine, running_engine
from stand_in_engine import StandIn, standing_in
from support import POLICY, eventually
from worker.inference.refusals import Patience
from worker_support import ENGINE, MODEL, TIME_SCALE, Queue, running_worker, settings_for


def options(mode: str = "synthetic", **faults: float) -> EngineOptions:
    return EngineOptions(
        mode=mode,  # type: ignore[arg-type]  # one of its modes
        tokenizer_dir=ensure_default_tokenizer(),
        time_scale=TIME_SCALE,
        faults=OracleFaults(**faults),  # type: ignore[arg-type]  # rates and a seed
    )


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[KillableEngine]:
    with killable_engine(tmp_path, options()) as engine:
        yield engine


@pytest.fixture
def feeding(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Callable[..., Settings]:
    """The settings of a worker that feeds an engine."""
    return partial(settings_for, database_settings, valkey.url)


def lease_of(queue: Queue, job_id: UUID) -> UUID:
    lease_id = queue.job(job_id).lease_id
    assert lease_id is not None
    return lease_id


def test_a_worker_that_lost_its_lease_writes_nothing(
    queue: Queue,
    steady: RunningEngine,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> None:
    settings = feeding(steady)
    with running_worker(settings, tokenizer) as worker:
        job_id = queue.submit("Say something.", max_tokens=100_000)
        queue.streaming(job_id)
        worker.dispatcher.begin_stop()  # so that it does not take the job again
        stolen = uuid7()
        with transaction(queue.sessions) as session:
            session.execute(update(Job).where(Job.id == job_id).values(lease_id=stolen, completion_tokens=1))
        eventually(lambda: not worker.keeper.runs())
        eventually(lambda: steady.gauges()["active"] == 0)
        job = queue.job(job_id)
    assert (job.state, job.lease_id, job.completion_tokens) == ("running", stolen, 1)
    assert queue.result(job_id) is None


def test_a_stream_ends_before_its_lease_when_the_database_is_away(
    queue: Queue,
    steady: RunningEngine,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> None:
    settings = feeding(steady, lease_seconds=4.5, renew_seconds=1, shutdown_grace_seconds=0)
    with running_worker(settings, tokenizer) as worker:
        job_id = queue.submit("Say something.", max_tokens=60_000)
        queue.streaming(job_id)
        # The keeper can renew no more: its rows are locked, and its statements wait.
        with queue.sessions() as session:
            session.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
            eventually(lambda: steady.gauges()["active"] == 0)
            assert session.scalar(select(Job.lease_expires_at > database_now(session)))
        with transaction(queue.sessions) as session:
            assert session.get_one(Job, job_id).attempt == 0
        worker.dispatcher.begin_stop()


def test_jobs_survive_a_killed_engine_without_an_attempt(
    queue: Queue,
    killable: KillableEngine,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> None:
    settings = feeding(killable.engine)
    with running_worker(settings, tokenizer):
        job_ids = [queue.submit(f"Job {number}.", max_tokens=3000) for number in range(6)]
        for each in job_ids[:4]:
            queue.streaming(each)
        killable.kill()
        eventually(lambda: paused_reason(queue))
        eventually(lambda: all(queue.job(job_id).state == "queued" for job_id in job_ids))
        killable.start()
        ended = [queue.ended(job_id) for job_id in job_ids]
        eventually(lambda: not queue.reservations())
    assert [(job.state, job.attempt, job.completion_tokens) for job in ended] == [("completed", 0, 3000)] * 6
    assert sorted(job.num_rescues for job in ended) == [0, 0, 1, 1, 1, 1]


def test_a_wrong_key_pauses_the_engine_until_it_is_right(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tokenizer: Tokenizer
) -> None:
    """The engine shows its health and models to everybody: only requests for answers are refused."""
    with standing_in("vllm", api_key="wrong", is_open=True) as server:
        settings = settings_over_http(database_settings, valkey, server, max_attempts=1)
        with running_worker(settings, tokenizer):
            server.api_key = "right"
            job_ids = [queue.submit(f"Job {number}.", max_tokens=5) for number in range(3)]
            eventually(lambda: "LONGBATCH_ENGINE__API_KEY" in (paused_reason(queue) or ""))
            eventually(lambda: all(queue.job(job_id).state == "queued" for job_id in job_ids))
            server.api_key = "wrong"
            ended = [queue.ended(job_id) for job_id in job_ids]
            eventually(lambda: paused_reason(queue) is None)
    assert [(job.state, job.attempt, job.num_rescues) for job in ended] == [("completed", 0, 0)] * 3


def settings_over_http(
    database: DatabaseSettings, broker: EmbeddedValkey, server: StandIn, *, max_attempts: int
) -> Settings:
    key = SecretStr("wrong")  # only some servers care
    return Settings(
        database=database,
        broker=BrokerSettings(url=SecretStr(broker.url), socket_timeout_seconds=1),
        engine=EngineSettings(name=ENGINE, model=MODEL, url=server.url, api_key=key, max_batch_size=2),
        jobs=JobSettings(max_attempts=max_attempts, shutdown_grace_seconds=0.2, retry_backoff_seconds=0.2),
    )


def test_a_prompt_that_the_engine_refuses_with_a_403_fails_after_its_attempts_and_alone(
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A filter in front of the engine does so; the engine itself answers other prompts."""
    (forbidden,) = tokenizer.encode_text("dragon").tolist()
    with standing_in("vllm", forbids=forbidden) as server:
        settings = settings_over_http(database_settings, valkey, server, max_attempts=2)
        with running_worker(settings, tokenizer):
            bad_id = queue.submit("Say:dragon", max_tokens=5)
            good = [queue.ended(queue.submit("Say something.", max_tokens=5))]
            while queue.job(bad_id).state not in TERMINAL:
                good.append(queue.ended(queue.submit("Say something.", max_tokens=5)))
        assert not queue.reservations()
    bad = queue.job(bad_id)
    assert (bad.state, bad.attempt) == ("failed", 2)
    assert {(job.state, job.attempt) for job in good} == {("completed", 0)}
    assert bad.error == {
        "code": "engine_error",
        "message": "the engine refuses this request, and no other, with status 403",
    }
    assert "Blocked by policy 7" in capsys.readouterr().out, "only the log has the server's words"


@pytest.mark.parametrize("status", [429, 503])
def test_a_prompt_that_the_engine_puts_off_for_ever_fails_after_its_attempts_and_alone(
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    status: int,
) -> None:
    """A gateway with a limit on the tokens of one request does so."""
    (forbidden,) = tokenizer.encode_text("dragon").tolist()
    with standing_in("vllm", forbids=forbidden, forbids_with=status) as server:
        settings = settings_over_http(database_settings, valkey, server, max_attempts=2)
        patience = Patience(tries=2, span=timedelta(0))
        with running_worker(settings, tokenizer, patience=patience):
            bad_id = queue.submit("Say:dragon", max_tokens=5)
            good = [queue.ended(queue.submit("Say something.", max_tokens=5))]
            while queue.job(bad_id).state not in TERMINAL:
                good.append(queue.ended(queue.submit("Say something.", max_tokens=5)))
        assert not queue.reservations()
    bad = queue.job(bad_id)
    assert (bad.state, bad.attempt) == ("failed", 2)
    assert {(job.state, job.attempt) for job in good} == {("completed", 0)}
    assert bad.error == {
        "code": "engine_error",
        "message": "the engine puts this request off each time, and no other",
    }
    assert server.num_refused >= 4


def test_a_prompt_refused_with_a_403_in_an_idle_queue_fails_once_probes_were_answered_for_long(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tokenizer: Tokenizer
) -> None:
    (forbidden,) = tokenizer.encode_text("dragon").tolist()
    with standing_in("vllm", forbids=forbidden) as server:
        settings = settings_over_http(database_settings, valkey, server, max_attempts=1)
        with running_worker(settings, tokenizer, patience=Patience(tries=2, span=timedelta(0))):
            bad = queue.ended(queue.submit("Say:dragon", max_tokens=5))
    assert (bad.state, bad.attempt) == ("failed", 1)
    assert server.num_refused >= 3


def test_an_engine_that_forbids_every_prompt_but_the_probe_is_paused_and_fails_no_job(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tokenizer: Tokenizer
) -> None:
    with standing_in("vllm", forbids_longer_than=1) as server:
        settings = settings_over_http(database_settings, valkey, server, max_attempts=1)
        with running_worker(settings, tokenizer):
            job_ids = [queue.submit(f"Job {number}.", max_tokens=5) for number in range(4)]
            eventually(lambda: server.num_refused >= 4 and "403" in (paused_reason(queue) or ""))
            eventually(lambda: all(queue.job(job_id).state == "queued" for job_id in job_ids))
            assert {queue.job(job_id).attempt for job_id in job_ids} == {0}
            server.forbids_longer_than = 10**9
            ended = [queue.ended(job_id) for job_id in job_ids]
    assert [(job.state, job.attempt) for job in ended] == [("completed", 0)] * 4


def test_one_replica_of_two_with_a_stale_key_costs_no_job_an_attempt(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tokenizer: Tokenizer
) -> None:
    """The load balancer takes turns, so probes may reach the good replica and jobs the other one."""
    with standing_in("vllm", refuses_every=2) as server:
        settings = settings_over_http(database_settings, valkey, server, max_attempts=1)
        with running_worker(settings, tokenizer):
            ended = [queue.ended(queue.submit(f"Job {number}.", max_tokens=5)) for number in range(3)]
            together = [queue.submit(f"Job {number}.", max_tokens=5) for number in range(4)]
            ended += [queue.ended(job_id) for job_id in together]
    assert [(job.state, job.attempt, job.num_rescues) for job in ended] == [("completed", 0, 0)] * 7
    assert server.num_asked > len(ended)


def paused_reason(queue: Queue) -> str | None:
    with queue.sessions() as session:
        return session.scalar(select(Engine.paused_reason))


def test_a_worker_waits_for_an_engine_that_is_not_up_yet(
    queue: Queue,
    killable: KillableEngine,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> None:
    settings = feeding(killable.engine)
    killable.kill()
    job_id = queue.submit("Say something.", max_tokens=5)
    with running_worker(settings, tokenizer, is_ready=False):
        killable.start()
        job = queue.ended(job_id)
    assert (job.state, job.attempt) == ("completed", 0)


@pytest.mark.parametrize("kind", ["error_rate", "crash_rate"])
def test_engine_errors_are_tried_again_and_answers_stay_exact(
    kind: str,
    queue: Queue,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
    tmp_path: Path,
) -> None:
    expected_text = engine_module("oracle").expected_text
    with running_engine(tmp_path, options("oracle", seed=7, **{kind: 0.3})) as engine:
        settings = feeding(engine, max_attempts=20)
        with running_worker(settings, tokenizer):
            job_ids = [queue.submit(f"Question {number}?", max_tokens=2000) for number in range(12)]
            ended = [queue.ended(job_id) for job_id in job_ids]
    assert {job.state for job in ended} == {"completed"}
    assert any(job.attempt > 0 for job in ended)
    for job in ended:
        result = queue.result(job.id)
        assert result is not None
        assert result.output == expected_text(prompt_of(queue, job))


def prompt_of(queue: Queue, job: Job) -> list[int]:
    with queue.sessions() as session:
        packed = session.scalar(text("SELECT token_ids FROM texts WHERE id = :id").bindparams(id=job.text_id))
    return unpack_ids(packed).tolist()


def test_a_job_that_fails_each_time_fails_after_its_attempts_and_only_the_log_has_the_engine_s_words(
    queue: Queue,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        running_engine(tmp_path, options("oracle", error_rate=1.0)) as engine,
        running_worker(feeding(engine), tokenizer),
    ):
        job = queue.ended(queue.submit("Question?", max_tokens=2000))
    assert (job.state, job.attempt) == ("failed", 3)
    assert job.error == {"code": "engine_error", "message": RetryableEngineError().message}
    assert "the engine failed, as it was configured to" in capsys.readouterr().out


def test_reservations_of_dead_streams_vanish(
    queue: Queue,
    steady: RunningEngine,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> None:
    settings = feeding(steady)
    with running_worker(settings, tokenizer) as worker:
        worker.dispatcher.begin_stop()
        worker.dispatcher.run_once()  # returns once no claim is under way
        queue.submit("Say something.", max_tokens=100)
        with transaction(queue.sessions) as session:  # a worker that died right after its claim
            claimed = claim(session, ENGINE, POLICY)
            assert claimed is not None
            session.execute(update(Job).values(lease_expires_at=database_now(session)))
        with transaction(queue.sessions) as session:
            lifecycle.rescue(session, now=database_now(session), max_rescues=2)
        assert [row.state for row in queue.reservations()] == ["draining"]
        eventually(lambda: not queue.reservations())


def test_without_gauges_reservations_vanish_after_a_while_and_a_canary(
    queue: Queue,
    steady: RunningEngine,
    feeding: Callable[..., Settings],
    tokenizer: Tokenizer,
) -> None:
    settings = feeding(steady, drain_seconds=2)
    blind = settings.model_copy(update={"triton": settings.triton.model_copy(update={"metrics_url": None})})
    with running_worker(blind, tokenizer):
        queue.add_draining()
        eventually(lambda: not queue.reservations())


@pytest.fixture(scope="module")
def steady(synthetic: RunningEngine) -> RunningEngine:
    """An engine that no test kills."""
    return synthetic
