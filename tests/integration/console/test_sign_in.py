"""Who sees the console: sessions, links that sign in once, forms of other sites, headers."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256

import httpx2
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from api.console.assets import assets
from api.console.headers import POLICY
from api.console.session import COOKIE
from api_server import ApiProcess, Serve
from console_pages.browser import PROBE, SAME_ORIGIN, Browser, browsing, checked, every_route, new_key, words
from jobs.database import database_now
from jobs.models import ConsoleSession, ConsoleSignInCode
from jobs.settings import Settings
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from longbatch.cli.main import application
from support import API_KEY
from worker.maintenance import JobMaintenance

OPEN = {"/console", "/console/sign-in", "/console/codes", "/console/assets/{name}"}


@pytest.fixture
def stranger(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:  # noqa: ARG001  # none signed in
    with browsing(server, None) as browser:
        yield browser


@pytest.fixture
def visitor(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:  # noqa: ARG001  # without jobs
    with browsing(server) as signed_in:
        yield signed_in


def leads_to_form(answer: httpx2.Response) -> bool:
    return answer.status_code == 303 and answer.headers["location"].startswith("/console/sign-in")


def test_every_route_but_the_open_ones_leads_to_the_form_without_a_session(stranger: Browser) -> None:
    behind = [(method, path) for method, path in every_route() if path not in OPEN]
    assert len(behind) > 5
    for method, path in behind:
        answer = stranger.client.request(method, re.sub(r"\{[^}]*\}", "x", path), headers=SAME_ORIGIN)
        assert leads_to_form(answer), (method, path, answer.status_code)


@pytest.mark.parametrize("path", ["", "jobs", "jobs/job_x", "engines", "tenants", "no/such/page?a=b"])
def test_without_a_session_every_page_leads_to_the_form_and_back(stranger: Browser, path: str) -> None:
    answer = stranger.client.get(f"/console/{path}")
    assert leads_to_form(answer)
    form = stranger.page(answer.headers["location"])
    (field,) = form.xpath("//input[@name='api_key']")
    assert field.get("type") == "password"
    (wanted,) = form.xpath("//input[@name='next']/@value")
    assert wanted == f"/console/{path}"
    signed_in = stranger.sign_in(next=wanted)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, f"/console/{path}")


@pytest.mark.parametrize(
    "elsewhere", ["https://a.example/", "//a.example/", "/v1/jobs", "/console/\\a", "/console/\n"]
)
def test_signing_in_leads_to_no_other_place(stranger: Browser, elsewhere: str) -> None:
    assert stranger.sign_in(next=elsewhere).headers["location"] == "/console/"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(stranger: Browser) -> None:
    cookie = stranger.sign_in().headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    parts = {each.strip().lower() for each in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/console"} <= parts
    assert "secure" not in parts  # a loopback host
    elsewhere = stranger.client.post(
        "/console/sign-in", data={"api_key": API_KEY}, headers=SAME_ORIGIN | {"Host": "longbatch.example"}
    )
    assert "; secure" in elsewhere.headers["set-cookie"].lower()


def test_the_database_holds_no_token(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    token = visitor.client.cookies[COOKIE]
    with sessions() as session:
        stored = session.scalars(select(ConsoleSession.token_sha256)).all()
    assert stored == [sha256(token.encode()).digest()]


@pytest.mark.parametrize("key", ["", PROBE, "lb_0123456789abcdef_" + "x" * 43])
def test_a_wrong_key_shows_the_form_again(stranger: Browser, key: str) -> None:
    answer = stranger.sign_in(key)
    assert answer.status_code == 401
    page = checked(answer)
    assert page.xpath("//*[@role='alert']")
    assert not [each for each in page.xpath("//input/@value") if key and key in each]
    assert leads_to_form(stranger.client.get("/console/"))


def test_a_key_that_may_not_read_cannot_sign_in(stranger: Browser, sessions: sessionmaker[Session]) -> None:
    answer = stranger.sign_in(new_key(sessions, Scope.SUBMIT).secret)
    assert answer.status_code == 403
    assert "read" in words(checked(answer))


def test_a_revoked_key_ends_its_sessions(server: ApiProcess, sessions: sessionmaker[Session]) -> None:
    made = new_key(sessions, Scope.READ)
    with browsing(server, made.secret) as visitor:
        assert "of a test" in words(visitor.page("/console/"))
        with sessions.begin() as session:
            keys.revoke(session, made.row)
        assert leads_to_form(visitor.client.get("/console/"))


@pytest.mark.parametrize("over", ["expires_at", "used_at"])
def test_a_session_ends_at_its_time_and_when_it_is_not_used(
    visitor: Browser, sessions: sessionmaker[Session], over: str
) -> None:
    visitor.page("/console/")
    age = timedelta(0) if over == "expires_at" else timedelta(hours=1, minutes=1)
    with sessions.begin() as session:
        session.execute(update(ConsoleSession).values({over: database_now(session) - age}))
    assert leads_to_form(visitor.client.get("/console/"))


def test_a_request_keeps_a_session_that_is_used(visitor: Browser, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        long_ago = database_now(session) - timedelta(minutes=50)
        session.execute(update(ConsoleSession).values(used_at=long_ago))
    visitor.page("/console/")
    with sessions() as session:
        assert session.scalars(select(ConsoleSession.used_at)).one() > long_ago


def test_signing_out_ends_the_session_for_whoever_has_its_cookie(visitor: Browser) -> None:
    token = visitor.client.cookies[COOKIE]
    answer = visitor.post("/console/sign-out")
    assert leads_to_form(answer)
    assert "signed out" in words(visitor.page("/console/sign-in"))
    assert "signed out" not in words(visitor.page("/console/sign-in"))
    visitor.client.cookies.set(COOKIE, token, path="/console")
    assert leads_to_form(visitor.client.get("/console/"))


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://a.example"},
    {"Origin": "null"},
    {},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_forms_of_other_origins_are_refused(visitor: Browser, headers: dict[str, str]) -> None:
    (token,) = set(visitor.page("/console/").xpath("//input[@name='csrf']/@value"))
    for address, fields in (
        ("/console/sign-out", {"csrf": token}),
        ("/console/sign-in", {"api_key": API_KEY}),
    ):
        answer = visitor.client.post(address, data=fields, headers=headers)
        assert answer.status_code == 403
        checked(answer)
    visitor.page("/console/")


def test_a_browser_that_sends_its_origin_alone_is_known_by_it(visitor: Browser) -> None:
    (token,) = set(visitor.page("/console/").xpath("//input[@name='csrf']/@value"))
    origin = str(visitor.client.base_url).rstrip("/")
    answer = visitor.client.post("/console/sign-out", data={"csrf": token}, headers={"Origin": origin})
    assert leads_to_form(answer)


@pytest.mark.parametrize("token", ["", "x", "0" * 64, "ä"])
def test_a_form_without_the_session_s_token_is_refused(visitor: Browser, token: str) -> None:
    answer = visitor.client.post("/console/sign-out", data={"csrf": token}, headers=SAME_ORIGIN)
    assert answer.status_code == 403
    visitor.page("/console/")


def test_another_session_s_token_is_refused(visitor: Browser, server: ApiProcess) -> None:
    with browsing(server) as other:
        (token,) = set(other.page("/console/").xpath("//input[@name='csrf']/@value"))
    answer = visitor.client.post("/console/sign-out", data={"csrf": token}, headers=SAME_ORIGIN)
    assert answer.status_code == 403


def code_link(server: ApiProcess, key: str = API_KEY) -> str:
    with server.client(api_key=key) as client:
        answer = client.post("/console/codes")
    assert answer.status_code == 200, answer.text
    path: str = answer.json()["path"]
    return path


def test_a_link_signs_in_once_and_only_by_its_button(stranger: Browser, server: ApiProcess) -> None:
    made = code_link(server)
    for _ in range(2):  # a preview of the link fetches it too
        form = stranger.page(made)
        assert not form.xpath("//input[@type='password']")
    (code,) = form.xpath("//input[@name='code']/@value")
    assert stranger.sign_in("", code=code).status_code == 303
    stranger.page("/console/")
    with browsing(server, None) as second:
        assert second.sign_in("", code=code).status_code == 401


def test_the_command_prints_a_link_that_signs_in(stranger: Browser, server: ApiProcess) -> None:
    environment = {"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": API_KEY}
    text = CliRunner().invoke(application(), ["console"], env=environment).stdout.strip()
    made = json.loads(CliRunner().invoke(application(), ["console", "--json"], env=environment).stdout)
    assert set(made) == {"url", "expires_at"}
    for link in (text, made["url"]):
        code = link.removeprefix(f"{server.url}/console/sign-in?code=")
        assert stranger.sign_in("", code=code).status_code == 303


def test_a_link_needs_a_key_that_may_read_and_ends_with_it(
    stranger: Browser, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    assert stranger.client.post("/console/codes").status_code == 401
    made = new_key(sessions, Scope.READ)
    code = code_link(server, made.secret).partition("code=")[2]
    with sessions.begin() as session:
        keys.revoke(session, made.row)
    stranger.sign_in("", code=code)
    assert leads_to_form(stranger.client.get("/console/"))


def test_an_expired_link_signs_nobody_in(
    stranger: Browser, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    code = code_link(server).partition("code=")[2]
    with sessions.begin() as session:
        session.execute(update(ConsoleSignInCode).values(expires_at=database_now(session)))
    assert stranger.sign_in("", code=code).status_code == 401


def test_what_has_expired_is_pruned(
    visitor: Browser, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    code_link(server)
    with browsing(server):
        with sessions.begin() as session:
            session.execute(update(ConsoleSignInCode).values(expires_at=database_now(session)))
            token = sha256(visitor.client.cookies[COOKIE].encode()).digest()
            expired = update(ConsoleSession).where(ConsoleSession.token_sha256 == token)
            session.execute(expired.values(expires_at=database_now(session)))
        assert JobMaintenance(sessions).prune(Settings.model_fields["jobs"].default)["sign_ins"] == 2
    with sessions() as session:
        assert len(session.scalars(select(ConsoleSession)).all()) == 1
        assert session.scalars(select(ConsoleSignInCode)).all() == []


def test_guesses_are_limited_and_hold_up_no_right_key(stranger: Browser) -> None:
    wrong = "lb_0123456789abcdee_" + "x" * 43
    statuses = [stranger.sign_in(wrong).status_code for _ in range(40)]
    assert statuses[-1] == 429
    assert stranger.sign_in().status_code == 303


def test_every_answer_carries_the_policy(visitor: Browser) -> None:
    for method, path in (
        ("GET", "/console"),
        ("GET", "/console/"),
        ("GET", "/console/no/such/page"),
        ("PUT", "/console/"),
        ("POST", "/console/codes"),
        ("GET", "/console/assets/none.css"),
        ("GET", next(iter(assets().values())).address),
    ):
        answer = visitor.client.request(method, path)
        assert answer.headers["content-security-policy"] == POLICY, path
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in visitor.client.get("/health/live").headers


def test_an_unknown_page_is_a_page(visitor: Browser) -> None:
    assert "no such page" in words(visitor.page(f"/console/{PROBE}", status=404))


def test_assets_need_no_session_and_are_kept_for_ever(stranger: Browser) -> None:
    for name, asset in assets().items():
        answer = stranger.client.get(asset.address)
        assert (answer.status_code, answer.content) == (200, asset.content), name
        assert "immutable" in answer.headers["cache-control"]
        digest, _, file = asset.address.rpartition("/")[2].partition(".")
        assert (file, sha256(asset.content).hexdigest().startswith(digest)) == (name, True)


def test_without_the_console_there_is_nothing_below_its_address(serve: Serve) -> None:
    with serve(LONGBATCH_CONSOLE__ENABLED="false") as process, process.client(api_key=None) as client:
        for path in ("/console", "/console/", "/console/sign-in"):
            assert client.get(path).status_code == 404
