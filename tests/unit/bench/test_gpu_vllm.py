"""The pure parts of the benchmark on vLLM: lists, gauges, results, charts and the edits of vLLM."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.gpu.vllm import charts, patch
from bench.gpu.vllm.gauges import Counters, Sample, load, read
from bench.gpu.vllm.lists import Listing
from bench.gpu.vllm.marks import END_ID, find_marks
from bench.gpu.vllm.record import Run, Setting, curve, read_runs
from bench.stand.documents import Author
from jobs.prompts.tokenizer import Tokenizer

EXPOSITION = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 3.0
vllm:num_requests_running{engine="1",model_name="llama"} 4.0
vllm:num_requests_waiting{engine="0",model_name="llama"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.25
vllm:num_preemptions_total{engine="0",model_name="llama"} 5.0
vllm:generation_tokens_total{engine="0",model_name="llama"} 1e+03
vllm:generation_tokens_created{engine="0",model_name="llama"} 1.7e+09
"""


def sample(at: float, running: float, counters: Counters | None = None) -> Sample:
    return Sample(at, running, waiting=0, kv=running / 10, counters=counters or Counters())


def run(contender: str, seconds: float, *, errors: int = 0) -> Run:
    samples = [sample(at / 10, running=at % 4) for at in range(20)]
    return Run(
        contender=contender,
        listing="DECODE:81:1200",
        setting=Setting("8b", slots=4, pool_tokens=131_072),
        jobs=1200,
        prompt_tokens=240_000,
        output_tokens=300_000,
        seconds=seconds,
        counters=Counters(preempted=3),
        load=load(samples, slots=4),
        checks={"errors": errors},
        curve=curve(samples, began=0),
    )


@pytest.mark.parametrize(
    "text", ["MIX:61:24", "QUESTIONS:7:3", "SMALL-GPU:1:5", "DECODE:81:9", "REPORTS:2:9"]
)
def test_equal_lists_have_equal_jobs(text: str) -> None:
    listing = Listing.parse(text)

    assert str(listing) == text
    assert listing.specs() == Listing.parse(text).specs()
    assert all(1 < each.output_tokens <= each.max_tokens for each in listing.specs())


def test_another_seed_gives_other_jobs() -> None:
    assert Listing.parse("DECODE:1:50").specs() != Listing.parse("DECODE:2:50").specs()


def test_questions_come_question_by_question() -> None:
    documents = [each.document for each in Listing.parse("QUESTIONS:7:3").specs()]

    assert documents == [0, 1, 2] * 6


def test_an_unknown_list_names_those_that_exist() -> None:
    with pytest.raises(ValueError, match="QUESTIONS"):
        Listing.parse("MIXED:1")


def test_gauges_of_several_engines_add_up() -> None:
    found = read(EXPOSITION, at=1.5)

    assert (found.at, found.running, found.waiting, found.kv) == (1.5, 7, 2, 0.25)
    assert found.counters == Counters(preempted=5, generated=1000)


def test_counters_of_a_run_leave_out_what_was_before() -> None:
    assert Counters(preempted=5, prompt=9).since(Counters(preempted=2, prompt=9)) == Counters(preempted=3)


def test_load_counts_full_and_empty_samples() -> None:
    found = load([sample(0, 0), sample(1, 4), sample(2, 4), sample(3, 2)], slots=4)

    assert (found.full, found.idle, found.mean_running, found.peak_kv) == (0.5, 0.25, 2.5, 0.4)


def test_a_run_survives_the_results_file(tmp_path: Path) -> None:
    file = tmp_path / "results" / "vllm.jsonl"
    runs = [run("client", 20), run("longbatch", 19)]
    for each in runs:
        each.append(file)

    assert read_runs(file) == runs


def test_a_curve_is_thinned_out_and_keeps_its_span() -> None:
    points = curve([sample(at / 5, running=1) for at in range(1000)], began=0)

    assert len(points) <= 240
    assert points[0][0] == 0
    assert points[-1][0] > 195


def test_charts_show_every_whole_run() -> None:
    runs = [run("client", 20), run("longbatch", 19), run("pool", 10, errors=1)]
    throughput = charts.throughput(runs)

    ET.fromstring(throughput)  # noqa: S314  # our own
    ET.fromstring(charts.running(runs))  # noqa: S314
    assert "63.16 jobs/s, 1.00" in throughput
    assert "60.00 jobs/s, 0.95" in throughput
    assert "pool of 4" not in throughput


def test_marks_state_the_length_of_an_answer(tokenizer: Tokenizer) -> None:
    author = Author(tokenizer)
    marks = find_marks(author)
    (prompt,) = author.write(Listing.parse("DECODE:3:1").specs(), seed=3)
    ids = prompt.ids.tolist()
    place = next(at for at in range(len(ids)) if ids[at : at + 3] == marks.head)
    close = ids.index(marks.close, place)

    stated = int("".join(marks.digits[each] for each in ids[place + 3 : close]))
    assert stated == prompt.answer_tokens
    assert close + 1 + marks.suffix == len(ids)
    assert marks.end == END_ID


def test_edits_refuse_another_release_of_vllm(tmp_path: Path) -> None:
    for edit in patch.EDITS:
        path = tmp_path / "vllm" / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def check_stop(request): ...\n")

    with pytest.raises(ValueError, match="0 times, not once"):
        patch.apply(tmp_path)
