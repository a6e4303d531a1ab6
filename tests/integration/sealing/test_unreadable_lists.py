"""Lists, pages of the console and reports: rows whose content nothing opens are in them, and break none."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx2
import lxml.html
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve
from asking import answers, fields
from console_pages.browser import browsing, new_key
from jobs.database import transaction
from jobs.files.storage import RowStore
from jobs.models import DEFAULT_TENANT, Summary
from jobs.tenants.keys import Scope
from owned.everything import fill
from sealed.sealers import VARIABLES
from summary_support import SMALL, claim_next, complete, create, plan_all, prepare_all, ready_document
from support import register_engine, report_service_worker

Sessions = sessionmaker[Session]

SPEC = json.loads((Path(__file__).resolve().parents[3] / "docs/openapi.json").read_text(encoding="utf-8"))
QUOTED = "The fee is 1234567."
SCHEMA = {"type": "object", "properties": {"fee": {"type": "integer"}}}
# Of no row; and of one secret alone.
LEFT_OUT = {"/metrics", "/v1/webhook_secret"}


def ended(session: Session) -> dict[str, Summary]:
    """One of each kind that has ended, by the name of its kind."""
    register_engine(session, capacity=SMALL)
    report_service_worker(session)
    (asked,) = answers.ask(session, ready_document(session, QUOTED), questions_=["What is the fee?"])
    plan_all(session)
    answers.run_jobs(session)
    (extracted,) = fields.extract(session, ready_document(session, f"{QUOTED}!"), schema=SCHEMA)
    plan_all(session)
    fields.run(session, lambda *_: json.dumps({"fee": {"quote": QUOTED, "value": 1234567}}))
    answers.settle_all(session)
    (summary,) = create(session, ready_document(session, f"{QUOTED}?"), instructions="Be brief.", focus="it")
    plan_all(session)
    prepare_all(session)
    claimed = claim_next(session)
    assert claimed is not None
    complete(session, claimed, "It is 1234567.")
    found = {"answers": asked, "extraction": extracted, "summary": summary}
    for each in found.values():
        session.refresh(each)
        assert each.state == "completed"
    return found


@pytest.fixture
def poisoned(otherwise: Sessions) -> None:
    """Every table has rows, and no key that is left opens their content."""
    with transaction(otherwise) as session:
        ended(session)
    with transaction(otherwise) as session:
        fill(session, DEFAULT_TENANT, "lost", RowStore())


@pytest.fixture
def process(serve: Serve, poisoned: None) -> Iterator[ApiProcess]:  # noqa: ARG001  # rows
    with serve(**VARIABLES) as started:
        yield started


def test_every_list_and_report_is_there(process: ApiProcess, sessions: Sessions) -> None:
    addresses = [path for path, of in SPEC["paths"].items() if "get" in of and "{" not in path]
    key = new_key(sessions, *Scope).secret
    with process.client(api_key=key) as http:
        found = {each: http.get(each) for each in addresses if each not in LEFT_OUT}
    broken = {path: answer.text for path, answer in found.items() if answer.status_code >= 500}
    assert broken == {}
    for name in ("jobs", "summaries", "answers", "extractions", "documents", "files", "batches"):
        assert found[f"/v1/{name}"].json()["data"] != [], name


def test_every_page_is_there(process: ApiProcess, sessions: Sessions) -> None:
    """All pages to which links lead; those of content that is gone say so."""
    found: dict[str, httpx2.Response] = {}
    with browsing(process, new_key(sessions, *Scope).secret) as browser:
        left = ["/console/"]
        while left:
            address = left.pop()
            found[address] = answer = browser.client.get(address)
            if "text/html" in answer.headers["content-type"] and answer.status_code == 200:
                links = lxml.html.document_fromstring(answer.text).xpath("//@href")
                left += {
                    each
                    for each in (urljoin(address, link).split("#")[0] for link in links)
                    if each.startswith("/console/") and each not in found and "/assets/" not in each
                }
                left = [*dict.fromkeys(left)]
    told, silent = set[str](), set[str]()
    for path, answer in found.items():
        if answer.status_code >= 500:
            (told if "cannot be decrypted" in answer.text else silent).add(path)
    assert silent == set()
    assert "/console/extractions" in found
    assert {path for path in told if path.split("?")[0].count("/") < len("///")} == set(), "no list is one"
    assert any("?show=prompt" in path for path in told)
