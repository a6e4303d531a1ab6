"""Encryption at rest on a whole stack: no store has a word of what was asked or answered; a key is replaced.

The search is shown to find everything while encryption is off. `make prove-encryption` runs this alone.
"""

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import numpy as np
import pytest
import zstandard
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from api_server import ApiProcess, serving
from jobs import ids
from jobs.files.storage import DirectoryStore, RowStore
from jobs.models import Job, PromptText, Result
from jobs.resealing import passes
from jobs.resealing.places import Aim
from jobs.sealing.content import ContentSealer
from jobs.sealing.keys import name_of
from jobs.settings import FileSettings, Settings
from jobs.webhooks.vault import Vault
from longbatch.cli.main import application
from openai_support import chat_line, jsonl
from sealed.keys import NEW, NEW_KEY, NEW_NAME, OLD_KEY, OLD_NAME, sealing, setting_of
from searching import stores
from searching.stores import Marks
from support import PATIENCE, eventually
from webhook_support import WEBHOOKS, Receiver
from worker_support import MODEL, WorkerProcess

pytestmark = pytest.mark.timeout(300)

# Where the search must find what was asked and answered, before it can be said to be encrypted.
STORED = {
    "texts.body",
    "texts.token_ids",
    "results.output",
    "results.output_ids",
    "webhook_events.output",
    "document_texts.body",
    "documents.title",
    "summaries.instructions",
    "summaries.focus",
    "summaries.questions",
    "summaries.schema",
}
Run = Callable[..., Any]


@dataclass
class Site:
    """A database and perhaps a directory of files, and the processes that work on them.

    Attributes:
        folder: of the parts of files; None: they are in the database.
        said: paths of the API, with what was there when it was first read.
    """

    settings: Settings
    logs: Path
    folder: Path | None
    said: dict[str, bytes] = field(default_factory=dict)

    def variables(self, keys: str, *, encrypts: bool) -> dict[str, str]:
        """What all processes and the command are given."""
        files = {} if self.folder is None else {"LONGBATCH_FILES__DIRECTORY": str(self.folder)}
        return files | {
            "LONGBATCH_DATABASE__ENCRYPT_CONTENT": str(encrypts).lower(),
            "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": keys,
        }

    @contextmanager
    def api(self, keys: str, *, encrypts: bool) -> Iterator[ApiProcess]:
        """The API with these keys."""
        assert WEBHOOKS.secret is not None
        more = {
            "LONGBATCH_WEBHOOKS__SECRET": WEBHOOKS.secret.get_secret_value(),
            "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": json.dumps(WEBHOOKS.allowed_hosts),
            "LONGBATCH_ENGINE__MODEL": MODEL,
        }
        broker = self.settings.broker.url.get_secret_value()
        with serving(
            self.settings.database, broker, **self.variables(keys, encrypts=encrypts), **more
        ) as api:
            yield api
            (self.logs / f"api-{secrets.token_hex(4)}.log").write_text("".join(api.lines))

    @contextmanager
    def workers(self, keys: str, *, encrypts: bool) -> Iterator[None]:
        """An inference and a service worker with these keys."""
        settings = self.settings.model_copy(
            update={
                "database": self.settings.database.model_copy(update={"encrypt_content": encrypts}),
                "webhooks": WEBHOOKS.model_copy(update={"encryption_key": SecretStr(keys)}),
                "files": FileSettings(directory=None if self.folder is None else str(self.folder)),
            }
        )
        made = [
            WorkerProcess(role, settings, self.logs / f"{role}-{secrets.token_hex(4)}.log")
            for role in ("inference", "service")
        ]
        try:
            yield
        finally:
            for each in made:
                each.end()

    def reseal(self, keys: str, *arguments: str) -> Mapping[str, Any]:
        """What the command prints, which finds everything as it is to be at its end."""
        url = self.settings.database.url.get_secret_value()
        done = CliRunner().invoke(
            application(),
            ("content", "reseal", "--json", *arguments),
            env={"LONGBATCH_DATABASE__URL": url, **self.variables(keys, encrypts=True)},
        )
        assert done.exit_code == 0, done.output
        found: Mapping[str, Any] = json.loads(done.stdout)
        return found

    @contextmanager
    def resealing(
        self, sessions: sessionmaker[Session], background: Callable[..., Future[object]]
    ) -> Iterator[None]:
        """Everything changes its key again and again, while others read and write it."""
        is_over = Event()

        def reseal() -> int:
            num_resealed = 0
            while not is_over.is_set():
                for keys in ([OLD_KEY, NEW_KEY], [NEW_KEY, OLD_KEY]):
                    sealer = ContentSealer(keys, seals=True)
                    store = RowStore() if self.folder is None else DirectoryStore(self.folder, sealer)
                    aim = Aim(sealer, Vault(keys), [name_of(key).hex() for key in keys])
                    tally = passes.reseal(sessions, store, aim, tell=lambda *_: None)
                    assert tally.unreadable == []
                    num_resealed += tally.num_resealed
            return num_resealed

        going_on = background(reseal)
        try:
            yield
        finally:
            is_over.set()
        num_resealed = going_on.result(PATIENCE)
        assert isinstance(num_resealed, int)
        assert num_resealed > 0

    def traces(self, sessions: sessionmaker[Session], marks: Marks) -> set[str]:
        """The columns and files that have any of it; no log ever does."""
        assert not stores.in_files(self.logs, marks)
        in_folder = {"the directory"} if self.folder and stores.in_files(self.folder, marks) else set()
        return stores.in_database(sessions, marks) | in_folder

    def read(self, http: httpx2.Client, path: str) -> httpx2.Response:
        """Read what is there for the first time."""
        answer = http.get(path)
        assert answer.status_code == 200, answer.text
        self.said[path] = answer.content
        return answer

    def read_again(self, http: httpx2.Client) -> dict[str, bytes]:
        """Everything that was read before, as it is now."""
        return {path: http.get(path).content for path in self.said}


@pytest.fixture(params=["directory", "rows"])
def site(
    request: pytest.FixtureRequest,
    feeding: Callable[..., Settings],
    sessions: sessionmaker[Session],  # noqa: ARG001  # without jobs
    tmp_path: Path,
) -> Site:
    logs = tmp_path / "logs"
    logs.mkdir()
    return Site(feeding(), logs, tmp_path / "files" if request.param == "directory" else None)


def test_no_store_has_a_word_and_all_is_read_under_a_new_key_alone(
    site: Site,
    sessions: sessionmaker[Session],
    receiver: Receiver,
    background: Callable[..., Future[object]],
) -> None:
    old, both, new = setting_of(OLD_KEY), setting_of(NEW_KEY, OLD_KEY), setting_of(NEW_KEY)
    with site.api(old, encrypts=False) as api, site.workers(old, encrypts=False), api.client() as http:
        in_plain = _everything(site, http, receiver)
    in_files = "file_parts.content" if site.folder is None else "the directory"
    assert site.traces(sessions, in_plain) >= STORED | {in_files}
    site.reseal(old)
    assert site.traces(sessions, in_plain) == set()
    with site.api(both, encrypts=True) as api, site.workers(both, encrypts=True), api.client() as http:
        with site.resealing(sessions, background):
            sealed = _everything(site, http, receiver)
        assert site.traces(sessions, sealed) == set()
        assert site.read_again(http) == site.said
    before = {each["key"]: each["values"] for each in site.reseal(both)["keys"]}
    assert (before[OLD_NAME], before[NEW_NAME] > 0) == (0, True)
    assert site.reseal(both, "--check")["keys"][1] == {
        "key": OLD_NAME,
        "values": 0,
        "is_configured": True,
        "is_newest": False,
    }
    with site.api(new, encrypts=True) as api, api.client() as http:
        assert site.read_again(http) == site.said
    for marks in (in_plain, sealed):
        assert site.traces(sessions, marks) == set()


def _everything(site: Site, http: httpx2.Client, receiver: Receiver) -> Marks:
    """Have a job read and delivered, an answer streamed, a batch run, a document summarized and asked."""
    word = f"w{secrets.token_hex(8)}"
    outputs = [
        *_job(site, http, receiver, word),
        *_stream(http, word),
        *_batch(site, http, word),
        *_summary(site, http, word),
    ]
    assert all(len(each) > 40 for each in outputs)
    job_id = ids.parse_job_id(next(reversed(receiver.at("/hook"))).event["data"]["id"])
    with sealing(site.settings.database, NEW) as opening, opening() as session:
        job = session.get_one(Job, job_id)
        text, result = session.get_one(PromptText, job.text_id), session.get_one(Result, job.id)
    assert text.token_ids is not None
    runs = [_ids(text.token_ids)[40:60], _ids(result.output_ids)[:8]]
    return Marks([word, *(each[:40] for each in outputs)], runs)


def _job(site: Site, http: httpx2.Client, receiver: Receiver, word: str) -> list[str]:
    asked = {
        "input": f"Say {word}. " * 30,
        "max_tokens": 64,
        "webhook_url": receiver.url(),
        "webhook_include_output": True,
    }
    num_before = len(receiver.at("/hook"))
    path = http.post("/v1/jobs", json=asked).headers["location"]
    eventually(lambda: len(receiver.at("/hook")) > num_before)
    output = site.read(http, f"{path}/result").json()["output"]
    assert receiver.at("/hook")[-1].event["data"]["output"] == output
    return [output]


def _stream(http: httpx2.Client, word: str) -> list[str]:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Stream {word}. " * 30}],
        "max_tokens": 64,
        "stream": True,
    }
    lines = http.post("/v1/chat/completions", json=asked).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return ["".join(one["delta"].get("content") or "" for each in chunks for one in each["choices"])]


def _batch(site: Site, http: httpx2.Client, word: str) -> list[str]:
    lines = [
        chat_line(f"line-{number}", f"List {word}. " * 10, model=MODEL, max_tokens=64) for number in "ab"
    ]
    file = {"file": ("b.jsonl", jsonl(lines))}
    file_id = http.post("/v1/files", files=file, data={"purpose": "batch"}).json()["id"]
    wanted = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    path = f"/v1/batches/{http.post('/v1/batches', json=wanted).json()['id']}"
    batch = eventually(lambda: (found := http.get(path).json())["status"] == "completed" and found)
    assert site.read(http, f"/v1/files/{file_id}/content").content == jsonl(lines)
    content = site.read(http, f"/v1/files/{batch['output_file_id']}/content").text
    ended = [json.loads(line)["response"]["body"] for line in content.splitlines()]
    return [each["choices"][0]["message"]["content"] for each in ended]


def _summary(site: Site, http: httpx2.Client, word: str) -> list[str]:
    page = f"<html><head><title>On {word}</title></head><body>{f'<p>It is {word}.</p>' * 40}</body></html>"
    made = http.post("/v1/documents", files={"file": ("page.html", page.encode())}).json()
    path = f"/v1/documents/{made['id']}"
    eventually(lambda: http.get(path).json()["state"] == "ready")
    assert site.read(http, path).json()["title"] == f"On {word}"
    assert word in site.read(http, f"{path}/text").text
    asked = {"documents": [made["id"]]}
    _ended(site, http, "answers", asked | {"questions": [f"What is {word}?"]})
    _ended(site, http, "extractions", asked | {"schema": _schema_of(word)})
    about = {"instructions": f"Mention {word}.", "focus": f"the {word}"}
    summary = _ended(site, http, "summaries", asked | about)
    found: str = site.read(http, f"{summary}/result").json()["summary"]
    return [found]


def _ended(site: Site, http: httpx2.Client, kind: str, asked: dict[str, Any]) -> str:
    """The path of what was made of a document, once it has ended."""
    (subject,) = http.post(f"/v1/{kind}", json=asked).json()["data"]
    path = f"/v1/{kind}/{subject['id']}"
    eventually(lambda: http.get(path).json()["finalized_at"])
    site.read(http, path)
    return path


def _schema_of(word: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"name": {"type": "string", "description": f"Of the {word}."}}}


def _ids(packed: bytes) -> tuple[int, ...]:
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return tuple(int(each) for each in np.frombuffer(raw, dtype="<i4"))


def test_the_search_finds_words_within_base64() -> None:
    marks = Marks(["perspicacious"])
    for before in range(7):
        assert marks.are_in(base64.b64encode(b"b" * before + b"a perspicacious reader"))
    assert not marks.are_in(base64.b64encode(b"a per-spicacious reader"))
