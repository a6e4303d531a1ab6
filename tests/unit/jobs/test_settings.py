import pytest
from pydantic import ValidationError

from jobs import settings

REQUIRED = {
    "LONGBATCH_DATABASE__URL": "postgresql://somebody:canary-password@127.0.0.1/x",
    "LONGBATCH_BROKER__URL": "redis://:canary-password@127.0.0.1/0",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.usefixtures("environment")
def test_secrets_are_not_shown() -> None:
    loaded = settings.load()
    assert loaded.database.url.get_secret_value() == REQUIRED["LONGBATCH_DATABASE__URL"]
    assert "canary-password" not in repr(loaded)


@pytest.mark.parametrize(
    "name", ["LONGBATCH_DATABSE__URL", "LONGBATCH_JOBS__LEASE_SECOND", "LONGBATCH_JOBS", "LONGBATCH_NEW"]
)
def test_a_misspelt_variable_is_refused(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv(name, "5")
    with pytest.raises(ValueError, match=r"(?i)lease_second|unknown setting|jobs"):
        settings.load()


def test_the_variables_of_other_parts_are_left_alone(environment: pytest.MonkeyPatch) -> None:
    for name in settings.OTHER_VARIABLES:
        environment.setenv(name, "x")
    settings.load()


@pytest.mark.parametrize("name", ["RESERVE_PREDICTED", "BOOK_PREDICTED"])
def test_reserving_what_is_predicted_is_known_by_its_old_name_too(
    environment: pytest.MonkeyPatch, name: str
) -> None:
    assert settings.load().engine.reserve_predicted
    environment.setenv(f"LONGBATCH_ENGINE__{name}", "false")
    assert not settings.load().engine.reserve_predicted


def test_a_lease_must_outlive_two_lost_renewals(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("LONGBATCH_JOBS__LEASE_SECONDS", "20")
    with pytest.raises(ValidationError, match="at least three times"):
        settings.load()


def test_the_database_group_loads_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBATCH_DATABASE__URL", REQUIRED["LONGBATCH_DATABASE__URL"])
    monkeypatch.delenv("LONGBATCH_BROKER__URL", raising=False)
    assert settings.load_database().url.get_secret_value() == REQUIRED["LONGBATCH_DATABASE__URL"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("URL", "http://127.0.0.1:65536"),
        ("URL", "http://127.0.0.1:0"),
        ("URL", "grpc://127.0.0.1:0"),
        ("URL", "http://127.0.0.1:port"),
        ("URL", "http://[::1:8000"),
        ("API_KEY", "kéy-canary"),
        ("API_KEY", "key-canary\n"),
        ("API_KEY", "key-canary\x7f"),
    ],
)
def test_an_address_or_key_of_an_engine_that_cannot_be_sent_is_refused_by_name(
    environment: pytest.MonkeyPatch, name: str, value: str
) -> None:
    environment.setenv(f"LONGBATCH_ENGINE__{name}", value)
    with pytest.raises(ValidationError) as caught:
        settings.load()
    assert [each["loc"] for each in caught.value.errors()] == [("engine", name.lower())]
    assert "canary" not in str(caught.value)


def test_an_engine_s_address_may_have_any_real_port_or_none(environment: pytest.MonkeyPatch) -> None:
    for url in ("http://127.0.0.1:65535", "https://engine", "http://[::1]:8000/", "grpc://host:8001"):
        environment.setenv("LONGBATCH_ENGINE__URL", url)
        assert settings.load().engine.url == url


def test_content_is_encrypted_only_with_a_key(environment: pytest.MonkeyPatch) -> None:
    assert not settings.load().database.encrypt_content
    environment.setenv("LONGBATCH_DATABASE__ENCRYPT_CONTENT", "true")
    with pytest.raises(ValidationError) as refused:
        settings.load()
    for name in ("LONGBATCH_DATABASE__ENCRYPT_CONTENT", "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"):
        assert name in str(refused.value)
    environment.setenv("LONGBATCH_WEBHOOKS__ENCRYPTION_KEY", "x" * 43 + "=")
    assert settings.load().database.encrypt_content
