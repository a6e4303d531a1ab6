"""The command that reseals: what it needs, what it prints, and that it may be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from cli import local
from documented.shell import shell_blocks
from jobs import database
from jobs.files.storage import DirectoryStore
from jobs.models import DEFAULT_TENANT
from jobs.resealing import passes
from jobs.resealing.passes import HiddenRowsError
from jobs.resealing.places import SECRETS, Aim
from jobs.sealing.content import PLAIN
from jobs.settings import DatabaseSettings
from jobs.webhooks.vault import Vault
from longbatch.cli.main import application
from owned.everything import fill
from sealed.keys import LOST_KEY, NEW_KEY, NEW_NAME, OLD_KEY, OLD_NAME, setting_of
from support import eventually

Run = Callable[..., Result]
Sessions = sessionmaker[Session]
WAITS = text(
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE NOT granted AND application_name = 'longbatch-admin'"
)


@pytest.fixture
def variables(database_settings: DatabaseSettings, sessions: Sessions, tmp_path: Path) -> dict[str, str]:
    """The settings of a site with everything of one tenant in plain, and with one old key."""
    with sessions.begin() as session:
        fill(session, DEFAULT_TENANT, "sesquipedalian", DirectoryStore(tmp_path))
        for table in {*SECRETS} - {"jobs", "batches", "summaries"}:
            sealed = Vault([OLD_KEY]).seal("whsec_x")
            session.execute(text(f"UPDATE {table} SET secret = :sealed"), {"sealed": sealed})  # noqa: S608
    return {
        "LONGBATCH_DATABASE__URL": database_settings.url.get_secret_value(),
        "LONGBATCH_DATABASE__ENCRYPT_CONTENT": "true",
        "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": setting_of(OLD_KEY),
        "LONGBATCH_FILES__DIRECTORY": str(tmp_path),
    }


def run(variables: Mapping[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(application(), ("content", "reseal", *arguments), env=dict(variables))


def printed(variables: Mapping[str, str], *arguments: str, status: int = 0) -> dict[str, Any]:
    result = run(variables, *arguments, "--json")
    assert result.exit_code == status, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_key_is_rotated_until_nothing_needs_the_old_one(variables: dict[str, str]) -> None:
    counted = printed(variables, "--check", status=1)
    assert counted["left"] == counted["plain"] > 0
    assert counted["resealed"] == 0
    sealed = printed(variables)
    assert (sealed["resealed"], sealed["plain"], sealed["left"]) == (counted["plain"], 0, 0)
    variables["LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"] = setting_of(NEW_KEY, OLD_KEY)
    known = {"is_configured": True}
    num_values = sum(sum(values.values()) for values in sealed["tables"].values())
    assert printed(variables, "--check", status=1)["keys"] == [
        {"key": NEW_NAME, "values": 0, "is_newest": True, **known},
        {"key": OLD_NAME, "values": num_values, "is_newest": False, **known},
    ]
    result = run(variables)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[:4]] == [
        ["key", "values"],
        [NEW_NAME, str(num_values), "newest"],
        [OLD_NAME, "0"],
        ["none", "0", "not", "encrypted"],
    ]
    variables["LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"] = setting_of(NEW_KEY)
    assert printed(variables, "--check")["keys"] == [
        {"key": NEW_NAME, "values": num_values, "is_newest": True, **known}
    ]


def test_a_key_that_is_missing_is_named_with_what_it_sealed(variables: dict[str, str]) -> None:
    run(variables)
    variables["LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"] = setting_of(LOST_KEY)
    found = printed(variables, status=1)
    assert found["keys"][1] | {"values": 0} == {
        "key": OLD_NAME,
        "values": 0,
        "is_configured": False,
        "is_newest": False,
    }
    assert found["num_unreadable"] == len(found["unreadable"]) == found["keys"][1]["values"]
    shown = run(variables).stdout
    assert f"{OLD_NAME}" in shown
    assert "not configured" in shown
    assert "cannot be opened: documents" in shown


def test_content_is_opened_only_if_that_is_asked_for(variables: dict[str, str]) -> None:
    run(variables)
    variables["LONGBATCH_DATABASE__ENCRYPT_CONTENT"] = "false"
    refused = run(variables)
    assert refused.exit_code == 1
    assert "--open" in refused.stderr
    assert printed(variables, "--check", status=1)["plain"] == 0
    assert printed(variables, "--open")["plain"] > 0
    variables["LONGBATCH_DATABASE__ENCRYPT_CONTENT"] = "true"
    assert run(variables, "--open").exit_code == 2


def test_the_commands_of_operations_md_do_what_it_says(variables: dict[str, str]) -> None:
    (block,) = (each for each in shell_blocks() if each.section == "Encryption at rest")
    assert block.page == "docs/operations.md"
    found = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/bash", "-ec", block.text],
        env=os.environ | variables | found,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count(OLD_NAME) == 2, "each of the two prints the table"


def test_killed_in_the_middle_it_goes_on_where_it_was(variables: dict[str, str], sessions: Sessions) -> None:
    command = [sys.executable, "-m", "cli", "content", "reseal"]
    with sessions.begin() as session:
        # It reads and locks rows of the table, and waits with the first change of one.
        session.execute(text("LOCK TABLE document_texts IN SHARE MODE"))
        with subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL) as process:
            eventually(lambda: session.scalar(WAITS))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    found = printed(variables, "--check", status=1)
    assert found["plain"] > 0
    assert set(found["tables"]["documents"]) == {OLD_NAME}, "what it had committed stays"
    assert printed(variables)["plain"] == 0


def test_a_login_that_sees_one_tenant_alone_is_refused(
    variables: dict[str, str], database_settings: DatabaseSettings, tmp_path: Path
) -> None:
    assert variables
    engine: Engine = database.make_engine(database_settings, name="tests")

    def be_the_api(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL ROLE longbatch_app")

    event.listen(engine, "begin", be_the_api)
    with pytest.raises(HiddenRowsError):
        passes.count(
            database.make_sessions(engine),
            DirectoryStore(tmp_path),
            Aim(PLAIN, None, []),
            tell=lambda *_: None,
        )
    engine.dispose()


def test_the_local_stack_s_key_is_found_in_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [*os.environ]:
        if name.startswith("LONGBATCH_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "longbatch"
    folder.mkdir()
    (folder / "ready.json").write_text(json.dumps({"database_url": "postgresql://localhost/x"}))
    assert local.find_content().webhooks.encryption_key is None
    assert not (folder / "webhook-encryption-key").exists()
    (folder / "webhook-encryption-key").write_text(setting_of(NEW_KEY))
    monkeypatch.setenv("LONGBATCH_DATABASE__ENCRYPT_CONTENT", "true")
    side = local.find_content()
    assert side.database.encrypt_content
    assert side.database.url.get_secret_value() == "postgresql://localhost/x"
    assert side.webhooks.encryption_key is not None
    assert side.webhooks.encryption_key.get_secret_value() == setting_of(NEW_KEY)
