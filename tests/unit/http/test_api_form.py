import asyncio
import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from api.http.form import Form, read_files, read_form
from jobs.errors import InvalidRequestError, LongbatchError, TooLargeError

KIND = "multipart/form-data; boundary=xx"
FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xx\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n{}\r\n--x\n\r\n--xx--\r\n"
)
CONTENT = b"{}\r\n--x\n"
HEADER = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n'
FILE = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\r\n'


def part(name: str) -> bytes:
    """A field without a value."""
    return HEADER.replace(b'"a"', f'"{name}"'.encode()) + b"\r\n\r\n"


class Sender:
    """A request whose body arrives in these chunks; knows how many of them were taken."""

    def __init__(self, chunks: Iterable[bytes], content_type: str = KIND) -> None:
        self._chunks = iter(chunks)
        self.num_taken = 0
        headers = [(b"content-type", content_type.encode("latin-1"))]
        self.request = Request(
            {"type": "http", "method": "POST", "path": "/", "headers": headers}, self._receive
        )

    async def _receive(self) -> Message:
        chunk = next(self._chunks, None)
        self.num_taken += chunk is not None
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}


def take(sender: Sender) -> tuple[Form, bytes]:
    """The form and the file's bytes."""

    async def collect() -> bytes:
        return b"".join([piece async for piece in read_form(sender.request, form, file_field="file")])

    form = Form()
    return form, asyncio.run(collect())


def read(chunks: Sequence[bytes], content_type: str = KIND) -> tuple[Form, bytes]:
    """The form and the file's bytes, from a body that arrives in these chunks."""
    return take(Sender(chunks, content_type))


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
    with pytest.raises(TooLargeError, match="65536 bytes") as raised:
        read([field])
    assert raised.value.param == "a"


def test_a_form_has_sixteen_parts_at_most() -> None:
    parts = [part(f"n{number}") for number in range(17)]
    form, _ = read([*parts[:15], FILE, b"--xx--\r\n"])
    assert len(form.fields) == 15
    with pytest.raises(InvalidRequestError, match="16 parts") as raised:
        read([*parts, b"--xx--\r\n"])
    assert raised.value.param == "n16"


WITHOUT_END = {
    "names": (part(f"{number}{'n' * 3000}") for number in itertools.count()),
    "headers": (HEADER + b"A: " + b"b" * 3000 + b"\r\n" for _ in itertools.count()),
    "one header": itertools.chain([HEADER], itertools.repeat(b"a" * 3000)),
    "before": itertools.repeat(b"\r\n" * 1500),
    "after": itertools.chain([FORM], itertools.repeat(b"a" * 3000)),
    "values": itertools.chain([part("a")[:-2]], itertools.repeat(b"a" * 3000)),
}


@pytest.mark.parametrize("what", WITHOUT_END)
def test_whatever_has_no_end_but_the_file_is_refused_soon(what: str) -> None:
    sender = Sender(WITHOUT_END[what])
    with pytest.raises((InvalidRequestError, TooLargeError)):
        take(sender)
    assert 16 < sender.num_taken < 200, (
        "the sender is heard out, so that it sees the answer, but not for ever"
    )


def test_a_file_may_be_larger_than_all_fields() -> None:
    chunks = [FILE.partition(b"{}")[0], *(b"x" * 60_000 for _ in range(20)), b"\r\n--xx--\r\n"]
    assert len(read(chunks)[1]) == 20 * 60_000


FILES = (
    b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    + b"".join(
        b'--xx\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n' % each
        for each in ((b"a.txt", b"abc"), (b"", b""), (b"b/c.txt", b"de\r\n--x"))
    )
    + b'--xx\r\nContent-Disposition: form-data; name="b"\r\n\r\n2\r\n--xx--\r\n'
)


def read_several(
    chunks: Sequence[bytes], *, max_files: int = 3, num_taken: int = 10
) -> tuple[Form, list[tuple[str, bytes]]]:
    """The form and its files, of each of which so many pieces are taken."""

    async def collect() -> list[tuple[str, bytes]]:
        found = []
        files = read_files(Sender(chunks).request, form, file_field="file", max_files=max_files)
        async for file in files:
            assert form.fields["a"] == "1"
            content = b""
            for _ in range(num_taken):
                content += await anext(file.pieces, b"")
            found.append((file.filename, content))
        return found

    form = Form()
    return form, asyncio.run(collect())


@given(st.lists(st.integers(0, len(FILES)), max_size=6))
def test_several_files_come_one_after_the_other_however_the_form_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FILES)]
    form, files = read_several([FILES[start:end] for start, end in itertools.pairwise(edges)])
    assert files == [("a.txt", b"abc"), ("", b""), ("b/c.txt", b"de\r\n--x")]
    assert form.fields == {"a": "1", "b": "2"}


def test_what_is_not_taken_of_a_file_does_not_reach_the_next() -> None:
    _, files = read_several([FILES], num_taken=0)
    assert [name for name, _ in files] == ["a.txt", "", "b/c.txt"]


@pytest.mark.parametrize("name", ["", "huge.txt"])
def test_a_file_without_end_that_nobody_takes_is_refused(name: str) -> None:
    begin = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n' % name.encode()
    sender = Sender(itertools.chain([begin], itertools.repeat(b"x" * 2**20)))

    async def collect() -> None:
        async for _ in read_files(sender.request, Form(), file_field="file", max_files=3):
            assert sender.num_taken < 3, "it begins before it has arrived"

    with pytest.raises(TooLargeError) as raised:
        asyncio.run(collect())
    assert raised.value.param == "file"
    assert sender.num_taken < 100


def test_more_files_than_allowed_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at most 2 files"):
        read_several([FILES], max_files=2)
