import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from starlette.requests import Request
from starlette.types import Message

from api.http.body import Line, parse, read_body, read_lines
from api.jobs import acceptance as accept
from api.jobs.requests import JobRequest
from api.runtime.services import Acceptance
from jobs.errors import InvalidRequestError, TooLargeError
from jobs.settings import BrokerSettings, DatabaseSettings, Settings, WebhookSettings

SECRET = SecretStr("whsec_" + "dGVzdHMgYXJlIG5vdCBzZWNyZXQsIG5vdCBldmVuIHRoaXM=")


def settings(webhooks: WebhookSettings) -> Settings:
    return Settings(
        database=DatabaseSettings(url=SecretStr("postgresql://a@b/c")),
        broker=BrokerSettings(url=SecretStr("redis://a")),
        webhooks=webhooks,
    )


def request_of(chunks: Sequence[bytes], *headers: tuple[bytes, bytes]) -> Request:
    waiting = [*chunks, b""]

    async def receive() -> Message:
        chunk = waiting.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(waiting)}

    return Request({"type": "http", "headers": headers}, receive)


def lines_of(chunks: Sequence[bytes], *, max_line_bytes: int = 100) -> list[Line]:
    async def collect() -> list[Line]:
        lines: AsyncIterator[Line] = read_lines(
            request_of(chunks), max_line_bytes=max_line_bytes, max_bytes=10_000
        )
        return [line async for line in lines]

    return asyncio.run(collect())


def test_a_body_with_thousands_of_faults_is_refused_by_their_number() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(JobRequest, json.dumps({f"a{number}": 1 for number in range(5000)}).encode())
    assert caught.value.message == "The request body has 5001 faults, such as unknown fields."


def read(chunks: Sequence[bytes]) -> bytes:
    return bytes(asyncio.run(read_body(request_of(chunks), max_bytes=10_000_000)))


@pytest.mark.parametrize("value", ["[]", "{}", "1", "null"])
def test_a_body_with_too_many_values_is_refused_while_it_arrives(value: str) -> None:
    piece = (",".join([value] * 45_000)).encode()
    assert read([b'{"a":[', piece]) == b'{"a":[' + piece
    with pytest.raises(InvalidRequestError, match="at most 100000 values"):
        read([b'{"a":[', piece, b",", piece, b",", piece, b"not even JSON"])


@pytest.mark.parametrize(
    ("piece", "num_texts"), [('"a":1,', 1), ('{"a":"b"},', 2), (r'"\\":"\"",', 2), (r'"\\\\":"\\\"",', 2)]
)
def test_a_body_with_too_many_names_is_refused_while_it_arrives(piece: str, num_texts: int) -> None:
    most = piece.encode() * (32_768 // num_texts)
    assert read([b"{", most]) == b"{" + most
    with pytest.raises(InvalidRequestError, match="at most 32768 names and texts"):
        read([b"{", most, b'"another"'])


@given(st.text(alphabet='[{,"\\a\n', max_size=60), st.lists(st.integers(0, 200)))
def test_what_texts_hold_is_not_counted_however_it_arrives(text: str, cuts: list[int]) -> None:
    raw = json.dumps({"a": text * 20_000}).encode()
    bounds = [0, *sorted(cuts), len(raw)]
    assert read([raw[start:end] for start, end in pairwise(bounds)]) == raw


@given(st.binary(max_size=200).map(lambda raw: raw.replace(b"\0", b"\n")), st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_how_they_arrive(raw: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    chunks = [raw[start:end] for start, end in pairwise(bounds)]
    expected = raw.split(b"\n")
    if not expected[-1]:
        expected.pop()
    found = lines_of(chunks, max_line_bytes=200)
    assert [line.content for line in found] == expected
    assert [line.number for line in found] == list(range(1, len(expected) + 1))


def test_a_long_line_is_skipped_wherever_it_is_cut() -> None:
    raw = b"one\n" + b"x" * 50 + b"\nthree\n" + b"y" * 50
    for size in range(1, len(raw)):
        chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
        assert [line.content for line in lines_of(chunks, max_line_bytes=10)] == [
            b"one",
            None,
            b"three",
            None,
        ]


@pytest.mark.parametrize("declared", [b"11", b"10", None])
def test_a_body_over_the_limit_is_refused_whatever_it_declares(declared: bytes | None) -> None:
    headers = [(b"content-length", declared)] if declared else []
    request = request_of([b"x" * 6, b"x" * 5], *headers)
    with pytest.raises(TooLargeError):
        asyncio.run(read_body(request, max_bytes=10))


def test_a_body_at_the_limit_is_read() -> None:
    assert asyncio.run(read_body(request_of([b"x" * 6, b"x" * 4]), max_bytes=10)) == b"x" * 10


def test_the_hash_of_a_request_is_of_its_meaning() -> None:
    plain = parse(JobRequest, b'{"input":"a","metadata":{"x":"1","y":"2"}}')
    spelt = parse(
        JobRequest, b'{ "metadata":{"y":"2","x":"1"}, "max_tokens":1024,"task":"generate","input":"\\u0061"}'
    )
    other = parse(JobRequest, b'{"input":"b","metadata":{"x":"1","y":"2"}}')
    assert accept.request_sha256(plain) == accept.request_sha256(spelt)
    assert accept.request_sha256(plain) != accept.request_sha256(other)


def refused_field(raw: bytes) -> str | None:
    """The field that a body is refused for; None: it is accepted."""
    try:
        parse(JobRequest, raw)
    except InvalidRequestError as error:
        return error.param
    return None


@given(st.text())
def test_text_is_accepted_if_and_only_if_it_can_be_stored(text: str) -> None:
    storable = text != "" and "\0" not in text
    assert refused_field(json.dumps({"input": text}).encode()) == (None if storable else "input")


@given(st.text(st.characters(categories=["Cs"]), min_size=1))
def test_surrogates_name_their_field(text: str) -> None:
    raw = json.dumps({"input": "a", "custom_id": text}).encode()
    joined = json.loads(raw)["custom_id"]  # two halves may make a whole
    is_whole = all(not "\ud800" <= char <= "\udfff" for char in joined)
    assert refused_field(raw) == (None if is_whole else "custom_id")


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_refusal(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse(JobRequest, raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"input":""}', "input: Must not be empty."),
        (
            '{"input":"a","custom_id":"%s"}' % ("x" * 257),
            "custom_id: Must have at most 256 characters, not 257.",
        ),
    ],
    ids=["empty", "too long"],
)
def test_the_length_of_a_text_is_reported_in_characters(raw: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse(JobRequest, raw.encode())
    assert refused.value.message == message


def test_a_webhook_needs_a_secret_on_the_server() -> None:
    request = parse(JobRequest, b'{"input":"a","webhook_url":"https://example.com/"}')
    unsigned = Acceptance(settings(WebhookSettings()), None, 0)
    with pytest.raises(InvalidRequestError) as refused:
        accept.specification(request, unsigned)
    assert refused.value.param == "webhook_url"
    signed = Acceptance(settings(WebhookSettings(secret=SECRET)), None, 0)
    assert accept.specification(request, signed).webhook_url == "https://example.com/"


def test_an_allowed_host_may_be_private() -> None:
    request = parse(JobRequest, b'{"input":"a","webhook_url":"http://127.0.0.1:9000/x"}')
    allowing = settings(WebhookSettings(secret=SECRET, allowed_hosts=("127.0.0.1",)))
    assert accept.specification(request, Acceptance(allowing, None, 0)).webhook_url


def test_sampling_holds_what_was_given_and_nothing_else() -> None:
    acceptance = Acceptance(settings(WebhookSettings()), None, 0)
    request = parse(JobRequest, b'{"input":"a","temperature":0,"stop":"\\n","seed":9007199254740993}')
    assert accept.specification(request, acceptance).sampling == {
        "temperature": 0,
        "seed": 9007199254740993,
        "stop": ["\n"],
    }
