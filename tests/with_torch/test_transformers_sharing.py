"""Sequences that begin alike share blocks in the transformers engine, and say what they say without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_engine import Answer, RunningEngine, running_engine
from support import eventually
from torch_support import Reference, options

DOCUMENT_TOKENS = 1000  # 62 full blocks of 16


def document(number: int) -> list[int]:
    return [3 + (11 * place + 29 * number + place * place % 13) % 500 for place in range(DOCUMENT_TOKENS)]


def question(number: int) -> list[int]:
    return [3 + (5 * place + number) % 500 for place in range(20 + number)]


def reused(answer: Answer) -> int:
    return answer.counts["kv_cache_reused_blocks"]


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory, model: Reference) -> Iterator[RunningEngine]:
    with running_engine(tmp_path_factory.mktemp("engine"), options(model, kv_cache_reuse=True)) as running:
        yield running


@pytest.mark.parametrize("attention", ["varlen", "sdpa", "eager"])
def test_a_second_question_reads_its_document_from_the_cache_and_says_the_same(
    tmp_path: Path, model: Reference, attention: str
) -> None:
    with running_engine(tmp_path, options(model, kv_cache_reuse=True, attention=attention)) as engine:
        prompts = [document(0) + question(number) for number in range(3)]
        answers = [engine.ask(each, 24, end_id=None, return_perf_metrics=True).read() for each in prompts]
        assert [answer.ids for answer in answers] == [model.greedy(each, 24) for each in prompts]
        assert [reused(answer) for answer in answers] == [0, 62, 62]
        assert engine.gauges()["reused"] == 124


def test_four_questions_at_once_about_more_documents_than_the_pool_holds_say_the_same(
    sharing: RunningEngine, model: Reference
) -> None:
    found = 0
    for number in range(7):
        prompts = [document(number) + question(each) for each in range(5)]
        first = sharing.ask(prompts[0], 12, end_id=None, return_perf_metrics=True)
        assert first.read().ids == model.greedy(prompts[0], 12)
        others = [sharing.ask(each, 12, end_id=None, return_perf_metrics=True) for each in prompts[1:]]
        answers = [stream.read() for stream in others]
        assert [answer.ids for answer in answers] == [model.greedy(each, 12) for each in prompts[1:]]
        found += sum(map(reused, answers))
    assert found >= 7 * 62, "each document was found at least once"


def test_what_nobody_uses_gives_way_to_a_new_prompt_while_another_one_runs(
    tmp_path: Path, model: Reference
) -> None:
    chosen = options(model, kv_cache_reuse=True, max_num_tokens=2048)  # a chunk is half the pool
    with running_engine(tmp_path, chosen) as engine:
        running = engine.ask(question(40), 1000, end_id=None)
        running.next()
        for number in range(3):  # leaves room for the rest of the running answer, not for a chunk
            engine.ask(document(number), 2, end_id=None).read()
        prompt = document(30) + document(31)
        assert engine.ask(prompt, 5, end_id=None).read().ids == model.greedy(prompt, 5)
        assert engine.gauges()["scheduled"] == 1, "it did not wait for the other one's end"
        running.close()


def test_what_was_used_last_stays_while_what_is_older_gives_way(tmp_path: Path, model: Reference) -> None:
    with running_engine(tmp_path, options(model, kv_cache_reuse=True)) as engine:
        for number in range(6):  # of which the pool holds four
            engine.ask(document(number) + question(number), 2, end_id=None).read()
        prompts = [document(number) + question(9) for number in (5, 4, 3)]
        answers = [engine.ask(each, 12, end_id=None, return_perf_metrics=True).read() for each in prompts]
        assert [answer.ids for answer in answers] == [model.greedy(each, 12) for each in prompts]
        assert [reused(answer) for answer in answers] == [62, 62, 62]


def test_blocks_that_running_questions_share_count_once_in_the_gauges(
    sharing: RunningEngine,
) -> None:
    streams = []
    for number in range(2):  # 62 blocks of the document, and up to 58 of its own each
        streams.append(sharing.ask(document(60) + question(number), 900, end_id=None))
        streams[-1].next()
    eventually(lambda: 62 < sharing.gauges()["used"] < 2 * 62)
    for each in streams:
        each.close()
    eventually(lambda: sharing.gauges()["used"] == 0)


def test_a_cancelled_question_leaves_the_document_to_others(sharing: RunningEngine, model: Reference) -> None:
    first, second = (document(50) + question(number) for number in (1, 2))
    streams = [sharing.ask(each, 900, end_id=None) for each in (first, second)]
    for stream in streams:
        stream.next()
    streams[0].close()
    assert streams[1].read(timeout=90).ids == model.greedy(second, 900)
    eventually(lambda: sharing.gauges()["used"] == 0)
