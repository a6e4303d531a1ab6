import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import ApiProcess
from cli import local
from cli.stack.ports import free_port
from jobs import tenants
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from longbatch.cli.main import application
from longbatch.server import DEFAULT_API_URL, ServerAccess, find_server
from support import ENGINE, register_engine

Run = Callable[..., Result]


@pytest.fixture
def run(database_settings: DatabaseSettings, sessions: sessionmaker[Session]) -> Run:  # noqa: ARG001  # migrated
    url = database_settings.url.get_secret_value()

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(application(), arguments, env={"LONGBATCH_DATABASE__URL": url})

    return invoke


@pytest.fixture
def tenant(run: Run) -> str:
    name = f"t-{uuid7().hex}"
    assert run("tenants", "create", name, "--max-requests", "7", "--weight", "2").stdout == f"{name}\n"
    return name


def test_a_tenant_and_a_key_made_on_the_command_line_open_the_api(
    run: Run, tenant: str, server: ApiProcess
) -> None:
    made = run("keys", "create", "--tenant", tenant, "--name", "n")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert keys.handle_of(secret), "the key alone is on standard output"
    assert "not shown again" in made.stderr
    with server.client(api_key=secret) as http:
        assert http.get("/v1/jobs").headers["x-ratelimit-limit-requests"] == "7"


def test_lists_show_keys_without_their_secrets(run: Run, tenant: str) -> None:
    made = json.loads(run("keys", "create", "--tenant", tenant, "--scope", "read", "--json").stdout)
    run("keys", "create", "--tenant", tenant, "--expires-in", "30m")
    listed = run("keys", "list", "--tenant", tenant)
    assert made["id"] in listed.stdout
    assert made["api_key"][20:] not in listed.stdout
    rows = json.loads(run("keys", "list", "--tenant", tenant, "--json").stdout)
    assert [row["scopes"] for row in rows] == [["read"], ["read", "submit"]]
    assert [row["expires_at"] is None for row in rows] == [True, False]


def test_keys_are_rotated_and_revoked(run: Run, tenant: str, sessions: sessionmaker[Session]) -> None:
    old = run("keys", "create", "--tenant", tenant).stdout.strip()
    new = run("keys", "rotate", old[:19], "--overlap", "0").stdout.strip()
    assert "is revoked" in run("keys", "revoke", f"lb_{keys.handle_of(new)}").stdout
    assert run("keys", "rotate", new).exit_code == 1
    with sessions() as session:
        now = database_now(session)
        rows = [keys.find(session, secret) for secret in (old, new)]
        assert [row is not None and keys.is_usable(row, now) for row in rows] == [False, False]


def test_engines_and_queues_are_paused_drained_and_resumed(
    run: Run, tenant: str, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        register_engine(session)
    assert run("engine", "pause", ENGINE, "--reason", "new [red]driver").exit_code == 0
    assert f"{ENGINE}  paused by the command line: new [red]driver" in run("engine", "list").stdout
    assert run("engine", "drain", ENGINE, "--reason", "new driver").exit_code == 0
    (listed,) = json.loads(run("engine", "list", "--json").stdout)
    assert (listed["state"], listed["by"], listed["reason"]) == ("drained", "the command line", "new driver")
    assert run("engine", "resume", ENGINE).exit_code == 0
    assert json.loads(run("engine", "list", "--json").stdout)[0]["state"] == "running"
    assert run("tenants", "pause", tenant, "--reason", "unpaid").exit_code == 0
    with sessions() as session:
        row = tenants.named(session, tenant)
        assert (row.halt, row.halted_reason, row.halted_by) == ("pause", "unpaid", None)
    assert run("tenants", "resume", tenant).exit_code == 0
    assert run("engine", "pause", "nowhere", "--reason", "a").exit_code == 1
    for reason in ("", "a\x1b[2J", "x" * 301):
        assert run("engine", "pause", ENGINE, "--reason", reason).exit_code == 2


def test_limits_are_set_and_taken_back(run: Run, tenant: str, sessions: sessionmaker[Session]) -> None:
    assert run("tenants", "set", tenant, "--max-jobs", "3", "--max-requests", "-1").exit_code == 0
    assert run("tenants", "set", tenant, "--max-stored-bytes", "4000").exit_code == 0
    (found,) = (
        each for each in json.loads(run("tenants", "list", "--json").stdout) if each["name"] == tenant
    )
    assert (found["max_jobs"], found["max_requests"], found["weight"]) == (3, None, 2.0)
    assert found["max_stored_bytes"] == 4000
    assert tenant in run("tenants", "list").stdout
    with sessions() as session:
        assert tenants.named(session, tenant).weight == 2.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenants", "create", "a b"), "1 to 63"),
        (("tenants", "create", "default"), "already"),
        (("tenants", "set", "nobody"), "no tenant 'nobody'"),
        (("keys", "create", "--tenant", "nobody"), "no tenant 'nobody'"),
        (("keys", "revoke", "lb_0000000000000000"), "no such key"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr


@pytest.mark.parametrize("command", [("tenants", "set", "default"), ("keys", "set", "lb_0000000000000000")])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-jobs", 2**31),
        ("--max-requests", 2**31),
        ("--max-requests", 0),
        ("--max-enqueued-tokens", 2**63),
    ],
)
def test_a_limit_that_cannot_be_stored_is_wrong_usage(
    run: Run, command: tuple[str, ...], option: str, value: int
) -> None:
    done = run(*command, option, str(value))
    assert done.exit_code == 2, done.stderr
    assert option in done.stderr


def test_a_span_of_no_unit_is_wrong_usage(run: Run) -> None:
    assert run("keys", "create", "--expires-in", "5").exit_code == 2


def test_no_database_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LONGBATCH_DATABASE__URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert "LONGBATCH_DATABASE__URL" in CliRunner().invoke(application(), ["keys", "list"]).stderr
    away = {"LONGBATCH_DATABASE__URL": f"postgresql://a:b@127.0.0.1:{free_port()}/c"}
    done = CliRunner().invoke(application(), ["keys", "list"], env=away)
    assert (done.exit_code, done.stderr) == (3, "error: cannot connect to the database\n")


def test_verbs_find_the_local_stack_and_give_its_key_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LONGBATCH_API_KEY", "LONGBATCH_API_URL", "LONGBATCH_DATABASE__URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert find_server(None) == ServerAccess(DEFAULT_API_URL, None)
    ready = {"api_url": "http://127.0.0.1:9", "api_key": "lb_stack", "database_url": "postgresql://a@b/c"}
    (tmp_path / "longbatch").mkdir()
    (tmp_path / "longbatch" / "ready.json").write_text(json.dumps(ready))
    assert find_server(None) == ServerAccess("http://127.0.0.1:9", "lb_stack")
    assert find_server("http://127.0.0.1:9/").api_key == "lb_stack"
    assert find_server("http://elsewhere").api_key is None
    assert local.find_database().url.get_secret_value() == "postgresql://a@b/c"
    monkeypatch.setenv("LONGBATCH_API_KEY", "lb_mine")
    assert find_server("http://elsewhere").api_key == "lb_mine"
