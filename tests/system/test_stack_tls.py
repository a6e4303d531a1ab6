"""`longbatch up` over TLS and on other addresses; the tests' own is one of loopback, as all their servers."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest

from cli.stack.servers.postgres import EmbeddedPostgres
from longbatch import Client
from support import PATIENCE, eventually
from tls_support import make_pair

pytestmark = pytest.mark.timeout(300)

ADDRESS = "127.0.0.2"
_LONGBATCH = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()")


def run(*arguments: str, home: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XDG_DATA_HOME": str(home), **variables}
    return subprocess.run(
        [*_LONGBATCH, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def certificate(home: Path) -> Path:
    return make_pair(home, "stack.test", ADDRESS)[0]


@pytest.fixture(scope="module")
def ready(home: Path, certificate: Path) -> Iterator[dict[str, Any]]:
    """What the ready file holds of a stack on that address; it is in the user's default directory."""
    key = certificate.with_suffix(".key")
    files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    ready_file = home / "longbatch" / "ready.json"
    with (home / "console").open("wb") as console:
        process = subprocess.Popen(
            [*_LONGBATCH, "up", "--time-scale", "20", "--port", "0", "--host", ADDRESS, *files],
            env={**os.environ, "XDG_DATA_HOME": str(home)},
            stdout=console,
            stderr=subprocess.STDOUT,
        )

    def look() -> dict[str, Any] | None:
        assert process.poll() is None, (home / "console").read_text()
        return json.loads(ready_file.read_text()) if ready_file.exists() else None

    try:
        yield eventually(look, timeout=90) or {}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        EmbeddedPostgres(home / "longbatch" / "postgres").remove()


def is_link(word: str) -> bool:
    return "/console/sign-in?code=" in word


def test_the_api_and_the_sign_in_link_have_a_name_of_the_certificate(
    home: Path, certificate: Path, ready: dict[str, Any]
) -> None:
    assert ready["api_url"].startswith(f"https://{ADDRESS}:")
    link = eventually(lambda: next(filter(is_link, (home / "console").read_text().split()), None))
    assert link.startswith(ready["console_url"])
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(link, timeout=PATIENCE, context=context) as page:  # noqa: S310  # our own server
        assert page.status == 200


def test_commands_and_the_client_on_this_machine_trust_the_stack_s_own_certificate(
    home: Path, ready: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "text.txt").write_text("A short text.")
    done = run("submit", str(home / "text.txt"), "--max-tokens", "16", "--wait", home=home)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    with Client() as client:
        assert client.api_url == ready["api_url"]
        assert client.jobs.submit("Another text.", max_tokens=16).wait().state == "completed"


def test_a_client_elsewhere_does_not_trust_it_unless_its_authorities_do(
    tmp_path: Path, ready: dict[str, Any]
) -> None:
    given = {"LONGBATCH_API_URL": ready["api_url"], "LONGBATCH_API_KEY": ready["api_key"]}
    refused = run("list", home=tmp_path, **given)
    assert refused.returncode == 3
    assert "self-signed certificate" in refused.stderr


def test_plain_http_gets_no_answer(ready: dict[str, Any]) -> None:
    url = ready["api_url"].replace("https", "http")
    with pytest.raises(RemoteDisconnected):
        urllib.request.urlopen(f"{url}/health/live", timeout=PATIENCE)  # noqa: S310  # our own server


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7"])  # noqa: S104  # refused
def test_without_a_certificate_only_loopback_is_served(tmp_path: Path, address: str) -> None:
    refused = run("up", "--host", address, home=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == (
        f"error: --host {address} opens the API to the network, so it needs --tls-certificate FILE and"
        " --tls-key FILE; or put a proxy in front and leave --host out.\n"
    )
    assert not (tmp_path / "longbatch").exists()


def test_files_that_cannot_serve_are_one_clear_line(tmp_path: Path, certificate: Path) -> None:
    key, other = certificate.with_suffix(".key"), make_pair(tmp_path, "other")[1]
    for files, words in (
        ((certificate, tmp_path / "missing"), f"{tmp_path / 'missing'} cannot be read: No such file"),
        ((certificate, other), f"{other} is not the key of {certificate}."),
        ((key, key), "must be PEM files: a certificate and its unencrypted key."),
    ):
        found, its_key = map(str, files)
        refused = run("up", "--tls-certificate", found, "--tls-key", its_key, home=tmp_path)
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert words in line


def test_an_address_that_this_machine_does_not_have_is_refused(tmp_path: Path, certificate: Path) -> None:
    files = ("--tls-certificate", str(certificate), "--tls-key", str(certificate.with_suffix(".key")))
    refused = run("up", "--host", "192.0.2.7", *files, home=tmp_path)
    assert refused.returncode == 1
    assert "This machine does not have the address 192.0.2.7." in refused.stderr
    misspelt = run("up", "--host", "example.com", *files, home=tmp_path)
    assert misspelt.returncode == 2
