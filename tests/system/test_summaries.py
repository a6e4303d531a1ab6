"""A text longer than the context, summarized by the real stack while its workers are killed."""

import ast
import pydoc_data.topics
import signal
import sysconfig
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from cli.stack.ready import INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.stack import Stack
from support import eventually
from system_support import Client

pytestmark = pytest.mark.timeout(400)

TIME_SCALE = 8.0
KILLS = True
MAX_CHARS: Final = 860_000  # about 200,000 tokens


def book() -> str:
    """Python's language reference, then the docstrings of its standard library."""
    parts = ["# The Python language reference\n"]
    topics = pydoc_data.topics.topics
    parts += [f"\n## {name}\n\n{topics[name].strip()}\n" for name in sorted(topics)]
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [
            f"\n### {getattr(node, 'name', file.stem)}\n\n{text}\n"
            for node in ast.walk(tree)
            if isinstance(node, kinds) and (text := ast.get_docstring(node))
        ]
        parts += [f"\n## module {file.stem}\n", *found]
    return "".join(parts)[:MAX_CHARS]


def upload(client: Client, text: str, name: str) -> str:
    sent = client.http.post(
        "/v1/documents",
        params={"filename": name},
        content=text.encode(),
        headers={"Content-Type": "text/plain"},
    )
    assert sent.status_code in {200, 202}, sent.text
    return str(sent.json()["id"])


def create(client: Client, **body: object) -> list[dict[str, Any]]:
    made = client.http.post("/v1/summaries", json=body)
    assert made.status_code == 202, made.text
    found: list[dict[str, Any]] = made.json()["data"]
    return found


def look(client: Client, summary_id: str, **params: str | int) -> dict[str, Any]:
    found = client.http.get(f"/v1/summaries/{summary_id}", params=params)
    assert found.status_code == 200, found.text
    seen: dict[str, Any] = found.json()
    return seen


def finished(client: Client, summary_id: str, *, timeout: float = 200) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        seen = look(client, summary_id, wait=5)
        return seen if seen["state"] not in {"preparing", "running"} else None

    found = eventually(ended, timeout=timeout)
    assert found is not None
    return found


def rows(stack: Stack, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.urls.database_url or "") as connection:
        return connection.execute(query).fetchall()


COMPLETED = (
    "SELECT j.id, j.started_at, j.finalized_at, r.output FROM jobs j JOIN results r ON r.job_id = j.id"
    " WHERE j.summary_id IS NOT NULL AND j.state = 'completed'"
)


def test_200k_tokens_survive_kills_and_no_finished_chunk_is_repeated(stack: Stack, client: Client) -> None:
    text = book()
    document = upload(client, text, "reference.txt")
    (made,) = create(client, documents=[document], length=300)
    for num_done, victim in ((2, SERVICE_WORKER), (5, INFERENCE_WORKER), (8, SERVICE_WORKER)):
        eventually(
            lambda at_least=num_done: look(client, made["id"])["progress"]["completed"] >= at_least,
            timeout=120,
        )
        before = set(rows(stack, COMPLETED))
        num_before = len(before)
        stack.send(victim, signal.SIGKILL)
        eventually(
            lambda more_than=num_before: look(client, made["id"])["progress"]["completed"] > more_than,
            timeout=120,
        )
        assert before <= set(rows(stack, COMPLETED)), "what was finished stays as it was"
    ended = finished(client, made["id"])
    assert (ended["state"], ended["gaps"]) == ("completed", [])
    assert ended["summary"]
    assert ended["usage"]["prompt_tokens"] > 190_000
    joined = "".join(text[chunk["start"] : chunk["end"]] for chunk in ended["chunks"])
    assert joined == text, "every character stands in one chunk"
    assert all(chunk["state"] == "completed" and chunk["summary"] for chunk in ended["chunks"])
    (num_jobs,) = rows(stack, "SELECT count(*) FROM jobs WHERE summary_id IS NOT NULL")[0]
    assert num_jobs == ended["plan"]["jobs"], "nothing was tried twice"
    told = rows(stack, "SELECT type FROM webhook_events WHERE summary_id IS NOT NULL")
    assert told == [("summary.completed",)]
    stored = client.http.get(f"/v1/documents/{document}/text").text
    assert stored == text
    eventually(lambda: rows(stack, "SELECT count(*) FROM reservations") == [(0,)], interval=0.2)


def test_what_was_estimated_is_what_is_planned(client: Client) -> None:
    document = upload(client, book(), "reference.txt")
    body = {"documents": [document], "chunk_tokens": 6000, "overlap_tokens": 200}
    foretold = client.http.post("/v1/summaries/estimate", json=body).json()
    (made,) = create(client, **body)
    eventually(lambda: look(client, made["id"])["plan"])
    seen = client.http.post(f"/v1/summaries/{made['id']}/cancel").json()
    assert foretold["is_exact"]
    for name in ("chunks", "levels", "jobs", "prompt_tokens", "chunk_tokens"):
        assert foretold[name] == seen["plan"][name], name
    assert finished(client, made["id"])["state"] == "cancelled"
