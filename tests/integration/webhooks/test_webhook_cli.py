"""`longbatch webhooks` against a real server."""

import json

from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from api_server import WEBHOOK_SECRET, ApiProcess
from longbatch.cli.main import application
from support import API_KEY


def run(server: ApiProcess, *arguments: str) -> Result:
    environment = {"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": API_KEY}
    return CliRunner().invoke(application(), ["webhooks", *arguments], env=environment)


def test_an_endpoint_is_added_shown_tested_rotated_and_removed(
    server: ApiProcess,
    sessions: sessionmaker[Session],  # noqa: ARG001  # the database is empty
) -> None:
    added = run(server, "add", "https://example.com/hook", "--event", "batch.completed")
    assert added.exit_code == 0, added.output
    endpoint_id, secret = added.stdout.splitlines()[:2]
    assert endpoint_id.startswith("whep_")
    assert secret.startswith("whsec_")
    listed = run(server, "list")
    assert endpoint_id in listed.stdout
    assert secret not in listed.stdout
    assert run(server, "test", endpoint_id).stdout.startswith("evt_")
    assert run(server, "rotate", endpoint_id).stdout.splitlines()[1] != secret
    assert run(server, "replay", endpoint_id).stdout.strip() == "0"
    assert json.loads(run(server, "log", "--json").stdout)["data"] == []
    assert run(server, "enable", endpoint_id).exit_code == 0
    assert run(server, "remove", endpoint_id).exit_code == 0
    assert run(server, "remove", endpoint_id).exit_code == 4
    assert json.loads(run(server, "list", "--json").stdout)["data"] == []


def test_a_refused_url_is_one_line_and_exit_code_4(server: ApiProcess) -> None:
    refused = run(server, "add", "https://10.0.0.1/")
    assert refused.exit_code == 4
    assert "private address" in refused.output


def test_the_default_secret_is_printed(server: ApiProcess, sessions: sessionmaker[Session]) -> None:  # noqa: ARG001
    assert run(server, "secret").stdout.strip() == WEBHOOK_SECRET
