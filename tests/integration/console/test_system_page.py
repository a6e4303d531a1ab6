"""The page of the system: who sees it, what it checks, and that it holds no secret."""

import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from api.console.system.settings import list_settings
from api_server import WEBHOOK_SECRET, ApiProcess
from console_pages.browser import browsing, new_key, words
from jobs.database import schema
from jobs.settings import BrokerSettings, DatabaseSettings, EngineSettings, Settings, WebhookSettings
from jobs.tenants.keys import Scope


def test_operators_see_checks_versions_schema_and_settings(
    server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    with browsing(server, new_key(sessions, Scope.READ, Scope.OPERATOR).secret) as operator:
        page = operator.page("/console/system")
    text = words(page)
    checks = page.xpath("//section[@aria-labelledby='checks']//tbody/tr")
    found = {words(each[0]): words(each[1]) for each in checks}
    assert (found["database"], found["broker"], found["tokenizer"]) == ("ok", "ok", "ok")
    assert found["engine"] == "failed"  # no engine has registered
    assert "open files" in found
    shown = [words(each) for each in page.xpath("//section[@aria-labelledby='versions']//dd")]
    assert shown[-2:] == [schema.head()] * 2
    assert shown[3].startswith("Valkey ")
    assert "LONGBATCH_API__MAX_STREAMS 1,000" in text


def test_the_page_holds_no_secret_of_the_process(
    server: ApiProcess, sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with browsing(server, new_key(sessions, Scope.READ, Scope.OPERATOR).secret) as operator:
        text = operator.client.get("/console/system").text
    assert "LONGBATCH_WEBHOOKS__SECRET" in text
    assert WEBHOOK_SECRET not in text
    assert database_settings.url.get_secret_value() not in text


@pytest.mark.parametrize("scopes", [(Scope.READ,), (Scope.READ, Scope.SUBMIT, Scope.ADMIN)], ids=str)
def test_nobody_else_sees_it(
    server: ApiProcess, sessions: sessionmaker[Session], scopes: tuple[Scope, ...]
) -> None:
    with browsing(server, new_key(sessions, *scopes).secret) as signed_in:
        assert "operator" in words(signed_in.page("/console/system", status=403))
        assert not signed_in.page("/console/").xpath("//nav//a[@href='/console/system']")


def test_every_setting_is_listed_and_whatever_may_be_secret_is_not() -> None:
    secret = "hunter2-hunter2"
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(f"postgresql://a:{secret}@h/d")),
        broker=BrokerSettings(url=SecretStr(f"redis://:{secret}@h/0")),
        engine=EngineSettings(url=f"http://me:{secret}@engine:8000", api_key=SecretStr(secret)),
        webhooks=WebhookSettings(secret=SecretStr(secret), allowed_hosts=("a", "b")),
    )
    rows = {row.variable: row for _, group in list_settings(settings) for row in group}
    groups = {name: type(getattr(settings, name)).model_fields for name in Settings.model_fields}
    assert len(rows) == sum(map(len, groups.values()))
    assert not [row for row in rows.values() if secret in f"{row}"]
    assert rows["LONGBATCH_ENGINE__URL"].value == "http://engine:8000"
    assert rows["LONGBATCH_ENGINE__API_KEY"].value == "set, not shown"
    assert rows["LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"].value == "not set"
    assert rows["LONGBATCH_WEBHOOKS__ALLOWED_HOSTS"].value == "a, b"
    assert not rows["LONGBATCH_WEBHOOKS__ALLOWED_HOSTS"].is_default
    assert rows["LONGBATCH_JOBS__LEASE_SECONDS"].is_default
