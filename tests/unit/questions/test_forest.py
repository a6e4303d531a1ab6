"""A tree for each question: all of the same shape, the questions about a chunk one after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.engines.capacity import Capacity, find_excess
from jobs.errors import ContextLengthExceededError
from jobs.prompts.delimiters import Delimiters
from jobs.questions.forest import build_forest, find_answer_sizes
from jobs.questions.templates import AnswerWording, PartAnswer, ask_chunk, ask_whole, join_answers
from jobs.states.summary import NodeKind
from jobs.summaries.tree import Leaf, Sizes, TooManyChunksError

OVERHEADS = {NodeKind.WHOLE: 260, NodeKind.CHUNK: 270, NodeKind.JOIN: 265}
ENGINE = Capacity(
    max_batch_size=4, max_blocks=2048, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
)
MARKS = Delimiters()
WORDING = AnswerWording(256)


def sizes() -> Sizes:
    return find_answer_sizes([ENGINE], OVERHEADS, length=256)


def leaves(num: int) -> list[Leaf]:
    return [Leaf(0, number, number, number + 1, number, 1000) for number in range(num)]


def test_a_document_that_fits_is_asked_each_question_as_a_whole() -> None:
    nodes = build_forest(leaves(1), sizes(), num_questions=3, whole=True)
    assert [(node.number, node.kind, node.parent, node.question) for node in nodes] == [
        (number, NodeKind.WHOLE, None, number) for number in range(3)
    ]


@given(st.integers(1, 100), st.integers(1, 12))
def test_every_question_has_a_tree_of_its_own_over_all_chunks(num_chunks: int, num_questions: int) -> None:
    nodes = build_forest(leaves(num_chunks), sizes(), num_questions=num_questions, whole=False)
    assert [node.number for node in nodes] == list(range(len(nodes)))
    for question in range(num_questions):
        mine = [node for node in nodes if node.question == question]
        assert [node.leaf.chunk for node in mine if node.leaf] == list(range(num_chunks))
        assert sum(node.parent is None for node in mine) == 1
        by_number = {node.number: node for node in mine}
        for node in mine:
            assert node.parent is None or (node.parent in by_number and node.parent > node.number)
            num_children = sum(other.parent == node.number for other in mine)
            assert num_children == node.num_children
    chunks = [node.leaf.chunk for node in nodes if node.leaf]
    assert chunks == sorted(chunks), "a chunk is asked everything before the next one"
    for node in nodes:
        assert find_excess(ENGINE, prompt_tokens=node.prompt_tokens, max_tokens=node.max_tokens) is None


def test_parts_answer_shorter_on_an_engine_that_could_not_join_two_long_answers() -> None:
    small = Capacity(
        max_batch_size=4, max_blocks=64, tokens_per_block=64, max_input_len=1900, max_seq_len=2048
    )
    found = find_answer_sizes([small], dict.fromkeys(NodeKind, 120), length=256)
    assert (found.length, found.chunk_summary_tokens) == (256, 128)
    with pytest.raises(ContextLengthExceededError):
        find_answer_sizes([small], dict.fromkeys(NodeKind, 500), length=256)


def test_more_jobs_than_a_plan_holds_are_refused_with_both_numbers() -> None:
    with pytest.raises(TooManyChunksError, match=r"100 questions to 501 chunks are 50,100 jobs"):
        build_forest(leaves(501), sizes(), num_questions=100, whole=False)


@pytest.mark.parametrize("num_chunks", [None, 7])
def test_prompts_of_questions_about_a_text_differ_only_after_it(num_chunks: int | None) -> None:
    text = "the text " * 50

    def asked(question: str) -> str:
        if num_chunks is None:
            system, user = ask_whole(text, question, MARKS, WORDING)
        else:
            system, user = ask_chunk(text, question, MARKS, WORDING, number=2, num_chunks=num_chunks)
        assert question not in system.content
        return system.content + user.content

    one, other = asked("Who pays?"), asked("When does it end?")
    shared = next(at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    assert shared > one.index(text) + len(text)
    assert one.endswith(asked("Who pays?")[shared:])


def test_a_join_has_what_parts_said_and_then_the_question() -> None:
    parts = [PartAnswer("900", "rent is 900", "Pages 1-3"), PartAnswer("on the first", None)]
    _, user = join_answers(parts, "How much is the rent, and when?", MARKS, WORDING)
    places = [
        user.content.index(each)
        for each in ("Pages 1-3", "900", "Quote: rent is 900", "on the first", "How much")
    ]
    assert places == sorted(places)
    _, empty = join_answers([], "Why?", MARKS, WORDING)
    assert "No part of the document answers" in empty.content
