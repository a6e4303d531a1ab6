"""The pages of engines: the packing as a picture, whose jobs it names, and orders."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from threading import Event
from urllib.parse import quote
from uuid import UUID

import pytest
from lxml.html import HtmlElement
from sqlalchemy.orm import Session, sessionmaker

import ending
from api.console.engines.activity import engine_id, read_activities
from api_server import ApiProcess
from console_pages.browser import PROBE, Browser, browsing, new_key, new_tenant, words
from jobs import ids
from jobs.adapters import registry as adapters
from jobs.adapters.files import check
from jobs.checkpoints import Output
from jobs.engines import reservations
from jobs.models import DEFAULT_TENANT, Address, Job, Reservation
from jobs.prompts.abilities import ABILITIES
from jobs.scheduling import tick
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from support import (
    ENGINE,
    ERROR,
    MODEL,
    PATIENCE,
    POLICY,
    claim_one,
    eventually,
    output_of,
    register_engine,
    spec,
    submit_one,
)
from weights.adapters import write_peft_adapter

PAGE = f"/console/engines/{ENGINE}"


@pytest.fixture
def operator(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone who sees the rows of all tenants."""
    with browsing(server, new_key(sessions, Scope.READ, Scope.OPERATOR, name="ops").secret) as signed_in:
        yield signed_in


@pytest.fixture
def visitor(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone of the default tenant who may change what is its own."""
    with browsing(server, new_key(sessions, Scope.READ, Scope.SUBMIT).secret) as signed_in:
        yield signed_in


def run_one(session: Session, tenant_id: UUID, prompt_tokens: int = 100) -> Lease:
    submit_one(session, spec(prompt_tokens), tenant_id=tenant_id)
    return claim_one(session).lease


@pytest.fixture
def packed(sessions: sessionmaker[Session]) -> dict[str, str]:
    """Jobs of two tenants on one engine: one that is over, one that runs, one that waits, of each."""
    other = new_tenant(sessions)
    found: dict[str, str] = {}
    with sessions.begin() as session:
        register_engine(session)
        for whose, tenant_id in (("mine", DEFAULT_TENANT), ("theirs", other)):
            over = run_one(session, tenant_id)
            ending.fail(session, over, ERROR)
            reservations.close(session, over.lease_id)
            running = run_one(session, tenant_id, 60_000)
            waiting = submit_one(session, spec(90_000), tenant_id=tenant_id)
            found |= {
                f"{whose} over": ids.job_id(over.job_id),
                f"{whose} running": ids.job_id(running.job_id),
                f"{whose} waiting": ids.job_id(waiting.id),
            }
    return found


def bars(page: HtmlElement, kind: str) -> list[str]:
    """What the bars of this kind say, in the pool of blocks."""
    return [words(each) for each in page.xpath(f"//svg[@class='blocks']//rect[@class='{kind}']")]


def forecast_page(someone: Browser, job_id: str) -> HtmlElement:
    """The engine's page once the forecast, which is a second old at most, has this job."""
    return eventually(lambda: job_id in words(page := someone.page(PAGE)) and [page])[0]


def test_an_operator_sees_what_ran_runs_and_waits(operator: Browser, packed: dict[str, str]) -> None:
    page = forecast_page(operator, packed["mine waiting"])
    for whose in ("mine", "theirs"):
        assert any(packed[f"{whose} over"] in each for each in bars(page, "failed"))
        assert any(packed[f"{whose} running"] in each for each in bars(page, "reading"))
    coming = [*bars(page, "next"), *bars(page, "kept")]
    waiting = words(page.xpath("//section[@aria-labelledby='following']")[0])
    for whose in ("mine", "theirs"):
        assert packed[f"{whose} waiting"] in waiting
        assert any(packed[f"{whose} waiting"] in each for each in coming)
    assert "what gets free is kept for it" in waiting
    assert "Slots: 2 of 4" in words(page)
    listed = operator.page("/console/engines")
    assert listed.xpath(f"//a[@href='{PAGE}']")
    assert "2 / 4" in words(listed)


def test_others_see_other_tenants_jobs_as_bars_without_name(
    visitor: Browser, operator: Browser, packed: dict[str, str]
) -> None:
    forecast_page(visitor, packed["mine waiting"])
    answer = visitor.client.get(PAGE).text
    for name, job_id in packed.items():
        assert (job_id in answer) == name.startswith("mine"), name
    page = visitor.page(PAGE)
    assert "another tenant's job: " in bars(page, "reading other")[0]
    assert len(bars(page, "other")) == 1
    ended = words(page.xpath("//section[@aria-labelledby='over']")[0])
    assert packed["mine over"] in ended
    assert ended.count("failed") == 1
    following = words(page.xpath("//section[@aria-labelledby='following']")[0])
    assert "another tenant'swaits" in following
    assert not page.xpath("//form[contains(@action, 'engines')]")
    assert operator.page(PAGE).xpath("//form[contains(@action, 'engines')]")


def test_an_operator_pauses_it_and_jobs_say_why_they_wait_until_it_is_resumed(
    visitor: Browser, operator: Browser, packed: dict[str, str]
) -> None:
    answer = operator.post(f"{PAGE}/pause", reason=f"new driver {PROBE}")
    assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
    for someone in (operator, visitor):
        page = words(someone.page(PAGE))
        assert "paused" in page
        assert "new driver" in page
        assert "No job starts on it until it is resumed." in page
    assert "new driver" in words(visitor.page("/console/engines"))
    assert operator.post(f"{PAGE}/drain", reason="new disk").status_code == 303
    assert "draining" in words(operator.page(PAGE))
    waiting = f"/console/jobs/{packed['mine waiting']}"
    why = f"engine {ENGINE} paused by ops: new disk"
    eventually(lambda: why in words(visitor.page(waiting)))
    assert operator.post(f"{PAGE}/resume").status_code == 303
    assert "new disk" not in words(visitor.page(PAGE))


@pytest.mark.parametrize("verb", ["pause", "drain", "resume"])
def test_only_operators_give_orders(visitor: Browser, packed: dict[str, str], verb: str) -> None:  # noqa: ARG001  # they run
    assert visitor.post(f"{PAGE}/{verb}", reason="mine").status_code == 403
    assert "mine" not in words(visitor.page(PAGE))


@pytest.mark.parametrize("reason", ["", " ", "x" * 301, "two\nlines"])
def test_a_reason_that_is_none_is_refused_beside_the_form(
    operator: Browser,
    packed: dict[str, str],  # noqa: ARG001  # they run
    reason: str,
) -> None:
    answer = operator.post(f"{PAGE}/pause", reason=reason)
    assert answer.status_code == 400
    assert "reason" in answer.text
    assert "paused" not in words(operator.page(PAGE))


def test_what_is_not_there_is_not_found(operator: Browser, packed: dict[str, str]) -> None:  # noqa: ARG001  # they run
    for name in ("engine-z", quote(PROBE, safe=""), "a/b"):
        operator.page(f"/console/engines/{name}", status=404)
        assert operator.client.get(f"/console/engines/{name}/live").status_code == 404
        assert operator.post(f"/console/engines/{name}/pause", reason="x").status_code == 404
        assert operator.post(f"/console/engines/{name}/resume").status_code == 404
    operator.page(f"{PAGE}?span=x", status=400)
    for span in ("minute", "quarter", "hour", "day"):
        operator.page(f"{PAGE}?span={span}")


def test_an_engine_of_any_name_has_its_page(operator: Browser, sessions: sessionmaker[Session]) -> None:
    name = f"rack/1 {PROBE}"
    with sessions.begin() as session:
        register_engine(session, name)
    (address,) = operator.page("/console/engines").xpath("//tbody//a/@href")
    assert words(operator.page(address).xpath("//h1")[0]) == f"Engine {' '.join(name.split())}"
    assert operator.post(f"{address}/pause", reason="here too").status_code == 303
    assert "here too" in words(operator.page(address))


def test_the_picture_moves_when_a_run_ends(
    operator: Browser,
    sessions: sessionmaker[Session],
    running: Lease,
    background: Callable[..., Future[object]],
) -> None:
    (address,) = operator.page(PAGE).xpath("//*[@id='packing']/@*[name()='hx-sse:connect']")
    opened = Event()

    def watch() -> str:
        found = ""
        with operator.client.stream("GET", address, headers={"Accept": "text/event-stream"}) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                found += line
                if "Slots: 1 of" in found:
                    opened.set()
                if '<rect class="completed"' in found:
                    return found
        raise AssertionError(found)

    following = background(watch)
    assert opened.wait(PATIENCE)
    output: Output = output_of("x")
    with sessions.begin() as session:
        ended = ending.completed(running, output, since_first_token=timedelta(0))
        tick.tick(session, ENGINE, POLICY, ended=[ended])
    assert "Slots: 0 of 4" in str(following.result(PATIENCE))


def test_blocks_that_jobs_share_count_once(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session)
        leases = [run_one(session, DEFAULT_TENANT, 640) for _ in range(3)]
        for lease in leases[:2]:
            session.get_one(Job, lease.job_id).family = b"12345678"
            held = session.get_one(Reservation, lease.lease_id)
            held.blocks, held.shared_blocks = 12, 10
        session.flush()
        (engine,) = read_activities(session, [engine_id(ENGINE)]).values()
        whole = engine.held[2].blocks
        assert engine.blocks_held == 10 + 2 + 2 + whole
        assert read_activities(session, [UUID(int=1)]) == {}


def test_adapters_are_listed_with_why_requests_for_them_are_refused(
    operator: Browser, visitor: Browser, sessions: sessionmaker[Session], tmp_path: Path
) -> None:
    assert "Adapters" not in words(operator.page("/console/engines"))
    with sessions.begin() as session:
        register_engine(session, takes=ABILITIES, adapters=["legal"])
        for seed, name in enumerate(("legal", "medical")):
            path = write_peft_adapter(tmp_path / name, seed=seed)
            adapters.add(session, Address(MODEL, name), check(path), source=str(path))
    shown = words(operator.page("/console/engines"))
    assert f"{MODEL}:legal accepted peft 4" in shown
    assert f"{MODEL}:medical refused: model: not every engine of the model" in shown
    mine = words(visitor.page("/console/engines"))
    assert f"{MODEL}:legal accepted" in mine
    assert "medical" not in mine
    with sessions.begin() as session:
        adapters.limit(session, DEFAULT_TENANT, [])
    assert f"{MODEL}:legal" not in words(visitor.page("/console/engines"))
    assert "Of adapters its jobs may name none" in words(operator.page("/console/tenants/default"))
