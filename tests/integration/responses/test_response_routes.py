"""Responses over HTTP, on a service without workers: submitted, read, cancelled, deleted, and by whom."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Final

import httpx2
import openai
import pytest
from openai.types.responses import Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess, error_of
from jobs import ids, lifecycle
from jobs.checkpoints import Output
from jobs.ids import uuid7
from jobs.models import Job, PromptText, StoredResponse, Tenant, WebhookEndpoint, WebhookEvent
from jobs.prompts.tools.calls import MadeCall
from jobs.states import FinishReason
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from support import API_KEY, ERROR, claim_one, eventually, output_of, register_engine

MODEL: Final = "llama-3.1-8b-instruct"
ASKED: Final[dict[str, Any]] = {"model": MODEL, "input": "Why is the sky blue?", "background": True}

ASKED_AGAIN: Final = {"role": "user", "content": "Why?"}


@pytest.fixture
def sdk(server: ApiProcess, http: httpx2.Client) -> Iterator[openai.OpenAI]:  # noqa: ARG001  # without jobs
    with client_with(server, API_KEY) as made:
        yield made


def client_with(server: ApiProcess, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0)


def submitted(sdk: openai.OpenAI, **fields: Any) -> Response:  # noqa: ANN401  # JSON
    return sdk.responses.create(**(ASKED | fields))


def claimed(sessions: sessionmaker[Session]) -> Lease:
    """The job that an engine runs next."""
    with sessions.begin() as session:
        register_engine(session, model=MODEL)
        return claim_one(session).lease


def completed(sessions: sessionmaker[Session], reason: FinishReason = FinishReason.STOP) -> None:
    """The job that an engine runs next, and completes."""
    lease = claimed(sessions)
    with sessions.begin() as session:
        ending.complete(session, lease, output_of("It scatters."), reason)


def count(sessions: sessionmaker[Session], table: type[Any]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def events(sessions: sessionmaker[Session]) -> list[tuple[str, Any]]:
    with sessions() as session:
        rows = session.execute(select(WebhookEvent.type, WebhookEvent.payload).order_by(WebhookEvent.id))
        return [(row.type, row.payload and row.payload["data"]) for row in rows]


def test_a_response_is_queued_runs_and_completes(sdk: openai.OpenAI, sessions: sessionmaker[Session]) -> None:
    made = submitted(sdk, metadata={"a": "b"}, instructions="Be brief.", service_tier="flex")
    assert (made.status, made.output, made.usage, made.background) == ("queued", [], None, True)
    assert (made.metadata, made.instructions, made.service_tier) == ({"a": "b"}, "Be brief.", "flex")
    assert sdk.responses.retrieve(made.id) == made
    lease = claimed(sessions)
    assert sdk.responses.retrieve(made.id).status == "in_progress"
    with sessions.begin() as session:
        ending.complete(session, lease, output_of("It scatters."), FinishReason.STOP)
    found = sdk.responses.retrieve(made.id)
    assert (found.status, found.output_text) == ("completed", "It scatters.")
    assert found.usage is not None
    assert found.usage.output_tokens == 3
    Response.model_validate(found.to_dict(), strict=True)


def test_an_answer_that_is_cut_is_incomplete(sdk: openai.OpenAI, sessions: sessionmaker[Session]) -> None:
    made = submitted(sdk)
    completed(sessions, FinishReason.LENGTH)
    found = sdk.responses.retrieve(made.id)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.output_text == "It scatters."


def test_a_failure_of_the_engine_is_the_response_s_error(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    made = submitted(sdk)
    lease = claimed(sessions)
    with sessions.begin() as session:
        ending.fail(session, lease, ERROR)
    found = sdk.responses.retrieve(made.id)
    assert found.status == "failed"
    assert found.error is not None
    assert (found.error.code, found.error.message) == ("server_error", "it broke")


@pytest.mark.parametrize(
    ("tier", "lane", "rank"),
    [
        (None, "interactive", 0),
        ("default", "interactive", 0),
        ("priority", "interactive", 1),
        ("flex", "batch", 0),
    ],
)
def test_the_tier_decides_lane_and_rank(
    sdk: openai.OpenAI,
    sessions: sessionmaker[Session],
    tier: Any,  # noqa: ANN401  # a literal
    lane: str,
    rank: int,
) -> None:
    made = submitted(sdk, service_tier=tier)
    with sessions() as session:
        job = session.get_one(Job, ids.parse_response_id(made.id))
        assert (job.lane, job.rank) == (lane, rank)
    assert made.service_tier == (tier or "default")


def test_one_that_waits_is_cancelled_at_once_and_again_without_effect(sdk: openai.OpenAI) -> None:
    made = submitted(sdk)
    assert sdk.responses.cancel(made.id).status == "cancelled"
    assert sdk.responses.cancel(made.id).status == "cancelled"
    assert sdk.responses.retrieve(made.id).status == "cancelled"


def test_one_that_has_ended_stays_as_it_is_when_cancelled(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    made = submitted(sdk)
    completed(sessions)
    assert sdk.responses.cancel(made.id).status == "completed"


def test_one_whose_caller_waits_cannot_be_cancelled(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    background: Any,  # noqa: ANN401  # a fixture
) -> None:
    waiting: Future[httpx2.Response] = background(
        http.post, "/v1/responses", json=ASKED | {"background": False}
    )
    eventually(lambda: count(sessions, StoredResponse))
    with sessions() as session:
        job_id = session.scalars(select(StoredResponse.job_id)).one()
    refused = http.post(f"/v1/responses/{ids.response_id(job_id)}/cancel")
    assert (refused.status_code, error_of(refused)["param"]) == (400, "response_id")
    completed(sessions)
    answer = waiting.result()
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert http.get(f"/v1/responses/{answer.json()['id']}").json() == answer.json()


def test_a_deleted_response_leaves_nothing(sdk: openai.OpenAI, sessions: sessionmaker[Session]) -> None:
    made = submitted(sdk, text={"format": {"type": "json_object"}})
    with pytest.raises(openai.ConflictError) as raised:
        sdk.responses.delete(made.id)
    assert raised.value.code == "job_not_finished"
    sdk.responses.cancel(made.id)
    sdk.responses.delete(made.id)
    for look in (sdk.responses.retrieve, sdk.responses.cancel, sdk.responses.delete):
        with pytest.raises(openai.NotFoundError):
            look(made.id)
    assert [count(sessions, table) for table in (Job, StoredResponse, PromptText)] == [0, 0, 0]


def test_what_two_responses_share_is_kept_until_the_last_is_deleted(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    first, second = submitted(sdk), submitted(sdk)
    assert count(sessions, PromptText) == 3, "prompt, parameters and items"
    for made in (first, second):
        sdk.responses.cancel(made.id)
    sdk.responses.delete(first.id)
    assert sdk.responses.retrieve(second.id).status == "cancelled"
    assert len(sdk.responses.input_items.list(second.id).data) == 1
    sdk.responses.delete(second.id)
    assert count(sessions, PromptText) == 0


def test_a_job_s_own_route_deletes_its_response_too(sdk: openai.OpenAI, http: httpx2.Client) -> None:
    made = submitted(sdk)
    sdk.responses.cancel(made.id)
    job_id = ids.job_id(ids.parse_response_id(made.id))
    assert http.delete(f"/v1/jobs/{job_id}").status_code == 200
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)


def test_one_that_is_not_stored_is_answered_and_then_gone(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    background: Any,  # noqa: ANN401  # a fixture
) -> None:
    asked = ASKED | {"background": False, "store": False}
    waiting: Future[httpx2.Response] = background(http.post, "/v1/responses", json=asked)
    eventually(lambda: count(sessions, Job))
    completed(sessions)
    answer = waiting.result().json()
    assert (answer["status"], answer["store"]) == ("completed", False)
    assert http.get(f"/v1/responses/{answer['id']}").status_code == 404
    assert [count(sessions, table) for table in (Job, StoredResponse, PromptText)] == [0, 0, 0]


def test_one_that_is_not_stored_is_gone_once_its_reader_leaves(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    asked = ASKED | {"background": False, "store": False, "stream": True}
    with http.stream("POST", "/v1/responses", json=asked) as stream:
        assert next(stream.iter_lines()) == "event: response.created"
        assert count(sessions, Job) == 1
    eventually(lambda: [count(sessions, table) for table in (Job, StoredResponse, PromptText)] == [0, 0, 0])


def test_a_chat_is_no_response(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    job = http.post("/v1/jobs", json={"input": "a"}).json()
    response_id = ids.response_id(ids.parse_job_id(job["id"]))
    for path in (response_id, f"{response_id}/input_items"):
        assert http.get(f"/v1/responses/{path}").status_code == 404
    assert http.post(f"/v1/responses/{response_id}/cancel").status_code == 404
    assert http.delete(f"/v1/responses/{response_id}").status_code == 404
    assert count(sessions, Job) == 1


def test_input_items_are_listed_by_pages_in_both_orders(sdk: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"number {number}"} for number in range(45)]
    made = submitted(sdk, input=items)

    def texts(**query: Any) -> list[str]:  # noqa: ANN401  # JSON
        found: Any = list(sdk.responses.input_items.list(made.id, **query))
        return [item.content[0].text for item in found]

    expected = [item["content"] for item in items]
    assert texts(order="asc") == expected
    assert texts(limit=7) == expected[::-1]
    page = sdk.responses.input_items.list(made.id, limit=2, order="asc")
    assert (page.has_more, page.to_dict()["object"]) == (True, "list")
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.input_items.list(made.id, after="msg_nosuch")
    assert raised.value.param == "after"


def test_another_tenant_and_a_key_that_only_reads_change_nothing(
    server: ApiProcess, sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    made = submitted(sdk)
    with sessions.begin() as session:
        other = Tenant(id=uuid7(), name=f"tenant {uuid7()}")
        session.add(other)
        session.flush()
        foreign = keys.create(session, tenant_id=other.id, name="", scopes=[Scope.READ, Scope.SUBMIT])
        mine = session.scalars(select(Job.tenant_id)).one()
        reading = keys.create(session, tenant_id=mine, name="", scopes=[Scope.READ])
    with client_with(server, foreign.secret) as stranger:
        for look in (
            stranger.responses.retrieve,
            stranger.responses.cancel,
            stranger.responses.delete,
            stranger.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                look(made.id)
    with client_with(server, reading.secret) as reader:
        assert reader.responses.retrieve(made.id).id == made.id
        assert reader.responses.input_items.list(made.id).data
        for change in (reader.responses.cancel, reader.responses.delete):
            with pytest.raises(openai.PermissionDeniedError):
                change(made.id)
        with pytest.raises(openai.PermissionDeniedError):
            submitted(reader)
    assert sdk.responses.retrieve(made.id).status == "queued"


def test_ids_that_nothing_can_have_are_not_found(http: httpx2.Client) -> None:
    for wrong in ("resp_1", "job_" + "0" * 32, "resp_" + "g" * 32, "resp_" + "0" * 32):
        assert http.get(f"/v1/responses/{wrong}").status_code == 404


def test_a_repeated_submission_gives_the_same_response(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def send(headers: dict[str, str], **fields: Any) -> httpx2.Response:  # noqa: ANN401  # JSON
        return http.post("/v1/responses", json=ASKED | fields, headers=headers)

    key = {"Idempotency-Key": "k"}
    first, again = send(key), send(key)
    assert again.json() == first.json()
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (None, "true")
    assert error_of(send(key, input="else"))["code"] == "idempotency_conflict"
    retries = [send({"x-stainless-retry-count": number}).json()["id"] for number in ("0", "1")]
    assert retries[0] == retries[1] != first.json()["id"]
    assert count(sessions, Job) == 2
    http.post(f"/v1/responses/{first.json()['id']}/cancel")
    assert send(key).json()["status"] == "cancelled"


def test_what_never_fits_is_refused_at_once_and_leaves_nothing(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    refused = http.post("/v1/responses", json=ASKED | {"max_output_tokens": 200_000})
    assert (refused.status_code, error_of(refused)["code"]) == (400, "context_length_exceeded")
    assert error_of(refused)["param"] == "input"
    unknown = http.post("/v1/responses", json=ASKED | {"model": "gpt-9"})
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")
    assert count(sessions, Job) == 0


def test_a_long_response_in_the_background_is_counted_later(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    made = submitted(sdk, input="a word " * 5000)
    assert made.status == "queued"
    with sessions() as session:
        assert session.get_one(Job, ids.parse_response_id(made.id)).state == "preparing"


@pytest.mark.parametrize("tier", ["flex", "default"])
def test_one_event_tells_of_a_response_s_end_in_openai_s_words(
    sdk: openai.OpenAI,
    sessions: sessionmaker[Session],
    tier: Any,  # noqa: ANN401  # a literal
) -> None:
    with sessions.begin() as session:
        register_everything(session)
    expected = []
    for reason, status in ((FinishReason.STOP, "completed"), (FinishReason.LENGTH, "incomplete")):
        made = submitted(sdk, service_tier=tier)
        completed(sessions, reason)
        expected.append((f"response.{status}", {"id": made.id}))
    made = submitted(sdk, service_tier=tier)
    sdk.responses.cancel(made.id)
    expected.append(("response.cancelled", {"id": made.id}))
    made = submitted(sdk, service_tier=tier)
    lease = claimed(sessions)
    with sessions.begin() as session:
        ending.fail(session, lease, ERROR)
    expected.append(("response.failed", {"id": made.id}))
    assert events(sessions) == expected


@pytest.mark.parametrize("is_wanted", [True, False])
def test_ends_that_are_stored_together_are_told_of_as_responses(
    sdk: openai.OpenAI, sessions: sessionmaker[Session], *, is_wanted: bool
) -> None:
    if is_wanted:
        with sessions.begin() as session:
            register_everything(session)
    made = [submitted(sdk, service_tier="flex") for _ in range(2)]
    ends = [
        ending.completed(claimed(sessions), output_of("a"), reason, engine_is_done=False)
        for reason in (FinishReason.STOP, FinishReason.LENGTH)
    ]
    with sessions.begin() as session:
        assert len(lifecycle.finish(session, ends)) == 2
    told = [{"id": each.id} if is_wanted else None for each in made]
    assert sorted(events(sessions)) == [("response.completed", told[0]), ("response.incomplete", told[1])]


def register_everything(session: Session) -> None:
    """Let an endpoint of the default tenant want every event."""
    tenant_id = keys.find(session, API_KEY).tenant_id  # type: ignore[union-attr]  # the tests' own
    session.add(
        WebhookEndpoint(
            tenant_id=tenant_id, url="https://example.com", events=["*", "job.started"], secret=b"-"
        )
    )


def test_a_response_whose_caller_waits_is_not_told_of(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    background: Any,  # noqa: ANN401  # a fixture
) -> None:
    with sessions.begin() as session:
        register_everything(session)
    asked = ASKED | {"background": False, "service_tier": "flex"}
    waiting: Future[httpx2.Response] = background(http.post, "/v1/responses", json=asked)
    eventually(lambda: count(sessions, Job))
    completed(sessions)
    assert waiting.result().json()["service_tier"] == "flex"
    assert [payload for _, payload in events(sessions)] == [None]


def test_a_request_that_another_process_reads_is_submitted_whole(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    said = "a word and another " * 20_000
    made = submitted(
        sdk,
        input=[{"role": "user", "content": said}],
        text={"format": {"type": "json_object"}},
        metadata={"a": "b"},
        extra_body={"webhook_url": "https://example.com/ended"},
    )
    assert (made.status, made.metadata) == ("queued", {"a": "b"})
    (item,) = sdk.responses.input_items.list(made.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": said}]
    with sessions() as session:
        job = session.get_one(Job, ids.parse_response_id(made.id))
        assert (job.webhook_url, job.is_whole) == ("https://example.com/ended", True)


def test_thinking_is_an_item_before_the_message_and_is_streamed(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    made = submitted(sdk)
    lease = claimed(sessions)
    output = Output(text="Blue.", ids=(5, 6, 7), num_tokens=5, reasoning="Let me see.", reasoning_tokens=3)
    with sessions.begin() as session:
        ending.complete(session, lease, output, FinishReason.STOP)
    found: Any = sdk.responses.retrieve(made.id)
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert (found.output[0].content[0].text, found.output_text) == ("Let me see.", "Blue.")
    assert found.usage.output_tokens_details.reasoning_tokens == 3
    events: list[Any] = list(sdk.responses.retrieve(made.id, stream=True))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Let me see."
    assert events[-1].response == found
    again = submitted(sdk, input=[*[item.to_dict() for item in found.output], ASKED_AGAIN])
    assert [item.type for item in sdk.responses.input_items.list(again.id, order="asc")] == [
        *("reasoning", "message", "message")
    ]


WEATHER: Final[Any] = {
    "type": "function",
    "name": "weather",
    "description": "Tell the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.mark.parametrize("is_background", [True, False])
def test_a_function_is_called_and_its_result_goes_back(
    sdk: openai.OpenAI,
    sessions: sessionmaker[Session],
    background: Any,  # noqa: ANN401  # a fixture
    *,
    is_background: bool,
) -> None:
    asked = ASKED | {"tools": [WEATHER], "background": is_background}
    waiting: Future[Response] = background(sdk.responses.create, **asked)
    eventually(lambda: count(sessions, Job))
    lease = claimed(sessions)
    calls = (MadeCall(12, "weather", '{"city":"Oslo"}'), MadeCall(12, "weather", "{}"))
    with sessions.begin() as session:
        output = Output(text="Let me look.", ids=(5, 6, 7), num_tokens=5, calls=calls)
        ending.complete(session, lease, output, FinishReason.TOOL_CALLS)
    made = waiting.result()
    found: Any = sdk.responses.retrieve(made.id)
    assert found == made or is_background
    assert found.status == "completed"
    assert [item.type for item in found.output] == ["message", "function_call", "function_call"]
    message, first, second = found.output
    assert message.content[0].text == "Let me look."
    assert (first.name, first.arguments, second.arguments) == ("weather", '{"city":"Oslo"}', "{}")
    assert (found.tools[0].name, found.tool_choice) == ("weather", "auto")
    Response.model_validate(found.to_dict(), strict=True)
    events: list[Any] = list(sdk.responses.retrieve(made.id, stream=True))
    assert events[-1].response == found
    result: Any = {"type": "function_call_output", "call_id": first.call_id, "output": "rain"}
    conversation = [{"role": "user", "content": "Oslo?"}, *[item.to_dict() for item in found.output], result]
    again = submitted(sdk, input=conversation, tools=[WEATHER])
    items: Any = sdk.responses.input_items.list(again.id, order="asc").data
    assert [item.type for item in items] == [
        *("message", "message", "function_call", "function_call", "function_call_output")
    ]
    assert (items[2].call_id, items[4].output) == (first.call_id, "rain")
    with pytest.raises(openai.BadRequestError) as raised:
        submitted(sdk, input=[result])
    assert raised.value.param == "input.0.call_id"
