"""What tests of answers and extractions over HTTP share: documents, requests, and the work of workers."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx2
from sqlalchemy.orm import Session, sessionmaker

from asking.answers import settle_all
from jobs import ids
from summary_support import SMALL, plan_all, ready_document
from support import register_engine

MODEL = "llama-3.1-8b-instruct"
Background = Callable[..., Future[Any]]


def a_document(sessions: sessionmaker[Session], body: str) -> str:
    """Store a document of this text, for which there is an engine; return its id."""
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL, model=MODEL)
        return ids.document_id(ready_document(session, body).id)


def submitted(http: httpx2.Client, path: str, documents: tuple[str, ...], **body: object) -> list[Any]:
    """Submit what to ask of these documents; return what was made."""
    answer = http.post(path, json={"documents": documents, **body})
    assert answer.status_code == 202, answer.text
    found: list[Any] = answer.json()["data"]
    return found


def work(sessions: sessionmaker[Session], run: Callable[[Session], object]) -> None:
    """Do what workers would: plan, run the jobs, settle."""
    for step in (plan_all, run, settle_all):
        with sessions.begin() as session:
            step(session)
