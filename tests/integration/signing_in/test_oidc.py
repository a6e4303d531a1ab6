"""Signing in to the console by an OpenID Connect provider that runs here."""

import json
import re

import httpx2
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from api.console.session import COOKIE
from api_server import ApiProcess, Serve
from console_pages.browser import browsing, checked, new_key, words
from identity.provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from jobs.database import database_now
from jobs.models import DEFAULT_TENANT, AuditEntry, ConsoleSession, Tenant
from jobs.settings import DatabaseSettings
from jobs.tenants.keys import Scope
from longbatch.cli.main import application
from signing_in.people import CALLBACK, GROUP, OPERATOR, READER, RULES, START, WRITER, People, query_of
from support import API_KEY


def failed(sessions: sessionmaker[Session]) -> list[object]:
    """Why sign-ins failed, as the audit log has it."""
    with sessions() as session:
        query = select(AuditEntry.details).where(AuditEntry.action == "console.sign_in_failed")
        return [each.get("reason") for each in session.scalars(query.order_by(AuditEntry.id))]


def is_form(answer: httpx2.Response) -> bool:
    return answer.status_code == 303 and "/console/sign-in" in answer.headers["location"]


def refused(answer: httpx2.Response, status: int, says: str) -> None:
    """The answer is the form with this message, and starts no session."""
    assert (answer.status_code, says in words(checked(answer))) == (status, True), answer.text
    assert COOKIE not in str(answer.headers.get_list("set-cookie"))


def test_one_whom_a_rule_admits_sees_their_tenant(people: People, sessions: sessionmaker[Session]) -> None:
    with people.signed_in(READER) as reader:
        shown = words(reader.page("/console/"))
        assert "read-only · Ada@ACME.example · default" in shown
        assert reader.post("/console/jobs/cancel", state="queued").status_code == 403
        assert reader.client.get("/console/system").status_code == 403
    with sessions() as session:
        opened = session.scalars(select(ConsoleSession)).one()
        assert (opened.tenant_id, opened.api_key_id, opened.scopes) == (DEFAULT_TENANT, None, ["read"])
        entry = session.scalars(select(AuditEntry)).one()
        assert (entry.action, entry.actor_kind, entry.actor_name) == (
            "console.sign_in",
            "person",
            "Ada@ACME.example",
        )
        assert re.fullmatch("person_[0-9a-f]{16}", entry.actor_id)


def test_claims_in_lists_and_paths_say_what_one_may_do(people: People) -> None:
    with people.signed_in(WRITER) as writer:
        assert "wim · default" in words(writer.page("/console/"))
        assert writer.post("/console/webhooks/new", url="x", events="*").status_code != 403
        assert writer.client.get("/console/system").status_code == 403
    with people.signed_in(OPERATOR) as operator:
        assert "operator · Olga · default" in words(operator.page("/console/"))
        operator.page("/console/system")


def test_what_a_person_changes_is_in_the_audit_log_by_their_name(
    people: People, sessions: sessionmaker[Session]
) -> None:
    with people.signed_in(WRITER) as writer:
        assert writer.post("/console/tenants/default/queue/pause", reason="lunch").status_code == 303
        assert writer.post("/console/tenants/default/queue/resume").status_code == 303, "it is their own"
    with people.signed_in(OPERATOR) as operator:
        operator.post("/console/tenants/default/queue/pause", reason="new driver")
        with people.signed_in(WRITER) as writer:
            assert writer.post("/console/tenants/default/queue/resume").status_code == 409
        operator.post("/console/tenants/default/queue/resume")
        operator.post("/console/sign-out")
    with sessions() as session:
        seen = session.execute(select(AuditEntry.action, AuditEntry.actor_name, AuditEntry.actor_kind))
        changed = [tuple(each) for each in seen if not each.action.startswith("console.")]
        assert changed == [
            ("queue.pause", "wim", "person"),
            ("queue.resume", "wim", "person"),
            ("queue.pause", "Olga", "person"),
            ("queue.resume", "Olga", "person"),
        ]


def test_an_operator_without_a_key_makes_and_revokes_keys(people: People) -> None:
    with people.signed_in(OPERATOR) as operator:
        made = operator.post("/console/tenants/default/keys", scope_read="yes", lifetime="")
        assert made.status_code == 200, made.text
        key = re.findall(r"lb_[0-9a-f]{16}", words(checked(made)))[0]
        assert operator.post(f"/console/tenants/default/keys/{key}/revoke").status_code == 303


BAD_TOKENS = {
    "another nonce": {"nonce": "of another sign-in"},
    "no nonce": {"nonce": None},
    "another audience": {"aud": "another client"},
    "another audience beside ours": {"aud": ["the console", "another client"], "azp": "another client"},
    "no audience": {"aud": None},
    "another issuer": {"iss": "https://elsewhere.example"},
    "expired": {"exp": 1, "iat": 0},
    "no expiry": {"exp": None},
    "an expiry that is no number": {"exp": "never"},
    "issued in the future": {"iat": 2**40, "exp": 2**41},
    "no subject": {"sub": None},
    "an empty subject": {"sub": ""},
    "a subject that is no text": {"sub": 7},
    "a subject that no database stores": {"sub": "a\0b"},
}


@pytest.mark.parametrize("claims", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_a_token_that_is_not_for_this_sign_in_is_refused(
    people: People, sessions: sessionmaker[Session], claims: dict[str, object]
) -> None:
    with people.browser() as browser:
        answer = people.sign_in(browser, WRITER | claims)
        refused(answer, 401, "did not confirm this sign-in")
        assert is_form(browser.client.get("/console/"))
    assert failed(sessions) == ["sign_in_refused"]


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_a_token_that_no_key_pair_signed_is_refused(people: People, algorithm: str) -> None:
    people.provider.algorithm = algorithm
    with people.browser() as browser:
        refused(people.sign_in(browser, WRITER), 401, "did not confirm this sign-in")


def test_a_token_signed_by_a_key_that_is_not_published_is_refused(people: People) -> None:
    published = people.provider.published
    people.provider.rotate()
    people.provider.published = published
    with people.browser() as browser:
        refused(people.sign_in(browser, WRITER), 401, "did not confirm this sign-in")


def test_rotated_keys_are_known_at_once(people: People) -> None:
    with people.signed_in(WRITER):
        people.provider.rotate()
        with people.signed_in(WRITER) as again:
            again.page("/console/")


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"email": "ada@acme.example"},
        {"email": "ada@acme.example", "email_verified": False},
        {"email": "ada@acme.example", "email_verified": "true"},
        {"email": "ada@acme.example.evil.example", "email_verified": True},
        {"email": "@acme.example", "email_verified": True},
        {"email": ["ada@acme.example"], "email_verified": True},
        {"realm_access": ["ops"]},
        {"realm_access": {"roles": "opsops"}},
        {GROUP: "writer"},
        {GROUP: {"writers": True}},
        {"email": "lost@elsewhere.example", "email_verified": True},
    ],
    ids=str,
)
def test_nobody_gets_in_without_a_rule(
    people: People, sessions: sessionmaker[Session], claims: dict[str, object]
) -> None:
    with people.browser() as browser:
        refused(people.sign_in(browser, claims), 403, "no rule of this server admits you")
    assert failed(sessions) == ["not_admitted"]


def test_an_address_that_is_not_verified_is_nobody_s_name(people: People) -> None:
    taken = WRITER | {"email": "boss@acme.example", "preferred_username": "boss@acme.example"}
    with people.signed_in(taken) as writer:
        assert "boss(at)acme.example" in words(writer.page("/console/"))


def test_an_answer_for_another_browser_signs_nobody_in(
    people: People, sessions: sessionmaker[Session]
) -> None:
    """An attacker who leads a victim to the end of their own sign-in."""
    people.provider.claims = WRITER
    with people.browser() as attacker, people.browser() as victim:
        theirs = people.back(people.begin(attacker))
        refused(victim.client.get(theirs), 401, "did not begin in this browser")
        people.begin(victim)
        refused(victim.client.get(theirs), 401, "did not begin in this browser")
        assert is_form(victim.client.get("/console/"))
    assert failed(sessions) == ["sign_in_not_begun_here"] * 2


def test_an_answer_is_used_once(people: People) -> None:
    people.provider.claims = WRITER
    with people.browser() as browser:
        address = people.back(people.begin(browser))
        assert browser.client.get(address).status_code == 200
        refused(browser.client.get(address), 401, "did not begin in this browser")


def test_a_code_of_another_sign_in_is_refused_by_pkce(people: People) -> None:
    people.provider.claims = WRITER
    with people.browser() as attacker, people.browser() as victim:
        stolen = query_of(people.back(people.begin(victim)))["code"]
        begun = query_of(people.begin(attacker))
        answer = attacker.client.get(CALLBACK, params={"code": stolen, "state": begun["state"]})
        refused(answer, 401, "did not confirm this sign-in")


def test_an_answer_of_another_issuer_is_refused(people: People) -> None:
    with people.browser() as browser:
        sent = query_of(people.back(people.begin(browser))) | {"iss": "https://elsewhere.example"}
        refused(browser.client.get(CALLBACK, params=sent), 401, "did not confirm this sign-in")


@pytest.mark.parametrize(
    "sent",
    [{}, {"error": "access_denied"}, {"code": ""}, {"code": "x" * 5000}, {"state": "ä" * 300, "code": "x"}],
    ids=lambda sent: str(sent)[:30],
)
def test_answers_without_a_code_are_refused(people: People, sent: dict[str, str]) -> None:
    with people.browser() as browser:
        state = query_of(people.begin(browser))["state"]
        answer = browser.client.get(CALLBACK, params={"state": state} | sent)
        assert answer.status_code == 401
        assert "access_denied" not in checked(answer).text_content()


def test_the_provider_is_not_asked_for_an_address_that_failed_too_often(people: People) -> None:
    people.provider.claims = WRITER
    with people.browser() as browser:
        answer, asked = None, 0
        for _ in range(200):
            state = query_of(people.begin(browser))["state"]
            asked = len(people.provider.asks)
            answer = browser.client.get(CALLBACK, params={"state": state, "code": "wrong"})
            if answer.status_code == 429:
                break
            refused(answer, 401, "did not confirm this sign-in")
        assert answer is not None
        refused(answer, 429, "Rate limit reached")
        assert len(people.provider.asks) == asked
    with people.signed_in(WRITER) as writer:
        writer.page("/console/")


@pytest.mark.parametrize("kept", ["", "x", "e30=", "bnVsbA==", "eyJzdGF0ZSI6ICIifQ=="])
def test_a_cookie_that_is_not_ours_begins_nothing(people: People, kept: str) -> None:
    with people.browser() as browser:
        browser.client.cookies.set("longbatch_oidc", kept)
        refused(browser.client.get(f"{CALLBACK}?state=&code=x"), 401, "did not begin in this browser")


@pytest.mark.parametrize(
    "elsewhere", ["https://a.example/", "//a.example/", "/v1/jobs", "/console/\\a", "javascript:alert(1)"]
)
def test_signing_in_leads_to_no_other_place(people: People, elsewhere: str) -> None:
    with people.browser() as browser:
        page = checked(people.sign_in(browser, WRITER, next_=elsewhere))
        assert page.xpath("//meta[@http-equiv='refresh']/@content") == ["0; url=/console/"]


def test_signing_in_leads_to_the_page_that_was_wanted(people: People) -> None:
    with people.browser() as browser:
        form = browser.page(browser.client.get("/console/jobs?state=failed").headers["location"])
        (start,) = form.xpath(f"//a[starts-with(@href, '{START}')]/@href")
        people.provider.claims = WRITER
        page = checked(browser.client.get(people.back(browser.client.get(start).headers["location"])))
        assert page.xpath("//main//a/@href") == ["/console/jobs?state=failed"]


def test_a_session_is_a_new_one_whatever_the_browser_had(people: People) -> None:
    with people.browser() as browser:
        browser.client.cookies.set(COOKIE, "planted", path="/console")
        people.sign_in(browser, WRITER)
        first = {each.value for each in browser.client.cookies.jar if each.name == COOKIE} - {"planted"}
        people.sign_in(browser, WRITER)
        second = {each.value for each in browser.client.cookies.jar if each.name == COOKIE} - {"planted"}
        assert (len(first), len(second)) == (1, 1)
        assert first != second


def test_the_cookies_are_out_of_reach_of_scripts(people: People) -> None:
    with people.browser() as browser:
        begun = browser.client.get(START).headers["set-cookie"].lower()
        assert {"httponly", "samesite=lax", "max-age=600", "path=/"} <= set(begun.split("; "))
        answer = people.sign_in(browser, WRITER)
        (session,) = [each for each in answer.headers.get_list("set-cookie") if each.startswith(COOKIE)]
        assert {"httponly", "samesite=strict"} <= set(session.lower().split("; "))
        away = browser.client.get(START, headers={"Host": "console.example"}).headers["set-cookie"]
        assert away.startswith("__Host-longbatch_oidc=")
        assert "secure" in away.lower()


def test_sessions_end_by_sign_out_at_their_time_and_with_their_tenant(
    people: People, sessions: sessionmaker[Session]
) -> None:
    with people.signed_in(WRITER) as writer:
        writer.post("/console/sign-out")
        assert is_form(writer.client.get("/console/"))
    for over in ("expires_at", "deleted_at"):
        with people.signed_in(WRITER) as writer:
            with sessions.begin() as session:
                now = database_now(session)
                if over == "expires_at":
                    session.execute(update(ConsoleSession).values(expires_at=now))
                else:
                    session.execute(update(Tenant).values(deleted_at=now))
            try:
                assert is_form(writer.client.get("/console/"))
            finally:
                with sessions.begin() as session:
                    session.execute(update(Tenant).values(deleted_at=None))


def test_keys_sign_in_as_before_while_the_provider_is_away(
    people: People, provider: IdentityProvider, sessions: sessionmaker[Session]
) -> None:
    with people.browser() as browser:
        address = people.begin(browser)
        back = people.back(address)
        provider.is_down = True
        refused(browser.client.get(back), 503, "sign-in provider does not answer")
        assert browser.sign_in(API_KEY).status_code == 303
        browser.page("/console/")
    assert failed(sessions) == []


def test_the_log_names_no_secret(people: People, oidc_server: ApiProcess) -> None:
    with people.signed_in(WRITER):
        pass
    assert "s3cret" not in "".join(oidc_server.lines)


@pytest.mark.parametrize(
    ("rules", "sees"),
    [
        ([RULES[0] | {"scopes": ["read"]}], "read-only · Olga"),
        (RULES, "operator · Olga"),
        (RULES[1:], None),
        ([RULES[0] | {"tenant": "elsewhere"}], None),
        ([{"claim": "department", "value": "x", "tenant": "default"}, *RULES], None),
    ],
    ids=["fewer scopes", "unchanged", "no rule", "another tenant", "another claim"],
)
def test_the_rules_as_they_are_now_decide_what_a_session_may_do(
    people: People, serve: Serve, rules: list[dict[str, object]], sees: str | None
) -> None:
    variables = {
        "LONGBATCH_OIDC__ISSUER": people.provider.url,
        "LONGBATCH_OIDC__CLIENT_ID": CLIENT_ID,
        "LONGBATCH_OIDC__CLIENT_SECRET": CLIENT_SECRET,
        "LONGBATCH_OIDC__REDIRECT_URI": "https://console.acme.example/console/oidc/callback",
        "LONGBATCH_OIDC__RULES": json.dumps(rules),
    }
    with people.signed_in(OPERATOR) as operator, serve(**variables) as changed:
        token = operator.client.cookies[COOKIE]
        with changed.client(api_key=None) as client:
            client.cookies.set(COOKIE, token, path="/console")
            answer = client.get("/console/")
            assert is_form(answer) if sees is None else sees in words(checked(answer))
            if sees is not None:
                assert client.get("/console/system").status_code == (200 if "operator" in sees else 403)


def test_a_session_ends_where_another_provider_signs_in(people: People, serve: Serve) -> None:
    variables = {
        "LONGBATCH_OIDC__ISSUER": "https://elsewhere.example",
        "LONGBATCH_OIDC__CLIENT_ID": CLIENT_ID,
        "LONGBATCH_OIDC__CLIENT_SECRET": CLIENT_SECRET,
        "LONGBATCH_OIDC__REDIRECT_URI": "https://console.acme.example/console/oidc/callback",
        "LONGBATCH_OIDC__RULES": json.dumps(RULES),
    }
    with (
        people.signed_in(OPERATOR) as operator,
        serve(**variables) as changed,
        changed.client(api_key=None) as client,
    ):
        client.cookies.set(COOKIE, operator.client.cookies[COOKIE], path="/console")
        assert is_form(client.get("/console/"))


@pytest.mark.parametrize("named", ["name", "subject", "key"])
def test_an_operator_ends_the_sessions_of_one_person_or_key(
    people: People, sessions: sessionmaker[Session], database_settings: DatabaseSettings, named: str
) -> None:
    env = {"LONGBATCH_DATABASE__URL": database_settings.url.get_secret_value()}
    made = new_key(sessions, Scope.READ)
    with (
        people.signed_in(WRITER | {"sub": "other"}) as kept,
        people.signed_in(READER | {"sub": "ada"}) as reader,
        browsing(people.server, made.secret) as by_key,
    ):
        chosen = {"name": ["--person", "Ada@ACME.example"], "subject": ["--person", "ada"]}
        wanted = chosen.get(named, ["--key", made.secret[:19]])
        done = CliRunner().invoke(application(), ["sessions", "end", *wanted], env=env)
        assert (done.exit_code, done.stdout) == (0, "1 ended\n"), done.output
        assert is_form(by_key.client.get("/console/")) is (named == "key")
        assert is_form(reader.client.get("/console/")) is (named != "key")
        kept.page("/console/")
    with sessions() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "console.sessions_end"))
        assert (entry.tenant_id, entry.details["number"]) == (DEFAULT_TENANT, 1)
