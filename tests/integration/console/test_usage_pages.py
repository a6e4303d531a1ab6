"""The page of usage and its CSV: whose usage, of which days, and what a spreadsheet makes of it."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from console_pages.browser import PROBE, Browser, browsing, new_key, new_tenant, words
from jobs.models import DEFAULT_TENANT, Tenant
from jobs.models.tenant import UsageDay, UsageEntry
from jobs.tenants.keys import Scope

PAGE = "/console/usage"
DAY = date(2026, 1, 31)
RANGE = "?start=2026-01-01&end=2026-01-31"


@pytest.fixture
def tenant(sessions: sessionmaker[Session]) -> tuple[UUID, str]:
    """A tenant's id and name."""
    tenant_id = new_tenant(sessions)
    with sessions() as session:
        return tenant_id, session.get_one(Tenant, tenant_id).name


@pytest.fixture
def reader(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone of the default tenant."""
    with browsing(server, new_key(sessions, Scope.READ).secret) as signed_in:
        yield signed_in


@pytest.fixture
def operator(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    with browsing(server, new_key(sessions, Scope.READ, Scope.OPERATOR).secret) as signed_in:
        yield signed_in


def used(
    sessions: sessionmaker[Session],
    tenant_id: UUID = DEFAULT_TENANT,
    *,
    day: date = DAY,
    model: str = "m",
    state: str = "completed",
    tokens: int = 1000,
) -> None:
    """A tenant's two jobs of a day: one summed up already, one not yet."""
    half = {"day": day, "model": model, "state": state, "num_jobs": 1, "cached_tokens": 10}
    with sessions.begin() as session:
        for table in (UsageDay, UsageEntry):
            session.add(table(tenant_id=tenant_id, prompt_tokens=tokens, completion_tokens=5, **half))


def by_day(browser: Browser, query: str = RANGE) -> list[list[str]]:
    rows = browser.page(PAGE + query).xpath("//section[@aria-labelledby='by_day']//tbody/tr")
    return [[words(cell) for cell in row] for row in rows]


def lines(browser: Browser, query: str = RANGE) -> list[dict[str, str]]:
    answer = browser.client.get(f"{PAGE}.csv{query}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="usage-')
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_a_tenant_sees_its_own_usage_and_an_operator_that_of_all_or_one(
    reader: Browser, operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    used(sessions)
    used(sessions, tenant[0], tokens=5000)
    assert by_day(reader) == [["2026-01-31", "m", "2", "0", "0", "0", "2,000", "20", "10"]]
    assert by_day(operator) == [["2026-01-31", "m", "4", "0", "0", "0", "12,000", "40", "20"]]
    assert by_day(operator, f"{RANGE}&tenant={tenant[1]}")[0][6] == "10,000"
    most = operator.page(PAGE + RANGE).xpath("//section[@aria-labelledby='by_tenant']//tbody/tr/th")
    assert [words(each) for each in most] == [tenant[1], "default"]
    assert not reader.page(PAGE + RANGE).xpath("//section[@aria-labelledby='by_tenant']")


def test_a_tenant_chooses_no_other(reader: Browser, operator: Browser, tenant: tuple[UUID, str]) -> None:
    for name in (tenant[1], "none-such", PROBE):
        for address in (PAGE, f"{PAGE}.csv"):
            answer = reader.client.get(address, params={"tenant": name})
            assert answer.status_code == 404
    reader.page(f"{PAGE}?tenant=default")
    operator.page(f"{PAGE}?tenant=none-such", status=404)


def test_a_row_counts_the_jobs_of_each_end_and_names_the_model_as_text(
    reader: Browser, sessions: sessionmaker[Session]
) -> None:
    used(sessions, model=PROBE)
    used(sessions, model=PROBE, state="failed")
    ((_, model, completed, failed, *_),) = by_day(reader)
    assert (model, completed, failed) == (" ".join(PROBE.split()), "2", "2")


def test_the_curve_has_every_day_of_the_range(reader: Browser, sessions: sessionmaker[Session]) -> None:
    used(sessions)
    (text,) = reader.page(PAGE + RANGE).xpath("//figure/@data-curve")
    curve = json.loads(text)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    assert curve["x"] == [int((first + timedelta(days=each)).timestamp()) for each in range(31)]
    prompt, output = (each["values"] for each in curve["series"])
    assert (prompt[:30], prompt[30], output[30]) == ([0] * 30, 2000, 10)


def test_the_csv_has_a_line_for_each_day_tenant_and_model(
    reader: Browser, operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    used(sessions, day=DAY - timedelta(days=1))
    used(sessions)
    used(sessions, state="failed")
    used(sessions, tenant[0])
    own = lines(reader)
    assert [(each["date"], each["tenant"], each["completed_jobs"], each["failed_jobs"]) for each in own] == [
        ("2026-01-31", "default", "2", "2"),
        ("2026-01-30", "default", "2", "0"),
    ]
    assert own[0]["total_tokens"] == "4020"
    assert {each["tenant"] for each in lines(operator)} == {"default", tenant[1]}
    assert {each["tenant"] for each in lines(operator, f"{RANGE}&tenant={tenant[1]}")} == {tenant[1]}


@pytest.mark.parametrize("model", ["=1+1", "+1", "-1", "@a", "\t=1"])
def test_no_cell_of_the_csv_is_a_formula(
    reader: Browser, sessions: sessionmaker[Session], model: str
) -> None:
    used(sessions, model=model)
    ((line),) = lines(reader)
    assert line["model"] == f"'{model}"


@pytest.mark.parametrize(
    "query",
    [
        "?start=x",
        "?end=2026-02-30",
        "?start=2026-02-01&end=2026-01-01",
        "?start=2024-01-01&end=2026-01-01",
        "?end=0001-01-01&start=9999-12-31",
        "?start=0001-01-01",
    ],
)
def test_a_range_that_is_none_is_refused(reader: Browser, query: str) -> None:
    reader.page(PAGE + query, status=400)
    assert reader.client.get(f"{PAGE}.csv{query}").status_code == 400


def test_a_year_of_a_tenant_may_be_read_but_of_all_a_quarter(operator: Browser) -> None:
    year = "?start=2025-02-01&end=2026-01-31"
    operator.page(f"{PAGE}{year}&tenant=default")
    page = operator.page(PAGE + year, status=400)
    assert "At most 92 days" in words(page)
    operator.page(f"{PAGE}?start=2025-11-01&end=2026-01-31")


def test_the_earliest_days_are_days_too(reader: Browser) -> None:
    assert reader.page(f"{PAGE}?end=0001-01-02").xpath("//*[@class='empty']")
