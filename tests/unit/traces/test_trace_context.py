"""A caller's `traceparent` is followed if it is well formed, and harmless if it is not."""

import itertools
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import telemetry
from jobs.ids import uuid7
from jobs.traces.context import JobsTrace, TraceContext, is_kept, span_id_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"


def test_a_header_is_read_and_written_alike() -> None:
    context = TraceContext.parse(GIVEN)
    assert context == TraceContext(TRACE, SPAN, is_sampled=True)
    assert str(context) == GIVEN
    assert telemetry.in_trace(GIVEN) == {"trace_id": TRACE}


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_only_one_flag_says_that_a_trace_is_kept(flags: str, *, is_sampled: bool) -> None:
    context = TraceContext.parse(f"00-{TRACE}-{SPAN}-{flags}")
    assert context is not None
    assert context.is_sampled is is_sampled


def test_what_a_later_version_appends_is_passed_over() -> None:
    assert TraceContext.parse(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        GIVEN.upper(),
        f" {GIVEN}",
        f"{GIVEN} ",
        f"{GIVEN}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0g",
        f"cc-{TRACE}-{SPAN}-01" + "-x" * 100_000,
        f"00-{TRACE}-{SPAN}-01\n",
        "\x00" * 55,
    ],
)
def test_a_malformed_header_is_none(header: str) -> None:
    assert TraceContext.parse(header) is None


@given(st.text(alphabet=string.printable, max_size=80))
def test_any_text_is_read_as_a_context_or_as_none(header: str) -> None:
    found = TraceContext.parse(header)
    assert found is None or str(found)[:53] == f"00{header[2:53]}"


def test_the_share_of_kept_traces_is_the_ratio() -> None:
    traces = [TraceContext.begin(ratio=1) for _ in range(2000)]
    assert not any(is_kept(each.trace_id, 0) for each in traces)
    assert all(each.is_sampled and is_kept(each.trace_id, 1) for each in traces)
    assert 300 < sum(is_kept(each.trace_id, 0.25) for each in traces) < 700  # 500, give or take ten sigmas


@given(number=st.integers(1, 500), most=st.integers(0, 200))
def test_a_trace_holds_so_many_jobs_spread_evenly_and_the_last_one(number: int, most: int) -> None:
    trace = JobsTrace(GIVEN, most)
    places = [place for place in range(number) if trace.of(place, among=number) is not None]
    assert len(places) == min(number, most)
    assert not places or places[-1] == number - 1
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_the_id_of_a_row_s_span_is_the_same_whoever_writes_it() -> None:
    row_id = uuid7()
    assert span_id_of("job", row_id) == span_id_of("job", row_id)
    ids = {span_id_of("job", row_id), span_id_of("wait", row_id), span_id_of("wait", row_id, 1)}
    assert len(ids) == 3
    assert all(len(each) == 16 for each in ids)
