import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.batches.lines import (
    LineFaultError,
    SeenIds,
    answered_line,
    read_envelope,
    unanswered_line,
)
from jobs.files.lines import FileLine, split
from jobs.states.batch import TRANSITIONS, BatchState, Endpoint
from openai_support import CHAT, chat_line


@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=12),
    cuts=st.lists(st.integers(0, 150), max_size=8),
    ends_with_feed=st.booleans(),
)
def test_however_a_file_is_cut_its_lines_are_the_same(
    lines: list[bytes], cuts: list[int], *, ends_with_feed: bool
) -> None:
    content = b"\n".join(lines) + (b"\n" if ends_with_feed else b"")
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[start:end] for start, end in pairwise(edges)]
    found = list(split(chunks, max_line_bytes=10))
    whole = content.split(b"\n")
    if not whole[-1]:
        whole.pop()
    assert [line.content for line in found] == [None if len(each) > 10 else each for each in whole]
    assert [line.number for line in found] == list(range(1, len(whole) + 1))
    for line in found:
        rest = split([content[line.end :]], max_line_bytes=10, offset=line.end, number=line.number + 1)
        assert list(rest) == found[line.number :]


def envelope_fault(content: bytes) -> tuple[str, str | None]:
    with pytest.raises(LineFaultError) as caught:
        read_envelope(FileLine(1, content, len(content)), Endpoint.CHAT, max_line_bytes=1000)
    return caught.value.code, caught.value.param


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": 7}, "invalid_value", "custom_id"),
        ({"custom_id": ""}, "invalid_value", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_value", "custom_id"),
        ({"custom_id": "\0"}, "invalid_value", "custom_id"),
        ({"custom_id": "\ud800"}, "invalid_value", "custom_id"),
        ({"url": "/v1/completions"}, "url_mismatch", "url"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"body": []}, "invalid_value", "body"),
    ],
)
def test_a_faulty_line_is_reported_by_code_and_field(
    change: dict[str, object], code: str, param: str
) -> None:
    assert envelope_fault(json.dumps(chat_line("a") | change).encode()) == (code, param)


@pytest.mark.parametrize("content", [b"{", b"[]", b"7", b"\xff", b'{"a": NaN}', b"[" * 5000])
def test_what_is_no_json_object_is_no_line(content: bytes) -> None:
    assert envelope_fault(content) == ("invalid_json_line", None)


def test_half_a_surrogate_pair_in_a_body_is_left_to_the_body() -> None:
    content = json.dumps(chat_line("a", "\ud800")).encode()
    found = read_envelope(FileLine(1, content, 0), Endpoint.CHAT, max_line_bytes=1000)
    assert (found.custom_id, found.body["messages"][0]["content"]) == ("a", "\ud800")


def test_a_mark_of_byte_order_is_no_fault() -> None:
    content = b"\xef\xbb\xbf" + json.dumps(chat_line("a")).encode()
    assert read_envelope(FileLine(1, content, 0), Endpoint(CHAT), max_line_bytes=1000).custom_id == "a"


@given(st.text())
def test_a_result_is_one_line_whatever_it_says(text: str) -> None:
    text = text.encode(errors="replace").decode()
    line = answered_line("1", "a", status=200, body={"text": text}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["response"] == {"status_code": 200, "request_id": "req_1", "body": {"text": text}}


def test_an_unanswered_line_has_no_response() -> None:
    assert json.loads(unanswered_line("1", "a", ("code", "words"))) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": None,
        "error": {"code": "code", "message": "words"},
    }


def test_custom_ids_are_known_again() -> None:
    seen = SeenIds()
    assert (seen.add("a"), seen.add("b"), seen.add("a")) == (True, True, False)
    assert ("a" in seen, "c" in seen, len(seen)) == (True, False, 2)


def test_every_state_of_a_batch_can_be_reached() -> None:
    reached = {BatchState.VALIDATING, *(target for _, target in TRANSITIONS.values())}
    assert reached == set(BatchState)
