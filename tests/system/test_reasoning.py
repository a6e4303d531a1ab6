"""A model that thinks, by every door of the product: its thinking is kept apart and counted."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import openai
import psycopg
import pytest

from cli.stack.options import StackOptions
from cli.stack.ready import INFERENCE_WORKER
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs.prompts.tokenizer import unpack_text
from openai_support import MODEL, chat_line, ended, jsonl, results, run
from reasoning_support import BEGIN, END, thinking_tokenizer
from support import eventually
from system_support import Client, running_stack
from worker_support import SAID

pytestmark = pytest.mark.timeout(300)

KILLS = True
TIME_SCALE = 20.0
# The local engine thinks as many words as a question marks; the tags and two line ends are counted with them.
AROUND: Final = 4
# What it thinks, over and over.
THOUGHT: Final = "Let me think: what was asked, what do I know of it, and is that enough to say so? "
QUESTION: Final = "Why is that so? [[think=20]] [[tokens=60]]"


@pytest.fixture(scope="module")
def stack(stacks: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:  # noqa: ANN401  # a class of conftest
    """A stack of its own, whose tokenizer names the tags."""
    stacks.stop()
    tokenizer = thinking_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    options = StackOptions(
        directory=tmp_path_factory.mktemp("stack"),
        api_port=0,
        engine=EngineOptions(mode="synthetic", tokenizer_dir=tokenizer, time_scale=TIME_SCALE),
        environment={
            **os.environ,
            "LONGBATCH_TOKENIZER__PATH": str(tokenizer),
            "LONGBATCH_JOBS__LEASE_SECONDS": "6",
            "LONGBATCH_JOBS__RENEW_SECONDS": "1",
            "LONGBATCH_JOBS__CHECKPOINT_SECONDS": "0.5",
            "LONGBATCH_MAINTENANCE__RESCUE_SECONDS": "0.5",
        },
    )
    with running_stack(options) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        yield client


def asked(text: str = QUESTION, **more: object) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 100,
        "temperature": 0,
        **more,
    }


def is_said(text: str | None) -> bool:
    """The engine says one line over and over; no tag is part of it."""
    return text is not None and text.strip() != "" and text.strip() in SAID * 200


def is_thought(text: str | None) -> bool:
    """It thinks another line over and over."""
    return text is not None and text.strip() != "" and (THOUGHT * 200).startswith(text)


def test_a_chat_has_its_thinking_apart_whole_and_in_chunks(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(**asked())
    message, usage = whole.choices[0].message, whole.usage
    assert is_thought(message.reasoning_content)
    assert is_said(message.content)
    assert (message.content or " ")[0] != "\n"
    assert whole.choices[0].finish_reason == "stop"
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (60, 20 + AROUND)
    chunks = list(sdk.chat.completions.create(**asked(stream=True, stream_options={"include_usage": True})))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    contents = [delta.content or "" for delta in deltas]
    assert "".join(thoughts) == message.reasoning_content
    assert "".join(contents) == message.content
    last_thought = max(place for place, text in enumerate(thoughts) if text)
    assert not any(contents[:last_thought]), "thinking comes first"
    assert chunks[-1].usage == usage


def test_thinking_is_switched_off_and_opened_by_variables_of_the_template(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(**asked())
    off = sdk.chat.completions.create(
        **asked(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    )
    assert off.choices[0].message.reasoning_content is None
    assert is_said(off.choices[0].message.content)
    assert off.usage is not None
    assert whole.usage is not None
    assert off.usage.prompt_tokens == whole.usage.prompt_tokens + 4
    opened = sdk.chat.completions.create(**asked(extra_body={"chat_template_kwargs": {"opens": True}}))
    assert opened.choices[0].message.model_dump() == whole.choices[0].message.model_dump()
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(**asked(extra_body={"chat_template_kwargs": {"effort": 3}}))
    assert refused.value.param == "chat_template_kwargs"


def test_an_answer_cut_while_it_thinks_is_empty_and_says_length(sdk: openai.OpenAI) -> None:
    cut = sdk.chat.completions.create(**asked(max_tokens=10))
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("", "length")
    assert is_thought(cut.choices[0].message.reasoning_content)
    assert cut.usage is not None
    assert cut.usage.completion_tokens_details is not None
    assert cut.usage.completion_tokens_details.reasoning_tokens == cut.usage.completion_tokens == 10


def test_a_stop_string_ends_the_visible_text_alone(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(**asked()).choices[0].message
    stopped = sdk.chat.completions.create(**asked(stop=["e", "\n\n"])).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.reasoning_content == whole.reasoning_content
    assert stopped.message.content == (whole.content or "").partition("e")[0]


def test_an_answer_may_be_sent_back_as_it_was_returned(sdk: openai.OpenAI) -> None:
    first = sdk.chat.completions.create(**asked()).choices[0].message
    sent: dict[str, Any] = first.model_dump(exclude_unset=True)
    turns: list[Any] = [*asked()["messages"], sent, {"role": "user", "content": "And?"}]
    again = sdk.chat.completions.create(model=MODEL, messages=turns, max_tokens=8)
    assert again.usage is not None
    bare: list[Any] = [
        {"role": "assistant", "content": first.content} if turn is sent else turn for turn in turns
    ]
    counted = sdk.chat.completions.create(model=MODEL, messages=bare, max_tokens=8)
    assert again.usage.prompt_tokens == counted.usage.prompt_tokens  # type: ignore[union-attr]


def test_a_text_completion_is_a_text_without_parts(sdk: openai.OpenAI) -> None:
    done = sdk.completions.create(
        model=MODEL, prompt="Once [[think=5]] [[tokens=30]]", max_tokens=60, temperature=0
    )
    assert done.choices[0].text.startswith(f"{BEGIN}\n")
    assert END in done.choices[0].text


def test_lines_of_a_batch_have_their_thinking_apart(sdk: openai.OpenAI) -> None:
    lines = [
        chat_line("thinks", QUESTION, max_tokens=100),
        chat_line("not", QUESTION, max_tokens=100, chat_template_kwargs={"enable_thinking": False}),
        chat_line("wrong", QUESTION, chat_template_kwargs={"effort": []}),
    ]
    batch = ended(sdk, run(sdk, jsonl(lines)).id)
    found = results(sdk, batch.output_file_id)
    message = found["thinks"]["response"]["body"]["choices"][0]["message"]
    assert is_thought(message["reasoning_content"])
    assert is_said(message["content"])
    assert found["not"]["response"]["body"]["choices"][0]["message"]["reasoning_content"] is None
    usage = found["thinks"]["response"]["body"]["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 20 + AROUND
    assert batch.usage is not None
    assert batch.usage.output_tokens_details.reasoning_tokens == 20 + AROUND
    error = results(sdk, batch.error_file_id)["wrong"]["response"]
    assert (error["status_code"], error["body"]["error"]["param"]) == (400, "chat_template_kwargs")


def events(client: Client, job_id: str, after: int = 0) -> list[tuple[str, int, str]]:
    """The job's output as its readers get it: the kind, the id and the text of each event."""
    path = f"/v1/jobs/{job_id}/events?text=true"
    with client.http.stream("GET", path, headers={"Last-Event-ID": str(after)}) as response:
        blocks = "".join(response.iter_text()).split("\n\n")
    found = [dict(line.split(": ", 1) for line in each.splitlines() if ": " in line) for each in blocks]
    return [
        (each["event"], int(each["id"]), json.loads(each["data"])["text"])
        for each in found
        if each.get("event") in {"reasoning", "text"}
    ]


def test_a_native_job_shows_its_thinking_apart_and_readers_resume_in_it(client: Client) -> None:
    job = client.submit(QUESTION, max_tokens=100)
    seen = events(client, job["id"])
    result = client.result(job["id"])
    joined = {kind: "".join(text for each, _, text in seen if each == kind) for kind in ("reasoning", "text")}
    assert joined == {"reasoning": result["reasoning_content"], "text": result["output"]}
    assert is_thought(result["reasoning_content"])
    assert result["usage"]["completion_tokens_details"] == {"reasoning_tokens": 20 + AROUND}
    whole = result["reasoning_content"] + result["output"]
    for after in (3, len(result["reasoning_content"]), len(whole) - 2):
        assert "".join(text for _, _, text in events(client, job["id"], after)) == whole[after:]


def test_jobs_and_bulk_lines_name_variables_that_the_template_cannot_take(client: Client) -> None:
    wrong = {"input": QUESTION, "chat_template_kwargs": {"effort": 1}}
    refused = client.http.post("/v1/jobs", json=wrong)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs")
    right = {"input": QUESTION, "max_tokens": 100, "chat_template_kwargs": {"enable_thinking": False}}
    bulk = client.http.post("/v1/jobs/bulk", content=jsonl([wrong, right]))
    assert [(each["line"], each["param"]) for each in bulk.json()["errors"]] == [(1, "chat_template_kwargs")]
    (job_id,) = bulk.json()["ids"]
    assert client.finished(job_id)["state"] == "completed"
    assert client.result(job_id)["reasoning_content"] is None


def summarized(client: Client, *texts: str) -> dict[str, Any]:
    """The result of one summary of these documents, once it has ended."""
    documents = []
    for number, text in enumerate(texts):
        sent = client.http.post(
            "/v1/documents",
            params={"filename": f"{number}.txt"},
            content=text.encode(),
            headers={"Content-Type": "text/plain"},
        )
        documents.append(sent.json()["id"])
    made = client.http.post("/v1/summaries", json={"documents": documents, "combine": True, "length": 200})
    assert made.status_code == 202, made.text
    path = f"/v1/summaries/{made.json()['data'][0]['id']}"

    def ended() -> dict[str, Any] | None:
        seen: dict[str, Any] = client.http.get(path, params={"wait": 5}).json()
        return seen if seen["state"] in {"completed", "failed"} else None

    found = eventually(ended)
    assert found is not None
    assert found["state"] == "completed", found
    result: dict[str, Any] = client.http.get(f"{path}/result").json()
    return found | result


def test_a_summary_never_reads_nor_shows_thinking(stack: Stack, client: Client) -> None:
    found = summarized(client, f"The text of document one. {QUESTION}", f"And that of the other. {QUESTION}")
    with psycopg.connect(stack.urls.database_url or "") as connection:
        rows = connection.execute(
            "SELECT texts.body, results.output, results.reasoning FROM jobs JOIN texts ON texts.id = text_id"
            " JOIN results ON results.job_id = jobs.id WHERE summary_id = %s ORDER BY jobs.id",
            (found["id"].removeprefix("sum_"),),
        ).fetchall()
    *leaves, (join, text, _) = rows
    assert len(leaves) == 2
    assert all(is_thought(reasoning) and is_said(output) for _, output, reasoning in leaves)
    assert all(output.strip() in unpack_text(join) for _, output, _ in leaves)
    assert THOUGHT[:40] not in unpack_text(join)
    assert found["summary"] == text
    assert not any(words in json.dumps(found) for words in (BEGIN, END, THOUGHT[:40]))


def test_a_part_of_a_summary_that_only_thinks_is_a_gap(client: Client) -> None:
    found = summarized(client, f"The text of document one. {QUESTION}", "Too hard a text. [[think=5000]]")
    assert [gap["error"]["code"] for gap in found["gaps"]] == ["no_visible_text"]
    assert is_said(found["summary"])


@pytest.mark.parametrize("num_words", [2300, 60])
def test_a_job_split_by_segments_and_a_kill_has_the_parts_of_one_that_ran_through(
    stack: Stack, client: Client, num_words: int
) -> None:
    text = f"Go on for long. [[think={num_words}]] [[tokens=3000]]"
    through = client.submit(text, max_tokens=4000)
    assert client.finished(through["id"], timeout=120)["state"] == "completed"
    killed = client.submit(text, max_tokens=4000)
    client.streaming(killed["id"])
    eventually(lambda: client.job(killed["id"])["completion_tokens"] > 200)
    stack.send(INFERENCE_WORKER, signal.SIGKILL)
    assert client.finished(killed["id"], timeout=120)["state"] == "completed"
    with psycopg.connect(stack.urls.database_url or "") as connection:
        row = connection.execute(
            "SELECT num_rescues FROM jobs WHERE id = %s", (killed["id"].removeprefix("job_"),)
        ).fetchone()
    assert row == (1,)
    one, other = client.result(through["id"]), client.result(killed["id"])
    # What the engine had of the prompt is told at the end of the first run, which was killed.
    assert one["usage"].pop("prompt_tokens_details") == {"cached_tokens": 0}
    assert {**one, "id": ""} == {**other, "id": ""}
    assert one["usage"]["completion_tokens_details"]["reasoning_tokens"] == num_words + AROUND
    assert one["usage"]["completion_tokens"] == 3000
