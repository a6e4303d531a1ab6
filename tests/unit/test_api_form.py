import asyncio
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from api.form import Form, read_form
from jobs.errors import InvalidRequestError, LongbatchError, TooLargeError

KIND = "multipart/form-data; boundary=xx"
FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xx\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n{}\r\n--x\n\r\n--xx--\r\n"
)
CONTENT = b"{}\r\n--x\n"


def read(
    chunks: Sequence[bytes], content_type: str = "multipart/form-data; boundary=xx"
) -> tuple[Form, bytes]:
    """The form and the file's bytes, from a body that arrives in these chunks."""
    messages: list[Message] = [{"type": "http.request", "body": each, "more_body": True} for each in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        return messages.pop(0)

    async def collect() -> bytes:
        return b"".join([piece async for piece in read_form(request, form, file_field="file")])

    headers = [(b"content-type", content_type.encode("latin-1"))]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)
    form = Form()
    return form, asyncio.run(collect())


@given(st.lists(st.integers(0, len(FORM)), max_size=6))
def test_however_a_form_is_cut_it_is_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FORM)]
    form, content = read([FORM[start:end] for start, end in itertools.pairwise(edges)])
    assert (form.fields, form.filename, content) == ({"purpose": "batch"}, "a.jsonl", CONTENT)


@given(st.integers(0, len(FORM) - len(b"--\r\n") - 1))
def test_a_form_that_breaks_off_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequestError):
        read([FORM[:length]])


@given(st.binary(max_size=300), st.integers(0, len(FORM)))
def test_whatever_arrives_is_a_form_or_an_error_of_the_callers(junk: bytes, place: int) -> None:
    try:
        form, _ = read([FORM[:place] + junk + FORM[place:]])
    except LongbatchError as error:
        assert isinstance(error, InvalidRequestError | TooLargeError)  # noqa: PT017
    else:
        assert form.filename is None or "\0" not in form.filename


@given(st.text(st.characters(max_codepoint=255), max_size=100))
def test_whatever_the_content_type_says_no_other_error_comes_of_it(said: str) -> None:
    for content_type in (said, f"multipart/form-data; boundary={said}"):
        try:
            read([FORM], content_type)
        except LongbatchError as error:
            assert isinstance(error, InvalidRequestError)  # noqa: PT017


def test_fields_are_bounded() -> None:
    field = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"x" * 70_000 + b"\r\n--xx--\r\n"
    with pytest.raises(TooLargeError):
        read([field])
