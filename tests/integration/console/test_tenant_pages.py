"""The pages of tenants: limits, queues and keys, who sees whose and who changes them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from console_pages.browser import PROBE, Browser, browsing, checked, new_key, new_tenant, words
from jobs import tenants
from jobs.models import ApiKey, Tenant, TenantLimit
from jobs.models.tenant import UsageDay, UsageEntry
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from support import submit_one

LIST = "/console/tenants"
LIMITS = {"max_enqueued_tokens": "", "max_jobs": "", "max_requests": "", "max_stored_bytes": ""}


@pytest.fixture
def operator_key(sessions: sessionmaker[Session]) -> NewKey:
    return new_key(sessions, Scope.READ, Scope.OPERATOR, name="ops")


@pytest.fixture
def operator(server: ApiProcess, operator_key: NewKey) -> Iterator[Browser]:
    """Someone who sees all tenants, and owns nothing."""
    with browsing(server, operator_key.secret) as signed_in:
        yield signed_in


@pytest.fixture
def tenant(sessions: sessionmaker[Session]) -> tuple[UUID, str]:
    """A tenant's id and name."""
    tenant_id = new_tenant(sessions)
    with sessions() as session:
        return tenant_id, session.get_one(Tenant, tenant_id).name


@pytest.fixture
def owner(server: ApiProcess, sessions: sessionmaker[Session], tenant: tuple[UUID, str]) -> Iterator[Browser]:
    """Someone of the tenant, who may change what is its own."""
    key = new_key(sessions, Scope.READ, Scope.SUBMIT, tenant_id=tenant[0])
    with browsing(server, key.secret) as signed_in:
        yield signed_in


@pytest.fixture
def reader(
    server: ApiProcess, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> Iterator[Browser]:
    """Someone of the tenant with a key that may only read."""
    with browsing(server, new_key(sessions, Scope.READ, tenant_id=tenant[0]).secret) as signed_in:
        yield signed_in


def table(browser: Browser, address: str, section: str) -> list[list[str]]:
    rows = browser.page(address).xpath(f"//section[@aria-labelledby='{section}']//tbody/tr")
    return [[words(cell) for cell in row] for row in rows]


def test_operators_page_through_all_tenants_without_gaps(
    operator: Browser, sessions: sessionmaker[Session]
) -> None:
    for _ in range(60):
        new_tenant(sessions)
    seen, following = [], [LIST]
    while following:
        page = operator.page(following[0])
        seen += page.xpath("//tbody//td[1]/a/text()")
        following = page.xpath("//a[@rel='next']/@href")
    with sessions() as session:
        assert seen == session.scalars(select(Tenant.name).order_by(Tenant.id.desc())).all()


def test_the_list_says_what_tenants_used_today_and_whose_queue_is_paused(
    operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    today = datetime.now(UTC).date()
    used = {"tenant_id": tenant[0], "day": today, "model": "m", "num_jobs": 2, "prompt_tokens": 1000}
    with sessions.begin() as session:
        session.add(UsageDay(**used, state="completed", cached_tokens=0, completion_tokens=200))
        session.add(UsageEntry(**used, state="failed", cached_tokens=0, completion_tokens=34))
        tenants.set_limits(session, tenant[0], {"max_jobs": 12_345})
    operator.post(f"{LIST}/{tenant[1]}/queue/pause", reason=PROBE)
    (row,) = operator.page(LIST).xpath(f"//tbody/tr[td[1]/a='{tenant[1]}']")
    assert [words(each) for each in row] == [
        tenant[1],
        f"paused {PROBE}",
        "0",
        "1",
        "unfinished jobs: 12,345",
        "4",
        "2,234",
    ]


def test_a_name_or_an_id_leads_to_its_tenant(operator: Browser, tenant: tuple[UUID, str]) -> None:
    answer = operator.client.get(LIST, params={"name": f" {tenant[1]} "})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{LIST}/{tenant[1]}")
    operator.page(f"{LIST}?name=none-such", status=404)
    operator.page(f"{LIST}?after=tenant_x", status=400)


def test_all_others_are_led_to_their_own_and_find_no_other(owner: Browser, tenant: tuple[UUID, str]) -> None:
    answer = owner.client.get(LIST, params={"name": "default"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{LIST}/{tenant[1]}")
    assert "Limits and keys" in words(owner.page(f"{LIST}/{tenant[1]}").xpath("//header/nav")[0])
    for other in ("default", "none-such", PROBE.replace("/", "")):
        assert "There is no such tenant." in words(owner.page(f"{LIST}/{other}", status=404))
    assert owner.post(f"{LIST}/default/queue/pause", reason="x").status_code == 404
    assert owner.post(f"{LIST}/default/queue/resume").status_code == 404


def test_a_tenant_is_created_and_its_first_key_is_shown_once(
    operator: Browser, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    name = f"made-{datetime.now(UTC):%H%M%S%f}"
    answer = operator.post(LIST, name=name)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{LIST}/{name}")
    made = operator.post(f"{LIST}/{name}/keys", name=PROBE, scope_read="yes", lifetime="86400")
    assert made.status_code == 200
    (secret,) = checked(made).xpath("//*[@class='secret']/text()")
    with sessions() as session:
        row = session.scalars(select(ApiKey).where(ApiKey.handle == keys.handle_of(secret))).one()
        assert (row.name, row.scopes) == (PROBE, ["read"])
        assert row.expires_at is not None
    with browsing(server, secret) as theirs:
        theirs.page(f"{LIST}/{name}")
    page = operator.page(f"{LIST}/{name}")
    assert keys.public_id(row) in words(page)
    assert secret not in page.text_content()


@pytest.mark.parametrize("name", ["", PROBE, "a b", "default", "x" * 64])
def test_a_name_that_breaks_the_rules_or_is_taken_is_refused_and_shown_again(
    operator: Browser, name: str
) -> None:
    answer = operator.post(LIST, name=name)
    assert answer.status_code == (409 if name == "default" else 400)
    page = checked(answer)
    assert page.xpath("//*[@role='alert']")
    assert page.xpath("//input[@id='name']/@value") == [name]


@pytest.mark.parametrize(
    "fields",
    [
        {"scope_read": "yes", "lifetime": "1"},
        {"lifetime": ""},
        {"scope_read": "yes", "lifetime": "", "name": "x" * 201},
        {"scope_read": "yes", "lifetime": "", "name": "a\x1b[2J"},
    ],
    ids=str,
)
def test_a_key_that_the_form_cannot_mean_is_refused(
    operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str], fields: dict[str, str]
) -> None:
    answer = operator.post(f"{LIST}/{tenant[1]}/keys", **fields)
    assert answer.status_code == 400
    assert checked(answer).xpath("//*[@role='alert']")
    with sessions() as session:
        assert session.scalars(select(ApiKey).where(ApiKey.tenant_id == tenant[0])).all() == []


def test_a_key_is_revoked_after_one_was_asked(
    operator: Browser, server: ApiProcess, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    made = new_key(sessions, Scope.READ, tenant_id=tenant[0], name=PROBE)
    (ask,) = operator.page(f"{LIST}/{tenant[1]}").xpath("//a[contains(@href, 'revoke')]/@href")
    (action,) = operator.page(ask).xpath("//form[contains(@action, 'revoke')]/@action")
    with browsing(server, made.secret):
        assert operator.post(action).headers["location"] == f"{LIST}/{tenant[1]}"
        with sessions() as session:
            assert session.get_one(ApiKey, made.row.id).revoked_at is not None
    page = operator.page(f"{LIST}/{tenant[1]}")
    assert "revoked" in words(page)
    assert not page.xpath("//a[contains(@href, 'revoke')]")


def test_a_key_is_limited_and_its_limit_taken_back(
    operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    address = f"{LIST}/{tenant[1]}"
    made = operator.post(f"{address}/keys", name="a", scope_read="yes", lifetime="", max_requests="7")
    assert made.status_code == 200
    (ask,) = operator.page(address).xpath("//a[contains(@href, '/limits')]/@href")

    def limit() -> int | None:
        with sessions() as session:
            return session.scalars(select(ApiKey.max_requests).where(ApiKey.tenant_id == tenant[0])).one()

    assert limit() == 7
    assert operator.page(ask).xpath("//input[@id='max_requests']/@value") == ["7"]
    assert operator.post(ask, max_requests="1234").headers["location"] == address
    assert (limit(), "1,234" in words(operator.page(address))) == (1234, True)
    for wrong in ("0", "x", "-1", "99999999999"):
        refused = checked(operator.post(ask, max_requests=wrong))
        assert "max_requests" in words(refused) or "requests a minute" in words(refused)
        assert refused.xpath("//*[@role='alert']"), wrong
        assert refused.xpath("//input[@id='max_requests']/@value") == [wrong]
        assert limit() == 1234
    operator.post(ask, max_requests="")
    assert limit() is None
    operator.post(ask, max_jobs="12345", max_enqueued_tokens="0")
    with sessions() as session:
        row = session.scalars(select(ApiKey).where(ApiKey.tenant_id == tenant[0])).one()
        assert keys.limits_of(row) == {"max_enqueued_tokens": 0, "max_jobs": 12345, "max_requests": None}
    page = operator.page(address)
    assert "0 of 12,345" in words(page)
    assert page.xpath("//input[@id='max_jobs']/@value") == [""], "the tenant's own"
    wrong = checked(operator.post(f"{address}/keys", scope_read="yes", lifetime="", max_jobs="x"))
    assert "unfinished jobs" in words(wrong)
    assert wrong.xpath("//input[@id='key_max_jobs']/@value") == ["x"]
    assert wrong.xpath("//input[@id='max_jobs']/@value") == [""]
    operator.page(ask.replace(tenant[1], "default"), status=404)


def test_a_key_is_found_below_its_own_tenant_alone_and_never_revokes_itself(
    operator: Browser, operator_key: NewKey, tenant: tuple[UUID, str]
) -> None:
    own = keys.public_id(operator_key.row)
    operator.page(f"{LIST}/{tenant[1]}/keys/{own}/revoke", status=404)
    operator.page(f"{LIST}/{tenant[1]}/keys/lb_x/revoke", status=404)
    assert operator.post(f"{LIST}/{tenant[1]}/keys/{own}/revoke").status_code == 404
    assert not operator.page(f"{LIST}/default/keys/{own}/revoke").xpath("//form[contains(@action, 'revoke')]")
    assert operator.post(f"{LIST}/default/keys/{own}/revoke").status_code == 409


def test_limits_are_set_and_taken_back(
    operator: Browser, owner: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    address = f"{LIST}/{tenant[1]}"
    with sessions.begin() as session:
        submit_one(session, tenant_id=tenant[0])
    answer = operator.post(f"{address}/limits", **LIMITS | {"weight": "2.5", "max_jobs": "12345"})
    assert answer.headers["location"] == address
    assert table(owner, address, "limits")[1] == ["unfinished jobs", "1", "12,345", "this tenant"]
    with sessions() as session:
        assert session.get_one(Tenant, tenant[0]).weight == 2.5
    operator.post(f"{address}/limits", **LIMITS | {"weight": "2.5"})
    assert table(owner, address, "limits")[1] == ["unfinished jobs", "1", "500,000", "all tenants"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_jobs": "-1"},
        {"max_jobs": "many"},
        {"max_jobs": "9" * 21},
        {"max_jobs": str(2**31)},
        {"max_requests": "0"},
        {"max_stored_bytes": PROBE},
        {"weight": "0"},
        {"weight": "nan"},
        {"weight": "x"},
    ],
    ids=str,
)
def test_a_wrong_limit_is_refused_and_the_form_keeps_what_was_typed(
    operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str], wrong: dict[str, str]
) -> None:
    answer = operator.post(f"{LIST}/{tenant[1]}/limits", **LIMITS | {"weight": "1"} | wrong)
    assert answer.status_code == 400
    page = checked(answer)
    ((name, value),) = wrong.items()
    assert page.xpath(f"//input[@id='{name}']/@value") == [value]
    assert page.xpath("//*[@role='alert']")
    with sessions() as session:
        assert session.get(TenantLimit, tenant[0]) is None


def test_a_queue_is_paused_by_its_owner_and_resumed_by_an_operator_but_not_the_other_way(
    operator: Browser, owner: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    address = f"{LIST}/{tenant[1]}"
    owner.post(f"{address}/queue/pause", reason="a mistake")
    assert "paused" in words(operator.page(address))
    assert operator.post(f"{address}/queue/resume").headers["location"] == address
    assert "Jobs start again." in words(operator.page(address))
    operator.post(f"{address}/queue/drain", reason=f"ops {PROBE}")
    page = owner.page(address)
    assert f"ops {PROBE}" in words(page)
    assert "drained" in words(page)
    assert owner.post(f"{address}/queue/resume").status_code == 409
    with sessions() as session:
        assert session.get_one(Tenant, tenant[0]).halt == "drain"


@pytest.mark.parametrize("reason", ["", " ", "x" * 301, "a\nb"])
def test_a_queue_is_not_paused_without_a_reason_of_one_line(
    owner: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str], reason: str
) -> None:
    answer = owner.post(f"{LIST}/{tenant[1]}/queue/pause", reason=reason)
    assert answer.status_code == 400
    assert checked(answer).xpath("//*[@role='alert']")
    with sessions() as session:
        assert session.get_one(Tenant, tenant[0]).halt is None


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(
    reader: Browser, owner: Browser, tenant: tuple[UUID, str]
) -> None:
    address = f"{LIST}/{tenant[1]}"
    assert reader.page(address).xpath("//form[@method='post']/@action") == ["/console/sign-out"]
    assert reader.post(f"{address}/queue/pause", reason="x").status_code == 403
    assert reader.post(f"{address}/queue/resume").status_code == 403
    key, limits = (f"{address}/keys/lb_{'0' * 16}/{verb}" for verb in ("revoke", "limits"))
    for each in (reader, owner):
        for page in (key, limits):
            each.page(page, status=403)
        for form in (LIST, f"{address}/limits", f"{address}/keys", key, limits):
            assert each.post(form, name="x").status_code == 403, form


def test_a_tenant_pages_through_its_own_keys(
    owner: Browser, operator: Browser, sessions: sessionmaker[Session], tenant: tuple[UUID, str]
) -> None:
    for _ in range(55):
        new_key(sessions, Scope.READ, tenant_id=tenant[0])
    with sessions() as session:
        made = select(ApiKey).where(ApiKey.tenant_id == tenant[0]).order_by(ApiKey.id.desc())
        wanted = [keys.public_id(each) for each in session.scalars(made)]
    for each in (owner, operator):
        seen, following = [], [f"{LIST}/{tenant[1]}"]
        while following:
            page = each.page(following[0])
            seen += page.xpath("//section[@aria-labelledby='keys']//tbody//td[1]/code/text()")
            following = page.xpath("//a[@rel='next']/@href")
        assert seen == wanted
    owner.page(f"{LIST}/{tenant[1]}?after=lb_{'0' * 16}", status=400)
