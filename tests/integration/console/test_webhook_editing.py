"""Endpoints made, changed and deleted in the console; their secrets are shown once."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from console_pages.browser import PROBE, Browser, checked, words
from jobs import ids
from jobs.models import WebhookEndpoint
from webhook_support import add_endpoint, endpoint_now, vault

Sessions = sessionmaker[Session]
HOME = "/console/webhooks"
URL = "https://93.184.216.34/hook"


def page_of(endpoint: WebhookEndpoint) -> str:
    return f"{HOME}/endpoints/{ids.endpoint_id(endpoint.id)}"


def only_endpoint(sessions: Sessions) -> WebhookEndpoint:
    with sessions() as session:
        return session.scalars(select(WebhookEndpoint)).one()


def fields_of(browser: Browser, address: str) -> dict[str, str]:
    """The form of the page as a browser sends it."""
    (form,) = browser.page(address).xpath("//form[@class='fields']")
    return dict(form.form_values())


def secret_on(answer_page: object) -> str:
    (secret,) = answer_page.xpath("//code[@class='secret']")  # type: ignore[attr-defined]  # an element
    return words(secret)


def test_an_endpoint_is_made_and_its_secret_is_shown_once(visitor: Browser, sessions: Sessions) -> None:
    assert f"{HOME}/new" in visitor.page(HOME).xpath("//main//a/@href")
    fields = fields_of(visitor, f"{HOME}/new")
    del fields["all"]
    chosen = {"url": URL, "description": PROBE, "on job.failed": "1", "on batch.completed": "1"}
    answer = visitor.post(f"{HOME}/new", **fields | chosen)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    secret = secret_on(checked(answer))
    made = only_endpoint(sessions)
    assert vault().open(made.secret) == secret
    assert (made.url, made.description, made.includes_output) == (URL, PROBE, False)
    assert sorted(made.events) == ["batch.completed", "job.failed"]
    for address in (HOME, page_of(made), f"{page_of(made)}/edit"):
        assert secret not in visitor.client.get(address).text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "http://127.0.0.1/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "no address"}, "url"),
        ({"all": ""}, "events"),
        ({"description": "x" * 513}, "description"),
    ],
)
def test_what_the_api_refuses_is_refused_beside_the_form(
    visitor: Browser, sessions: Sessions, wrong: dict[str, str], said: str
) -> None:
    fields = fields_of(visitor, f"{HOME}/new") | {"url": URL, "description": "mine"} | wrong
    answer = visitor.post(f"{HOME}/new", **fields)
    assert answer.status_code == 400
    page = checked(answer)
    (problem,) = page.xpath("//p[@role='alert']")
    assert said in words(problem).lower()
    (kept,) = page.xpath("//input[@name='description']/@value")
    assert kept == fields["description"], "what was filled in stays"
    with sessions() as session:
        assert session.scalars(select(WebhookEndpoint)).all() == []


def test_an_endpoint_is_changed_rotated_and_deleted(visitor: Browser, sessions: Sessions) -> None:
    endpoint, first = add_endpoint(sessions, URL, events=["job.failed"], description="old")
    address = page_of(endpoint)
    fields = fields_of(visitor, f"{address}/edit")
    assert (fields["url"], fields["description"], fields["on job.failed"]) == (URL, "old", "1")
    assert "all" not in fields
    del fields["on job.failed"]
    changed = {"url": f"{URL}?new", "description": "", "all": "1", "outputs": "1"}
    assert visitor.post(f"{address}/edit", **fields | changed).status_code == 303
    now = endpoint_now(sessions, endpoint)
    assert (now.url, now.description, now.events, now.includes_output) == (f"{URL}?new", "", ["*"], True)

    (action,) = visitor.page(f"{address}/rotate").xpath("//form[contains(@action, '/rotate')]/@action")
    assert vault().open(endpoint_now(sessions, endpoint).secret) == first, "asking changes nothing"
    second = secret_on(checked(visitor.post(action)))
    assert second != first
    assert vault().open(endpoint_now(sessions, endpoint).secret) == second
    assert "Previous secret signs until" in words(visitor.page(address))

    (action,) = visitor.page(f"{address}/delete").xpath("//form[contains(@action, '/delete')]/@action")
    visitor.page(address)
    answer = visitor.post(action)
    assert (answer.status_code, answer.headers["location"]) == (303, HOME)
    visitor.page(address, status=404)
    for verb in ("edit", "rotate", "delete"):
        visitor.page(f"{address}/{verb}", status=404)


def test_readers_and_other_tenants_change_nothing(
    visitor: Browser, reader: Browser, stranger: Browser, sessions: Sessions
) -> None:
    endpoint, secret = add_endpoint(sessions, URL)
    address = page_of(endpoint)
    fields = fields_of(visitor, f"{address}/edit") | {"url": f"{URL}?theirs"}
    del fields["csrf"]
    assert f"{HOME}/new" not in reader.page(HOME).xpath("//main//a/@href")
    assert reader.page(address).xpath("//main//a[contains(@href, '/edit')]") == []
    for someone, status in ((reader, 403), (stranger, 404)):
        for verb in ("edit", "rotate", "delete"):
            someone.page(f"{address}/{verb}", status=status)
            assert someone.post(f"{address}/{verb}", **fields).status_code == status
    reader.page(f"{HOME}/new", status=403)
    assert reader.post(f"{HOME}/new", **fields).status_code == 403
    unchanged = only_endpoint(sessions)
    assert unchanged.url == URL
    assert vault().open(unchanged.secret) == secret
