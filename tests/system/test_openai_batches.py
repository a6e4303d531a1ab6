"""OpenAI's own client runs batches on the whole stack."""

from collections.abc import Iterator

import openai
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from cli.stack.stack import Stack
from openai_support import CHAT, MODEL, TEXT, chat_line, ended, jsonl, polled, results, run, text_line, upload
from support import eventually
from system_support import text_of

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        yield client


def execute(stack: Stack, statement: str, **values: object) -> list[tuple[object, ...]]:
    """What the statement returned, as the stack's database owner."""
    assert stack.urls.database_url is not None
    engine = create_engine(make_url(stack.urls.database_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        found = connection.execute(text(statement), values)
        rows = [tuple(row) for row in found] if found.returns_rows else []
    engine.dispose()
    return rows


def test_a_batch_runs_from_upload_to_results(sdk: openai.OpenAI, stack: Stack) -> None:
    lines = [chat_line(f"line-{number}", f"{text_of(400)} {number}") for number in range(24)]
    lines[3]["body"]["messages"] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": " world"}]},
    ]
    lines[4]["body"] |= {
        "n": 1,
        "stream": False,
        "user": "somebody",
        "seed": 7,
        "stop": ["\n\n"],
        "top_p": 0.5,
    }
    file = sdk.files.wait_for_processing(upload(sdk, jsonl(lines)).id, poll_interval=0.1)
    assert file.status == "processed"
    batch = sdk.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"team": "sky"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert (batch.object, batch.status, batch.errors) == ("batch", "validating", None)
    assert batch.expires_at == batch.created_at + 24 * 3600
    seen = polled(sdk, batch.id)
    last = seen[-1]
    assert last.status == "completed"
    counts = [each.request_counts for each in seen if each.request_counts]
    assert [count.completed for count in counts] == sorted(count.completed for count in counts)
    assert counts[-1].model_dump() == {"total": 24, "completed": 24, "failed": 0}
    assert last.created_at <= last.in_progress_at <= last.finalizing_at <= last.completed_at  # type: ignore[operator]
    assert (last.failed_at, last.expired_at, last.cancelling_at, last.cancelled_at) == (None,) * 4
    assert (last.error_file_id, last.metadata, last.model) == (None, {"team": "sky"}, MODEL)
    found = results(sdk, last.output_file_id)
    assert found.keys() == {line["custom_id"] for line in lines}
    usage = last.usage
    assert usage is not None
    for line in found.values():
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        completion = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
        assert completion.choices[0].message.content
        assert completion.usage is not None
        assert completion.usage.total_tokens == (
            completion.usage.prompt_tokens + completion.usage.completion_tokens
        )
    told = [line["response"]["body"]["usage"] for line in found.values()]
    assert usage.input_tokens == sum(each["prompt_tokens"] for each in told)
    assert usage.output_tokens == sum(each["completion_tokens"] for each in told)
    assert last.output_file_id is not None
    output = sdk.files.retrieve(last.output_file_id)
    assert (output.purpose, output.status) == ("batch_output", "processed")
    assert output.expires_at == output.created_at + 7200
    assert output.created_at == last.completed_at
    events = execute(
        stack, "SELECT type, payload->'data'->>'id' FROM webhook_events WHERE batch_id IS NOT NULL"
    )
    assert ("batch.completed", batch.id) in events


def test_texts_are_completed_too(sdk: openai.OpenAI) -> None:
    content = jsonl([text_line("a"), text_line("b", ["only one"], max_tokens=4)])
    last = ended(sdk, run(sdk, content, endpoint=TEXT).id)
    assert last.status == "completed"
    for line in results(sdk, last.output_file_id).values():
        completion = openai.types.Completion.model_validate(line["response"]["body"])
        assert completion.object == "text_completion"
        assert completion.usage is not None


def test_a_line_that_is_refused_or_too_long_fails_alone(sdk: openai.OpenAI) -> None:
    lines = [
        chat_line("good"),
        chat_line("hot", temperature=3),
        chat_line("tools", tools=[{"type": "function"}]),
        chat_line("many", n=17),
        chat_line("stream", stream=True),
        chat_line("strange", wisdom=1),
        chat_line("image", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        chat_line("model", model="gpt-17"),
        chat_line("long", text_of(440_000)),
        chat_line("longer", max_tokens=131_072),
    ]
    last = ended(sdk, run(sdk, jsonl(lines)).id)
    assert last.status == "completed"
    assert last.request_counts is not None
    assert last.request_counts.model_dump() == {"total": 10, "completed": 1, "failed": 9}
    assert results(sdk, last.output_file_id).keys() == {"good"}
    errors = results(sdk, last.error_file_id)
    told = {
        custom_id: (
            line["response"]["status_code"],
            line["response"]["body"]["error"]["param"],
            line["response"]["body"]["error"]["code"],
        )
        for custom_id, line in errors.items()
    }
    assert told == {
        "hot": (400, "temperature", "invalid_value"),
        "tools": (400, "tools.0.function", "missing_field"),
        "many": (400, "n", "invalid_value"),
        "stream": (400, "stream", "invalid_value"),
        "strange": (400, "wisdom", "unsupported_parameter"),
        "image": (400, "messages.0.content", "invalid_value"),
        "model": (404, "model", "model_not_found"),
        "long": (400, "messages", "context_length_exceeded"),
        "longer": (400, "messages", "context_length_exceeded"),
    }
    message = errors["long"]["response"]["body"]["error"]["message"]
    assert message.startswith("This model's maximum context length is 96000 tokens")


def test_a_batch_whose_every_line_fails_is_completed_without_output(sdk: openai.OpenAI) -> None:
    last = ended(sdk, run(sdk, jsonl([chat_line("a", temperature=9), chat_line("b", n=17)])).id)
    assert (last.status, last.output_file_id) == ("completed", None)
    assert last.request_counts is not None
    assert last.request_counts.model_dump() == {"total": 2, "completed": 0, "failed": 2}
    assert results(sdk, last.error_file_id).keys() == {"a", "b"}


def test_bad_content_fails_the_batch_with_every_such_line(sdk: openai.OpenAI) -> None:
    content = b"\n".join(
        [
            jsonl([chat_line("a")]).strip(),
            b"{nonsense",
            b"",
            jsonl([chat_line("a")]).strip(),
            jsonl([text_line("c")]).strip(),
            b'{"custom_id":"d","method":"POST","url":"/v1/chat/completions"}',
        ]
    )
    last = ended(sdk, run(sdk, content).id)
    assert (last.status, last.output_file_id, last.error_file_id) == ("failed", None, None)
    assert last.failed_at is not None
    assert last.errors is not None
    assert last.errors.data is not None
    assert [(each.line, each.code, each.param) for each in last.errors.data] == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "url_mismatch", "url"),
        (6, "missing_required_parameter", "body"),
    ]
    assert last.errors.data[0].message == "This line is not parseable as valid JSON."
    empty = ended(sdk, run(sdk, b"\n\n").id)
    assert empty.errors is not None
    assert empty.errors.data is not None
    assert [each.code for each in empty.errors.data] == ["empty_file"]


def long_lines(num: int) -> bytes:
    """Lines that take the engine many seconds together."""
    quick = [chat_line(f"quick-{number}", max_tokens=1) for number in range(4)]
    slow = [chat_line(f"slow-{number}", text_of(120_000), max_tokens=2000) for number in range(num)]
    return jsonl([*quick, *slow])


def until_first_result(sdk: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    def look() -> openai.types.Batch | None:
        batch = sdk.batches.retrieve(batch_id)
        assert batch.status in ("validating", "in_progress"), batch
        return batch if batch.output_file_id else None

    found = eventually(look, interval=0.1)
    assert found is not None
    return found


def test_cancelling_keeps_what_was_completed(sdk: openai.OpenAI) -> None:
    batch = run(sdk, long_lines(30))
    running = until_first_result(sdk, batch.id)
    assert running.output_file_id is not None
    raw = sdk.files.with_raw_response.content(running.output_file_id)
    assert raw.headers["x-incomplete"] == "true"
    assert raw.parse().text.count("\n") >= 1
    assert sdk.files.retrieve(running.output_file_id).status == "uploaded"
    with pytest.raises(openai.ConflictError):
        sdk.files.delete(running.output_file_id)
    cancelling = sdk.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    assert cancelling.cancelling_at is not None
    last = ended(sdk, batch.id)
    assert last.status == "cancelled"
    assert last.cancelled_at is not None
    output, errors = results(sdk, last.output_file_id), results(sdk, last.error_file_id)
    assert output.keys() | errors.keys() == {
        *(f"quick-{number}" for number in range(4)),
        *(f"slow-{number}" for number in range(30)),
    }
    assert len(output) + len(errors) == 34
    assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
    assert {line["response"] for line in errors.values()} == {None}
    assert last.request_counts is not None
    assert (last.request_counts.total, last.request_counts.completed) == (34, len(output))
    assert sdk.batches.cancel(batch.id).status == "cancelled"
    raw = sdk.files.with_raw_response.content(running.output_file_id)
    assert "x-incomplete" not in raw.headers

    again = sdk.post(f"/batches/{batch.id}/retry", cast_to=openai.types.Batch)
    assert again.model_extra is not None
    assert (again.status, again.model_extra["retry_of"]) == ("validating", batch.id)
    eventually(lambda: sdk.batches.retrieve(again.id).status == "in_progress")
    counts = sdk.batches.retrieve(again.id).request_counts
    assert counts is not None
    assert counts.total == len(errors)
    sdk.batches.cancel(again.id)
    assert ended(sdk, again.id).status == "cancelled"


def test_when_the_window_ends_finished_lines_are_kept_and_the_others_expire(
    sdk: openai.OpenAI, stack: Stack
) -> None:
    batch = run(sdk, long_lines(30), completion_window="1h")
    assert batch.expires_at == batch.created_at + 3600
    until_first_result(sdk, batch.id)
    hex_id = batch.id.removeprefix("batch_")
    execute(stack, "UPDATE batches SET expires_at = now() WHERE id = CAST(:id AS uuid)", id=hex_id)
    execute(stack, "UPDATE jobs SET expires_at = now() WHERE batch_id = CAST(:id AS uuid)", id=hex_id)
    last = ended(sdk, batch.id)
    assert last.status == "expired"
    assert last.expired_at is not None
    output, errors = results(sdk, last.output_file_id), results(sdk, last.error_file_id)
    assert len(output) + len(errors) == 34
    assert output
    assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
    with pytest.raises(openai.ConflictError) as caught:
        sdk.batches.cancel(batch.id)
    assert caught.value.code == "conflict"
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_more_batches_than_two_pages_are_listed_once_each_by_the_clients_own_paginator(
    sdk: openai.OpenAI,
) -> None:
    file = upload(sdk, jsonl([chat_line("only", max_tokens=1)]))
    made = [
        sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id for _ in range(9)
    ]
    first = sdk.batches.list(limit=4)
    assert ([batch.id for batch in first.data], first.has_more) == (made[:4:-1], True)
    listed = [batch.id for batch in first]
    assert len(set(listed)) == len(listed)
    assert listed[:9] == made[::-1]
    for batch_id in made:
        assert ended(sdk, batch_id).status == "completed"
