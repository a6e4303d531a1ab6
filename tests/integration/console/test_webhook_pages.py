"""The pages of webhooks: endpoints and how they are, deliveries and their answers, events sent again."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from threading import Event
from uuid import UUID

import httpx2
import pytest
from lxml.html import HtmlElement
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from console_pages.browser import (
    PROBE,
    Browser,
    browsing,
    checked,
    events,
    is_over,
    new_key,
    new_tenant,
    words,
)
from jobs import ids
from jobs.database import database_now
from jobs.ids import uuid7
from jobs.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from jobs.tenants.keys import Scope
from jobs.webhooks import endpoints
from jobs.webhooks.endpoints import EndpointSpec
from support import PATIENCE
from webhook_support import (
    Receiver,
    Seen,
    add_endpoint,
    deliver_all,
    endpoint_now,
    finish,
    make_due,
    status,
    vault,
)

Sessions = sessionmaker[Session]
HOME = "/console/webhooks"


def page_of(endpoint: WebhookEndpoint) -> str:
    return f"{HOME}/endpoints/{ids.endpoint_id(endpoint.id)}"


def only_event(sessions: Sessions) -> str:
    """The address of the page of the only event."""
    with sessions() as session:
        return f"{HOME}/events/{ids.event_id(session.scalars(select(WebhookEvent.id)).one())}"


def cells(page: HtmlElement, label: str) -> list[list[str]]:
    return [[words(cell) for cell in row] for row in page.xpath(f"//div[@aria-label='{label}']//tbody/tr")]


def buttons(page: HtmlElement) -> list[str]:
    return [words(each) for each in page.xpath("//main//form[@method='post']//button")]


def delivered(sessions: Sessions, receiver: Receiver, **fields: object) -> WebhookEndpoint:
    """An endpoint that got an event of a job that completed."""
    endpoint, _ = add_endpoint(sessions, receiver.url(), **fields)
    finish(sessions)
    assert deliver_all(sessions) == 1
    return endpoint


def test_endpoints_and_their_deliveries_are_shown(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = delivered(sessions, receiver, description="of the team")
    (row,) = cells(visitor.page(HOME), "Table of endpoints")
    assert row[0] == f"{receiver.url()}of the team"
    assert row[1:3] == ["enabled", "all but job.started"]
    (attempt,) = cells(visitor.page(page_of(endpoint)), "Table of deliveries")
    assert "job.completed" in attempt[1]
    assert attempt[2:5] == ["1", "delivered", "204"]
    (listed,) = cells(visitor.page(f"{HOME}/deliveries"), "Table of deliveries")
    assert listed == [*attempt[:2], receiver.url(), *attempt[2:]]
    event = visitor.page(only_event(sessions))
    (dispatch,) = cells(event, "Table of receivers")
    assert dispatch == [receiver.url(), "delivered", "1", "0", ""]
    (answer,) = cells(event, "Table of answers")
    assert answer[3:5] == ["delivered", "204"]


def test_an_endpoint_that_fails_is_paused_and_shown_as_such(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    receiver.answers["/hook"] = status(503, retry_after="600")
    endpoint = delivered(sessions, receiver)
    assert "paused until" in words(visitor.page(page_of(endpoint)))
    assert "after 1 failure" in words(visitor.page(HOME))
    (dispatch,) = cells(visitor.page(only_event(sessions)), "Table of receivers")
    assert dispatch[1].startswith("pending 1 failure, paused until")
    assert dispatch[4].endswith("UTC")
    make_due(sessions)
    assert "failing since" in words(visitor.page(page_of(endpoint)))
    (attempt,) = cells(visitor.page(f"{HOME}/deliveries?outcome=failed"), "Table of deliveries")
    assert attempt[4:6] == ["failed bad_status", "503"]
    receiver.answers["/hook"] = status(410)
    deliver_all(sessions)
    assert "disabled: it answered 410" in words(visitor.page(HOME))


def test_a_test_event_is_sent_by_its_button_and_followed(
    visitor: Browser, sessions: Sessions, receiver: Receiver, background: Callable[..., Future[object]]
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url(), events=["batch.completed"])
    (action,) = visitor.page(page_of(endpoint)).xpath("//form[contains(@action, '/test')]/@action")
    answer = visitor.post(action)
    assert (answer.status_code, answer.headers["location"]) == (303, only_event(sessions))
    page = visitor.page(answer.headers["location"])
    assert "on its way" in words(page)
    assert "webhook_endpoint.test" in words(page)
    (address,) = page.xpath("//@*[name()='hx-sse:connect']")
    opened = Event()
    following = background(events, visitor, address, "#event", opened)
    assert opened.wait(PATIENCE)
    deliver_all(sessions)
    following.result(PATIENCE)
    assert cells(visitor.page(only_event(sessions)), "Table of receivers")[0][1] == "delivered"
    assert is_over(visitor, address, "#event"), "a page that was made before is brought up to date"
    assert len(receiver.seen) == 1


def test_the_list_and_the_page_of_an_endpoint_follow_its_failures(
    visitor: Browser,
    stranger: Browser,
    sessions: Sessions,
    receiver: Receiver,
    background: Callable[..., Future[object]],
) -> None:
    receiver.answers["/hook"] = status(503, retry_after="600")
    endpoint, _ = add_endpoint(sessions, receiver.url())
    assert stranger.client.get(f"{HOME}/live").status_code == 204
    assert stranger.client.get(f"{page_of(endpoint)}/live").status_code == 404
    following = []
    for address, wanted in ((HOME, "paused"), (page_of(endpoint), "#endpoint")):
        (live,) = visitor.page(address).xpath("//@*[name()='hx-sse:connect']")
        opened = Event()
        following.append(background(events, visitor, live, wanted, opened))
        assert opened.wait(PATIENCE)
    with sessions.begin() as session:
        endpoints.send_test(session, session.merge(endpoint))
    deliver_all(sessions)
    for each in following:
        each.result(PATIENCE)


def test_a_page_that_was_made_before_a_delivery_is_brought_up_to_date_when_it_connects(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    receiver.answers["/hook"] = status(503, retry_after="600")
    endpoint, _ = add_endpoint(sessions, receiver.url())
    with sessions.begin() as session:
        endpoints.send_test(session, session.merge(endpoint))
    shown = {page_of(endpoint): "#endpoint", only_event(sessions): "#event"}
    streams = {each: visitor.page(each).xpath("//@*[name()='hx-sse:connect']")[0] for each in shown}
    deliver_all(sessions)
    for address, part in shown.items():
        assert f'hx-select="{part}"' in events(visitor, streams[address], part, Event())


def test_an_endpoint_is_disabled_and_enabled_by_its_buttons(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url())
    finish(sessions)
    assert buttons(visitor.page(page_of(endpoint))) == ["Send a test event", "Disable"]
    assert visitor.post(f"{page_of(endpoint)}/disable").headers["location"] == page_of(endpoint)
    page = visitor.page(page_of(endpoint))
    assert "disabled: by its owner" in words(page)
    assert buttons(page) == ["Enable"]
    assert visitor.post(f"{page_of(endpoint)}/test").status_code == 409
    visitor.post(f"{page_of(endpoint)}/enable")
    assert "gets events from now on" in words(visitor.page(page_of(endpoint)))
    assert endpoint_now(sessions, endpoint).disabled_reason is None
    assert deliver_all(sessions) == 0, "what was queued before stays behind"


def test_an_event_is_sent_again_by_its_button(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    delivered(sessions, receiver)
    address = only_event(sessions)
    (action,) = visitor.page(address).xpath("//form[contains(@action, '/replay')]/@action")
    assert visitor.post(action).headers["location"] == address
    page = visitor.page(address)
    assert "sent to one receiver again" in words(page)
    assert cells(page, "Table of receivers")[0][1:4] == ["pending", "1", "1"]
    deliver_all(sessions)
    page = visitor.page(address)
    assert cells(page, "Table of receivers")[0][1:4] == ["delivered", "2", "1"]
    assert [row[2] for row in cells(page, "Table of answers")] == ["2", "1"]
    first, second = receiver.seen
    assert (first.id, first.body) == (second.id, second.body)


def test_an_event_without_a_destination_cannot_be_sent(visitor: Browser, sessions: Sessions) -> None:
    finish(sessions)
    page = visitor.page(only_event(sessions))
    assert "cannot be sent" in words(page)
    assert buttons(page) == []
    assert visitor.post(f"{only_event(sessions)}/replay").status_code == 409


def test_the_body_is_shown_when_asked_for_and_never_an_output(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    delivered(sessions, receiver, includes_output=True)
    address = only_event(sessions)
    assert not visitor.page(address).xpath("//pre")
    (body,) = visitor.page(f"{address}?show=body").xpath("//pre")
    assert receiver.seen[0].id in body.text
    output = receiver.seen[0].event["data"]["output"]
    assert output
    assert output not in body.text


def test_the_list_of_deliveries_filters_and_pages_in_its_address(
    visitor: Browser, operator: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = delivered(sessions, receiver)
    with sessions.begin() as session:
        first = session.scalars(select(WebhookDelivery)).one()
        session.add_all(
            WebhookDelivery(
                id=uuid7(),
                tenant_id=first.tenant_id,
                event_id=first.event_id,
                endpoint_id=first.endpoint_id if number % 2 else None,
                attempt=number,
                outcome="timeout",
                latency_ms=1,
            )
            for number in range(2, 60)
        )
    event = only_event(sessions).rpartition("/")[2]
    attempts = [str(number) for number in range(59, 0, -1)]
    for browser, place in ((visitor, 3), (operator, 4)):
        for query, wanted in (
            ("", attempts),
            ("?outcome=failed", attempts[:-1]),
            ("?outcome=delivered", ["1"]),
            (f"?endpoint={ids.endpoint_id(endpoint.id)}&outcome=failed", attempts[0:-1:2]),
            (f"?event={event}", attempts),
            (f"?event=evt_{'0' * 32}", []),
        ):
            seen: list[str] = []
            following = [f"{HOME}/deliveries{query}"]
            while following:
                page = browser.page(following[0])
                seen += [row[place] for row in cells(page, "Table of deliveries")]
                following = page.xpath("//a[@rel='next']/@href")
            assert seen == wanted, query
    for query in ("?outcome=x", "?endpoint=x", "?event=x", "?after=x"):
        visitor.page(f"{HOME}/deliveries{query}", status=400)
    visitor.page(f"{HOME}?after=x", status=400)


def test_another_tenant_s_webhooks_are_neither_listed_nor_found_nor_changed(
    visitor: Browser, stranger: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = delivered(sessions, receiver)
    event = only_event(sessions)
    assert cells(stranger.page(HOME), "Table of endpoints") == []
    for query in ("", f"?endpoint={ids.endpoint_id(endpoint.id)}", f"?event={event.rpartition('/')[2]}"):
        assert cells(stranger.page(f"{HOME}/deliveries{query}"), "Table of deliveries") == []
    unknown = [f"{HOME}/endpoints/{each}" for each in (ids.endpoint_id(UUID(int=7)), "whep_x", PROBE)]
    for address in (page_of(endpoint), *unknown):
        assert "There is no such" in words(checked(stranger.client.get(address)))
        for verb in ("test", "enable", "disable"):
            assert stranger.post(f"{address}/{verb}").status_code == 404
    for address in (event, f"{HOME}/events/{ids.event_id(UUID(int=7))}", f"{HOME}/events/x"):
        assert stranger.client.get(address).status_code == 404
        assert stranger.client.get(f"{address}?show=body").status_code == 404
        assert stranger.client.get(f"{address}/live").status_code == 404
        assert stranger.post(f"{address}/replay").status_code == 404
    stranger.page(f"{HOME}/deliveries?tenant=default", status=404)
    assert endpoint_now(sessions, endpoint).disabled_reason is None
    assert len(visitor.page(event).xpath("//tbody/tr")) == 2, "nothing was sent again"


def test_an_operator_sees_whose_webhooks_they_are_and_changes_its_own(
    server: ApiProcess, sessions: Sessions, receiver: Receiver
) -> None:
    mine = delivered(sessions, receiver)
    other = new_tenant(sessions, "other")
    with sessions.begin() as session:
        theirs, _ = endpoints.create(
            session,
            EndpointSpec("https://b.example/"),
            tenant_id=other,
            vault=vault(),
            secret=None,
            max_endpoints=1,
        )
        event_id = endpoints.send_test(session, theirs)
    key = new_key(sessions, Scope.READ, Scope.SUBMIT, Scope.OPERATOR)
    with browsing(server, key.secret) as operator:
        owners = {row[0]: row[1] for row in cells(operator.page(HOME), "Table of endpoints")}
        assert owners[receiver.url()] == "default"
        assert owners["https://b.example/"].startswith("other-")
        assert (
            cells(operator.page(f"{HOME}/deliveries?tenant=default"), "Table of deliveries")[0][2]
            == "default"
        )
        assert buttons(operator.page(page_of(mine))) == ["Send a test event", "Disable"]
        event = f"{HOME}/events/{ids.event_id(event_id)}"
        for address in (page_of(theirs), event):
            page = operator.page(address)
            assert owners["https://b.example/"] in words(page)
            assert buttons(page) == []
        assert operator.post(f"{page_of(theirs)}/disable").status_code == 404
        assert operator.post(f"{event}/replay").status_code == 404


def test_a_reader_sees_no_buttons_and_the_server_refuses_the_forms(
    reader: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = delivered(sessions, receiver)
    for address, verbs in (
        (page_of(endpoint), ("test", "enable", "disable")),
        (only_event(sessions), ("replay",)),
    ):
        assert buttons(reader.page(address)) == []
        for verb in verbs:
            assert reader.post(f"{address}/{verb}").status_code == 403


def test_markup_in_urls_descriptions_and_answers_stays_text(
    visitor: Browser, sessions: Sessions, receiver: Receiver
) -> None:
    def answer(handler: object, _: Seen) -> None:
        handler.send_response(500, PROBE)  # type: ignore[attr-defined]  # a request handler
        handler.send_header("content-type", "text/html")  # type: ignore[attr-defined]  # as above
        handler.end_headers()  # type: ignore[attr-defined]  # as above
        handler.wfile.write(PROBE.encode())  # type: ignore[attr-defined]  # as above

    receiver.answers["/hook"] = answer
    endpoint = delivered(sessions, receiver, description=PROBE)
    with sessions.begin() as session:
        session.execute(update(WebhookEndpoint).values(url=f"https://a.example/?{PROBE}"))
        session.execute(update(WebhookEvent).values(payload={"a": PROBE}))
    (row,) = cells(visitor.page(HOME), "Table of endpoints")
    assert row[0].count("<script>") == 2
    assert "<script>" in words(visitor.page(page_of(endpoint)))
    assert "<script>" in words(visitor.page(f"{HOME}/deliveries"))
    (shown,) = visitor.page(f"{only_event(sessions)}?show=body").xpath("//pre")
    assert "<script>" in shown.text
    with sessions.begin() as session:
        session.execute(update(WebhookDelivery).values(outcome=PROBE))
    assert "<script>" in cells(visitor.page(f"{HOME}/deliveries"), "Table of deliveries")[0][4]


def test_the_log_of_an_endpoint_survives_the_endpoint(
    visitor: Browser, http: httpx2.Client, sessions: Sessions, receiver: Receiver
) -> None:
    endpoint = delivered(sessions, receiver)
    assert http.delete(f"/v1/webhook_endpoints/{ids.endpoint_id(endpoint.id)}").status_code == 200
    assert visitor.client.get(page_of(endpoint)).status_code == 404
    (attempt,) = cells(visitor.page(f"{HOME}/deliveries"), "Table of deliveries")
    assert attempt[2] == "a deleted endpoint"
    assert cells(visitor.page(only_event(sessions)), "Table of receivers") == []


@pytest.mark.parametrize("place", ["old", "none"])
def test_a_pause_that_is_over_and_a_secret_that_signs_no_more_are_not_told(
    visitor: Browser, sessions: Sessions, receiver: Receiver, place: str
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url())
    with sessions.begin() as session:
        row = session.get_one(WebhookEndpoint, endpoint.id)
        endpoints.rotate(session, row, vault(), overlap=timedelta(hours=1))
        if place == "old":
            row.old_secret_expires_at = database_now(session) - timedelta(seconds=1)
    assert ("Previous secret" in words(visitor.page(page_of(endpoint)))) == (place == "none")
