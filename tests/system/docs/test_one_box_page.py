"""docs/one-box.md: its settings, services, first key and backup work as the page has them."""

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from sqlalchemy import make_url

from cli.stack.servers.postgres_home import find_home
from cli.stack.stack import Stack
from documented.shell import Bash, shell_blocks
from jobs.settings import Settings
from scripts.docs.build import ROOT
from system_support import text_of

pytestmark = pytest.mark.timeout(300)

PAGE = "docs/one-box.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def blocks(section: str) -> list[str]:
    """The blocks of shell in this section, which are there."""
    found = [each.text for each in shell_blocks() if (each.page, each.section) == (PAGE, section)]
    assert found, section
    return found


def block_of(language: str) -> str:
    """The first block in this language."""
    found = re.search(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def settings_file(stack: Stack, tmp_path: Path) -> Path:
    """The service's settings, with the running stack's database."""
    file = tmp_path / "longbatch.env"
    file.write_text(f"LONGBATCH_DATABASE__URL={stack.urls.database_url}\n")
    return file


def test_every_setting_is_one_and_fits_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("LONGBATCH_")]:
        monkeypatch.delenv(name)
    given = dict(line.split("=", 1) for line in block_of("ini").splitlines())
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LONGBATCH_BROKER__URL", "redis://127.0.0.1:6379/0")  # `up` adds its own
    settings = Settings()
    (engine,) = blocks("vLLM")
    words = shlex.split(engine)
    assert words[2] == settings.tokenizer.path
    assert words[words.index("--max-num-seqs") + 1] == str(settings.engine.max_batch_size)
    assert words[words.index("--served-model-name") + 1] == settings.engine.model
    assert str(settings.engine.url).endswith(":" + words[words.index("--port") + 1])


@pytest.mark.parametrize("section", ["The service", "HTTPS"])
def test_systemd_accepts_the_services(bash: Bash, tmp_path: Path, section: str) -> None:
    (command,) = [
        line.removeprefix("sudo ")
        for block in blocks(section)
        for line in block.splitlines()
        if "service install" in line
    ]
    unit = tmp_path / "longbatch.service"
    unit.write_text(bash(command.replace(" -- ", " --print -- ")).replace("User=longbatch", "User=root"))
    options = command.partition(" -- ")[2]
    assert f"up {options}\n" in unit.read_text()
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("this machine has no systemd-analyze")
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if "longbatch" in line]
    assert (done.returncode, about_it) == (0, [])


def test_first_tenant_and_key(bash: Bash, stack: Stack, settings_file: Path, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "a.txt").write_text(text_of(900))
    create, use = blocks("First tenant and key")
    create = create.replace("/etc/longbatch/longbatch.env", str(settings_file))
    key = bash(create.replace("research", "research-box")).split()[-1]
    assert key.startswith("lb_")
    use = use.replace("https://longbatch.example.com", stack.urls.api_url or "").replace("lb_…", key)
    bash(use)
    assert (tmp_path / "summaries" / "a.txt.md").read_text()


def test_backup(bash: Bash, stack: Stack, tmp_path: Path) -> None:
    home = find_home(stack.directory / "postgres")
    (block,) = blocks("Backup")
    for written, here in (
        ("/var/backups", tmp_path / "backups"),
        ("/root", tmp_path / "root"),
        ("/var/lib/longbatch", stack.directory),
        ("sudo -u postgres ", ""),  # the stack's Postgres knows its own superuser alone
    ):
        assert written in block
        block = block.replace(written, str(here))
    url = make_url(stack.urls.database_url or "")
    login = {
        "PGHOST": str(url.host),
        "PGPORT": str(url.port),
        "PGUSER": str(url.username),
        "PGPASSWORD": str(url.password),
    }
    variables = {**home.env, **login}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    bash(f"{exports}export PATH={home.programs}:$PATH\n{block}")
    dump = tmp_path / "backups" / "longbatch" / "longbatch.dump"
    assert dump.read_bytes().startswith(b"PGDMP")
    assert stat.S_IMODE(dump.stat().st_mode) == 0o600, "nobody else reads it"
    assert (tmp_path / "root" / "longbatch-keys" / "webhook-encryption-key").read_text()


def test_prometheus_scrapes_the_api_and_reads_the_rules() -> None:
    config = yaml.safe_load(block_of("yaml"))
    (job,) = config["scrape_configs"]
    (command,) = [line for line in blocks("The service")[0].splitlines() if "service install" in line]
    assert job["static_configs"][0]["targets"] == [f"127.0.0.1:{command.split()[-1]}"]
    assert config["rule_files"]


def test_the_proxy_leads_to_the_service() -> None:
    assert "reverse_proxy 127.0.0.1:8080" in block_of("caddyfile")
