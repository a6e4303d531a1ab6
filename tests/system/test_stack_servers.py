"""Embedded Postgres and Valkey: up alone, together, after a crash, and with the remains of one."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.stack.errors import DirectoryInUseError, StackError
from cli.stack.options import StackOptions
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.valkey import EmbeddedValkey
from cli.stack.stack import Stack
from support import eventually


@contextmanager
def running_postgres(directory: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(directory)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def running_valkey(directory: Path) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that runs before each test that takes it, and after."""
    with running_postgres(tmp_path_factory.mktemp("shared") / "postgres") as server:
        yield server


def value_of(server: EmbeddedPostgres, query: str) -> object:
    with psycopg.connect(server.url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def run(server: EmbeddedPostgres, statement: str) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute(statement)


def cluster_of(server: EmbeddedPostgres) -> Path:
    return Path(str(value_of(server, "SHOW data_directory")))


def test_committed_rows_survive_a_kill(postgres: EmbeddedPostgres) -> None:
    run(postgres, "CREATE TABLE kept (number int)")
    run(postgres, "INSERT INTO kept VALUES (42)")
    url = postgres.url
    postgres.kill()
    postgres.start()
    assert postgres.url == url
    assert value_of(postgres, "SELECT number FROM kept") == 42


def test_another_run_finds_the_data_of_the_last(tmp_path: Path) -> None:
    directory = tmp_path / "postgres"
    first = EmbeddedPostgres(directory)
    first.start()
    run(first, "CREATE TABLE kept AS SELECT 42 AS number")
    first.stop()
    with running_postgres(directory) as second:
        assert second.port != first.port
        assert value_of(second, "SELECT number FROM kept") == 42


def test_postgres_is_durable_private_and_silent_about_values(postgres: EmbeddedPostgres) -> None:
    assert value_of(postgres, "SHOW fsync") == "on"
    assert value_of(postgres, "SHOW synchronous_commit") == "on"
    assert value_of(postgres, "SHOW listen_addresses") == "127.0.0.1"
    assert value_of(postgres, "SHOW server_encoding") == "UTF8"
    assert value_of(postgres, "SELECT rolpassword LIKE 'SCRAM-SHA-256%' FROM pg_authid WHERE rolcanlogin")
    run(postgres, "CREATE TABLE picky (word text CHECK (word = 'good'))")
    with pytest.raises(psycopg.errors.CheckViolation), psycopg.connect(postgres.url) as connection:
        connection.execute("INSERT INTO picky VALUES (%s)", ["canary-7f3a"])
    log = (postgres.directory / "postgres.log").read_text()
    assert "picky" in log
    assert "canary-7f3a" not in log


def test_a_wrong_password_is_refused(postgres: EmbeddedPostgres) -> None:
    url = f"postgresql://longbatch:wrong@127.0.0.1:{postgres.port}/longbatch"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url)


def test_a_stale_pid_file_is_no_obstacle(postgres: EmbeddedPostgres) -> None:
    stale = cluster_of(postgres) / "postmaster.pid"
    content = stale.read_text()
    postgres.kill()
    # As if another process of the same user had got the dead postmaster's number.
    stale.write_text(content.replace(str(postgres.pid), str(os.getppid()), 1))
    postgres.start()
    assert value_of(postgres, "SELECT 1") == 1


def test_a_server_that_outlived_its_parent_makes_way(tmp_path: Path) -> None:
    with running_postgres(tmp_path / "postgres") as server:
        orphan = server.pid
        assert orphan is not None
        server.release()  # what the kernel does when the parent dies
        other = EmbeddedPostgres(tmp_path / "postgres")
        try:
            os.kill(orphan, signal.SIGINT)  # and this
            other.start()
            assert value_of(other, "SELECT 1") == 1
        finally:
            other.stop()


def test_a_half_made_cluster_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "cluster.new").mkdir()
    (tmp_path / "postgres" / "cluster.new" / "PG_VERSION").write_text("18\n")
    with running_postgres(tmp_path / "postgres") as server:
        assert value_of(server, "SELECT 1") == 1


def test_a_cluster_of_another_version_is_refused_by_name(postgres: EmbeddedPostgres) -> None:
    version = cluster_of(postgres) / "PG_VERSION"
    postgres.stop()
    version.write_text("17\n")
    with pytest.raises(StackError, match="created by Postgres 17, this is 18"):
        postgres.start()
    version.write_text("18\n")
    postgres.start()


def test_one_directory_serves_one_server_at_a_time(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with pytest.raises(DirectoryInUseError):
        EmbeddedPostgres(postgres.directory).start()
    with running_valkey(tmp_path / "redis"), pytest.raises(DirectoryInUseError):
        EmbeddedValkey(tmp_path / "redis").start()


def test_two_of_each_run_side_by_side(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with ExitStack() as stack:
        databases = [postgres, stack.enter_context(running_postgres(tmp_path / "postgres"))]
        brokers = [stack.enter_context(running_valkey(tmp_path / f"redis{n}")) for n in range(2)]
        assert len({server.url for server in databases}) == 2
        assert [value_of(server, "SELECT 1") for server in databases] == [1, 1]
        assert [redis.Redis.from_url(server.url).ping() for server in brokers] == [True, True]


def test_removing_leaves_no_file(tmp_path: Path) -> None:
    with running_postgres(tmp_path / "postgres") as server:
        cluster = cluster_of(server)
        assert cluster.exists()
    assert not cluster.parent.exists()
    assert not (tmp_path / "postgres").exists()


def test_valkey_comes_back_at_the_same_address(tmp_path: Path) -> None:
    with running_valkey(tmp_path / "with 'odd\" name") as server:
        client = redis.Redis.from_url(server.url)
        client.set("key", "value")
        server.kill()
        server.start()
        assert eventually(client.ping)
        assert client.get("key") is None


def test_valkey_wants_its_password_and_evicts_no_queue(tmp_path: Path) -> None:
    with running_valkey(tmp_path / "redis") as server:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()
        client = redis.Redis.from_url(server.url)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-ttl"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_a_part_that_is_held_stays_away_until_it_is_resumed(tmp_path: Path) -> None:
    options = StackOptions(directory=tmp_path / "data", parts=frozenset({"redis"}), environment={})
    with Stack(options) as stack:
        assert stack.urls.broker_url is not None
        assert stack.urls.database_url is None
        client = redis.Redis.from_url(stack.urls.broker_url, retry=Retry(NoBackoff(), 0))
        first = stack.pids["redis"]
        stack.hold("redis")
        with pytest.raises(redis.ConnectionError):
            client.ping()
        stack.resume("redis")
        assert client.ping()
        assert stack.pids["redis"] != first
    assert not stack.ready_file.exists()
