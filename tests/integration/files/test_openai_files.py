"""OpenAI's own client stores and reads files."""

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx2
import openai
import pytest
from pydantic import TypeAdapter
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

from api.batches.replies import BatchReply, EstimateReply
from api.files.replies import FileReply
from api_server import ApiProcess, error_of
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import files
from jobs.database import database_now
from jobs.files.storage import RowStore
from jobs.models.batch import Batch
from jobs.models.file import File, FilePart
from jobs.settings import DatabaseSettings
from jobs.states.file import FileState
from openai_support import CHAT, chat_line, jsonl, upload
from support import API_KEY

# Nothing has this id; constant, as it stands in the names of tests.
ABSENT = "01a1fe00963271b8ba17cb3218c43f3b"

DAY = 24 * 3600


@pytest.fixture
def sdk(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[openai.OpenAI]:  # noqa: ARG001  # without files
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=API_KEY, max_retries=0) as client:
        yield client


def multipart(parts: list[tuple[str, str | None, bytes]]) -> tuple[bytes, dict[str, str]]:
    """A form, its parts in this order: name, file name, content."""
    body = b""
    for name, filename, content in parts:
        shown = f'; filename="{filename}"' if filename is not None else ""
        head = f'--xx\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + b"--xx--\r\n", {"content-type": "multipart/form-data; boundary=xx"}


def num_visible(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        visible = select(func.count()).where(File.state != FileState.DELETED)
        return session.scalar(visible) or 0


def test_a_file_is_stored_described_read_and_deleted(sdk: openai.OpenAI) -> None:
    content = jsonl([chat_line("a")])
    file = upload(sdk, content, name="näme.jsonl")
    assert (file.object, file.purpose, file.status, file.bytes) == (
        "file",
        "batch",
        "processed",
        len(content),
    )
    assert file.filename == "näme.jsonl"
    assert file.expires_at == file.created_at + 30 * DAY
    assert sdk.files.wait_for_processing(file.id, poll_interval=0.1) == file
    assert sdk.files.retrieve(file.id) == file
    answer = sdk.files.with_raw_response.content(file.id)
    assert answer.http_response.content == content
    assert "x-incomplete" not in answer.headers
    deleted = sdk.files.delete(file.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (file.id, "file", True)
    for look in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            look(file.id)
        assert caught.value.code == "not_found"


def test_the_documented_objects_have_the_fields_of_the_real_ones(http: httpx2.Client) -> None:
    content, headers = multipart([("purpose", None, b"batch"), ("file", "a.jsonl", b"{}")])
    file = http.post("/v1/files", content=content, headers=headers).json()
    assert set(file) == set(FileReply.__annotations__)
    asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "1h"}
    batch = http.post("/v1/batches", json=asked).json()
    assert set(batch) == set(BatchReply.__annotations__)
    assert TypeAdapter(BatchReply).validate_python(batch) == batch


def test_a_life_of_its_own_is_kept(sdk: openai.OpenAI) -> None:
    file = upload(sdk, b"{}\n", expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600


def test_a_file_of_several_parts_comes_back_byte_for_byte(sdk: openai.OpenAI) -> None:
    content = jsonl([chat_line(f"line-{number}", "x" * (number % 700)) for number in range(9000)])
    assert len(content) > 3 * 2**20
    file = upload(sdk, content)
    assert file.bytes == len(content)
    assert sdk.files.content(file.id).content == content
    with sdk.files.with_streaming_response.content(file.id) as streamed:
        assert int(streamed.headers["content-length"]) == len(content)


def test_an_empty_file_is_a_file(sdk: openai.OpenAI) -> None:
    file = upload(sdk, b"")
    assert (file.bytes, sdk.files.content(file.id).content) == (0, b"")


def test_120_files_are_listed_once_each_by_the_clients_own_paginator(sdk: openai.OpenAI) -> None:
    made = [upload(sdk, b"{}\n", name=f"{number}.jsonl").id for number in range(120)]
    assert [file.id for file in sdk.files.list(limit=50)] == made[::-1]
    assert [file.id for file in sdk.files.list(limit=7, order="asc")] == made
    assert [file.id for file in sdk.files.list()] == made[::-1]
    assert list(sdk.files.list(purpose="batch_output")) == []
    page = sdk.files.list(limit=50, after=made[50])
    assert (page.has_more, [file.id for file in page.data]) == (False, made[:50][::-1])


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"after": "file-1"}, {"purpose": "\0"}],
)
def test_a_wrong_query_names_its_parameter(sdk: openai.OpenAI, query: dict[str, object]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.files.list(**query)  # type: ignore[arg-type]  # wrong on purpose
    assert (caught.value.param, caught.value.code) == (next(iter(query)), "invalid_value")


def test_bytes_without_a_name_are_taken(sdk: openai.OpenAI) -> None:
    """OpenAI's clients then send the name `upload`; curator uploads its batches so."""
    file = sdk.files.create(file=b"{}\n", purpose="batch")
    assert (file.filename, file.status) == ("upload", "processed")


def test_other_formats_and_purposes_are_refused(sdk: openai.OpenAI, sessions: sessionmaker[Session]) -> None:
    with pytest.raises(openai.BadRequestError, match=r"Must be \.jsonl") as caught:
        upload(sdk, b"{}\n", name="in.txt")
    assert caught.value.param == "file"
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.files.create(file=("in.jsonl", b"{}\n"), purpose="vision")
    assert caught.value.param == "purpose"
    for wrong, param in (
        ({"anchor": "created_at", "seconds": 3599}, "expires_after[seconds]"),
        ({"anchor": "yesterday", "seconds": 3600}, "expires_after[anchor]"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            upload(sdk, b"{}\n", expires_after=wrong)
        assert caught.value.param == param
    assert num_visible(sessions) == 0


def test_the_purpose_may_stand_behind_the_file(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    content, headers = multipart([("file", "a.jsonl", b"{}\r\n--x"), ("purpose", None, b"batch")])
    answer = http.post("/v1/files", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == 7
    assert http.get(f"/v1/files/{answer.json()['id']}/content").content == b"{}\r\n--x"
    assert num_visible(sessions) == 1


@pytest.mark.parametrize(
    ("parts", "param", "code"),
    [
        ([("purpose", None, b"batch")], "file", "missing_field"),
        ([("file", "a.jsonl", b"{}")], "purpose", "missing_field"),
        ([("file", "a.jsonl", b""), ("file", "b.jsonl", b"")], "file", "invalid_value"),
        ([("file", "a.jsonl", b""), ("purpose", None, b"batch"), ("x", None, b"")], "x", "unknown_field"),
    ],
)
def test_a_wrong_form_names_its_field(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    parts: list[tuple[str, str | None, bytes]],
    param: str,
    code: str,
) -> None:
    content, headers = multipart(parts)
    answer = http.post("/v1/files", content=content, headers=headers)
    assert answer.status_code == 400
    assert (error_of(answer)["param"], error_of(answer)["code"]) == (param, code)
    assert num_visible(sessions) == 0


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"nonsense", "multipart/form-data; boundary=xx"),
        (
            b'--xx\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc',
            "multipart/form-data; boundary=xx",
        ),
    ],
)
def test_what_is_no_form_is_refused(http: httpx2.Client, content: bytes, kind: str) -> None:
    answer = http.post("/v1/files", content=content, headers={"content-type": kind})
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "invalid_form"


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, sessions: sessionmaker[Session]
) -> None:
    small = ApiProcess(database_settings, valkey.url, LONGBATCH_FILES__MAX_BYTES=str(2**20))
    try:
        with openai.OpenAI(base_url=f"{small.url}/v1", api_key=API_KEY, max_retries=0) as sdk:
            with pytest.raises(openai.APIStatusError) as caught:
                upload(sdk, b"x" * (2**20 + 1))
            assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
            assert upload(sdk, b"x" * 2**20).bytes == 2**20
    finally:
        small.stop()
    assert num_visible(sessions) == 1


def test_bytes_can_be_kept_in_a_directory(
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    sessions: sessionmaker[Session],
    tmp_path: object,
) -> None:
    process = ApiProcess(database_settings, valkey.url, LONGBATCH_FILES__DIRECTORY=str(tmp_path))
    content = jsonl([chat_line(f"line-{number}", "x" * 500) for number in range(4000)])
    try:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key=API_KEY, max_retries=0) as sdk:
            file = upload(sdk, content)
            assert sdk.files.content(file.id).content == content
    finally:
        process.stop()
    with sessions() as session:
        parts = session.scalars(select(FilePart)).all()
    assert len(parts) == 3
    assert {part.content for part in parts} == {None}


def test_a_file_whose_life_is_over_is_gone_and_its_bytes_later(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    file = upload(sdk, b"{}\n")
    with sessions.begin() as session:
        session.execute(update(File).values(expires_at=func.now()))
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(file.id)
    store = RowStore()
    with sessions.begin() as session:
        now = database_now(session)
        assert files.expire(session, now=now) == 1
        assert files.prune(session, store, now=now) == 0
    with sessions.begin() as session:
        assert files.prune(session, store, now=now + timedelta(minutes=11)) == 1
        assert session.scalar(select(func.count()).select_from(FilePart)) == 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": "file-1"}, "input_file_id"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "2h"}, "completion_window"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra_body": {"strange": 1}}, "strange"),
    ],
)
def test_a_wrong_field_of_a_batch_is_named(sdk: openai.OpenAI, change: dict[str, Any], param: str) -> None:
    good: dict[str, Any] = {
        "input_file_id": upload(sdk, b"{}\n").id,
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.batches.create(**(good | change))
    assert caught.value.param == param
    assert caught.value.code
    assert caught.value.type == "invalid_request_error"


def test_a_client_that_repeats_itself_makes_one_batch(sdk: openai.OpenAI) -> None:
    file = upload(sdk, b"{}\n")

    def create(retries: int, **fields: str) -> str:
        headers = {"x-stainless-retry-count": str(retries)}
        batch = sdk.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
            metadata=fields,
            extra_headers=headers,
        )
        return batch.id

    first = create(0)
    assert create(1) == first
    assert create(2) == first
    assert create(1, other="metadata") != first
    assert create(0) != first


@pytest.mark.parametrize("batch_id", ["batch_1", f"batch_{ABSENT}", "b", f"job_{ABSENT}"])
def test_a_batch_that_is_not_there_is_absent(sdk: openai.OpenAI, batch_id: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.batches.retrieve(batch_id)
    assert caught.value.code in ("not_found", "unknown_route")
    with pytest.raises(openai.NotFoundError):
        sdk.batches.cancel(batch_id)


def test_an_estimate_reports_what_a_batch_would_take_and_submits_nothing(
    sdk: openai.OpenAI, sessions: sessionmaker[Session]
) -> None:
    lines = [
        chat_line("a", "Why is the sky blue?", max_tokens=7),
        chat_line("b", max_tokens=131_072),
        chat_line("c", temperature=9),
        chat_line("d", model="gpt-17"),
        chat_line("a"),
    ]
    file = upload(sdk, jsonl(lines))
    asked = {"input_file_id": file.id, "endpoint": CHAT}
    found = sdk.post("/batches/estimate", body=asked, cast_to=httpx2.Response).json()
    # An error has the facts of quotas only if it is of one.
    assert EstimateReply.model_validate(found).model_dump(exclude_unset=True) == found
    assert found["request_counts"] == {"total": 5, "runnable": 1, "refused": 2, "never_fit": 1, "faulty": 1}
    assert (found["prompt_tokens"], found["max_output_tokens"], found["kv_blocks"]) == (16, 7, 1)
    assert [line["custom_id"] for line in found["never_fit"]] == ["b"]
    assert [line["error"]["param"] for line in found["refused"]] == ["temperature", "model"]
    faults = [(fault["line"], fault["code"]) for fault in found["errors"]["data"]]
    assert faults == [(5, "duplicate_custom_id")]
    assert (found["is_exact"], found["estimated_seconds"]) == (True, None)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Batch)) == 0


def test_content_is_read_with_the_clients_own_accept_header(sdk: openai.OpenAI) -> None:
    file = upload(sdk, jsonl([{"a": "\u2028"}]))
    read = io.BytesIO(sdk.files.content(file.id, extra_headers={"Accept": "application/binary"}).read())
    assert json.loads(read.readline()) == {"a": "\u2028"}
