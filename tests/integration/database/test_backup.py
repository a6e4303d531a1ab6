"""Backup and restore as docs/operations.md tells it, its own commands, into a server that knows nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, serving
from batch_support import Service, tools
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.postgres_home import find_home
from cli.stack.servers.valkey import EmbeddedValkey
from document_support import Extractor
from jobs import database, documents, files, ids, lifecycle
from jobs.database import database_now
from jobs.documents import NewDocument
from jobs.files import stray_parts
from jobs.files.storage import DirectoryStore
from jobs.models import DEFAULT_TENANT, Base, Job, WebhookEndpoint
from jobs.models.document import Document
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from jobs.states.document import DocumentKind, DocumentState
from jobs.tenants import isolation
from jobs.tenants.isolation import TenantSession
from openai_support import chat_line, jsonl
from support import claim_one, job_in, spec, submit_one
from webhook_support import add_endpoint, vault

DOCUMENT = b"A document of some sentences. It says little.\n"
LINES = jsonl([chat_line("a")])
# What row-level security and grants consist of.
WALLS = (
    "SELECT tablename || policyname || roles::text || coalesce(qual, '') FROM pg_policies",
    "SELECT relname FROM pg_class WHERE relrowsecurity",
    (
        "SELECT oid::regclass || ' ' || grantee::regrole || ' ' || privilege_type"
        " FROM pg_class, aclexplode(relacl) WHERE relnamespace = current_schema()::regnamespace"
    ),
    (
        "SELECT attrelid::regclass || ' ' || attname || ' ' || grantee::regrole || ' ' || privilege_type"
        " FROM pg_attribute, aclexplode(attacl) WHERE attrelid::regclass::text !~ '^pg_'"
    ),
)


@dataclass(frozen=True)
class Site:
    """A database, and the bytes beside it."""

    postgres: EmbeddedPostgres
    files: Path

    def run(self, commands: str, backup: Path) -> None:
        """Run commands of the docs here."""
        home = find_home(self.postgres.directory)
        path = os.pathsep.join([str(home.programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        named = {
            "PATH": path,
            "BACKUP": str(backup),
            "LONGBATCH_DATABASE__URL": self.postgres.url,
            "LONGBATCH_FILES__DIRECTORY": str(self.files),
        }
        subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", commands],
            env={**os.environ, **home.env, **named},
            cwd=Path(__file__).resolve().parents[3],
            check=True,
        )

    @property
    def settings(self) -> DatabaseSettings:
        return DatabaseSettings(url=SecretStr(self.postgres.url))


@pytest.fixture
def old(postgres: EmbeddedPostgres, sessions: sessionmaker[Session], tmp_path: Path) -> Site:  # noqa: ARG001  # emptied
    return Site(postgres, tmp_path / "files")


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Site]:
    server = EmbeddedPostgres(tmp_path / "new")
    server.start()
    yield Site(server, tmp_path / "new-files")
    server.remove()


@pytest.fixture(scope="module")
def recipe(repository: Path) -> list[str]:
    """The commands of the section, block by block."""
    manual = (repository / "docs" / "operations.md").read_text()
    section = manual.partition("\n## Backup and restore\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Made:
    """What the old site holds."""

    completed: UUID
    running: UUID
    waiting: UUID
    file: UUID
    document: UUID
    endpoint: UUID
    secret: str


def fill(site: Site, sessions: sessionmaker[Session]) -> Made:
    store = DirectoryStore(site.files)
    endpoint, secret = add_endpoint(sessions, "https://example.org/hook")
    file_id = Service(sessions, tools(store)).file(LINES)
    with sessions.begin() as session:
        stray_parts.owner(session)
        bytes_of = documents.create_file(session, tenant_id=DEFAULT_TENANT)
        files.add_part(session, bytes_of.id, store.put(DOCUMENT), start=0, tenant_id=DEFAULT_TENANT)
        digest = sha256(DOCUMENT).digest()
        new = NewDocument(bytes_of.id, digest, len(DOCUMENT), DocumentKind.TXT, "a.txt")
        document, _ = documents.finish_upload(session, new, tenant_id=DEFAULT_TENANT, lifetime=timedelta(1))
        completed = job_in(session, JobState.COMPLETED)
        running = submit_one(session)
        assert claim_one(session).lease.job_id == running.id
        waiting = submit_one(session, spec(10))
    return Made(completed.id, running.id, waiting.id, file_id, document.id, endpoint.id, secret)


def rows(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as connection:
        return {
            name: sorted(connection.scalars(text(f"SELECT each::text FROM {name} each")))  # noqa: S608  # ours
            for name in Base.metadata.tables
        }


def parts_owner(engine: Engine) -> list[str]:
    """Of the bytes of files: the database on its server, and the installation's random id."""
    with Session(engine) as session, session.begin():
        return stray_parts.owner(session).rsplit("/", 1)


def walls(engine: Engine) -> list[list[str]]:
    with engine.connect() as connection:
        return [sorted(connection.scalars(text(query))) for query in WALLS]


def test_a_backup_restores_into_a_fresh_server(
    old: Site,
    new: Site,
    recipe: list[str],
    engine: Engine,
    sessions: sessionmaker[Session],
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
    tmp_path: Path,
) -> None:
    back_up, restore = recipe
    (backup := tmp_path / "backup").mkdir()
    made = fill(old, sessions)
    old.run(back_up, backup)
    before = rows(engine)
    new.run(restore, backup)
    restored = database.make_engine(new.settings, name="restored")
    assert rows(restored) == before
    assert walls(restored) == walls(engine)
    assert parts_owner(restored)[0] != parts_owner(engine)[0]  # another server
    assert parts_owner(restored)[1] == parts_owner(engine)[1]
    with TenantSession(restored) as session, session.begin():
        isolation.enter(session, [DEFAULT_TENANT])
        assert isolation.is_bound(session)
    with serving(new.settings, valkey.url, LONGBATCH_FILES__DIRECTORY=str(new.files)) as api:
        answers(api, made)
    goes_on(new, database.make_sessions(restored), made, tokenizer)
    restored.dispose()


def answers(api: ApiProcess, made: Made) -> None:
    """Tell what was stored: results and files."""
    with api.client() as http:
        assert http.get("/health/ready").json()["components"]["database"]["ready"]
        result = http.get(f"/v1/jobs/{ids.job_id(made.completed)}/result")
        assert result.json()["output"] == "some text"
        content = http.get(f"/v1/files/{ids.file_id(made.file)}/content")
        assert content.content == LINES


def goes_on(site: Site, sessions: sessionmaker[Session], made: Made, tokenizer: Tokenizer) -> None:
    """Run jobs, extract documents, sign webhooks."""
    extractor = Extractor(sessions, tokenizer, DirectoryStore(site.files))
    extractor.run_once()
    with sessions.begin() as session:
        assert session.get_one(Document, made.document).state == DocumentState.READY
        assert vault().open(session.get_one(WebhookEndpoint, made.endpoint).secret) == made.secret
        assert claim_one(session).lease.job_id == made.waiting
        later = database_now(session) + timedelta(days=1)
        lifecycle.rescue(session, now=later, max_rescues=5)
        assert session.get_one(Job, made.running).state == JobState.QUEUED
