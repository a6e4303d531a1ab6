"""Trees of jobs: what fits, who waits for whom, and that every prompt fits the engines that are there."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.engines.capacity import Capacity, find_excess
from jobs.errors import ContextLengthExceededError
from jobs.states.summary import NodeKind
from jobs.summaries.estimate import estimate
from jobs.summaries.tree import Leaf, Node, Sizes, SourceDocument, build, find_sizes, fits_whole, sketch

OVERHEADS = {NodeKind.WHOLE: 160, NodeKind.CHUNK: 170, NodeKind.JOIN: 165}
REFERENCE = Capacity(
    max_batch_size=4, max_blocks=2048, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
)


def leaves(num: int, tokens: int = 100) -> list[Leaf]:
    return [Leaf(0, number, number, number + 1, number, tokens) for number in range(num)]


def reference_sizes(**fields: int) -> Sizes:
    return find_sizes([REFERENCE], OVERHEADS, length=400, **fields)


def test_chunks_are_half_of_a_slots_share_of_the_pool() -> None:
    sizes = reference_sizes()
    reserved = sizes.chunk_tokens + OVERHEADS[NodeKind.CHUNK] + sizes.chunk_summary_limit
    assert 0.49 * 131_072 / 4 <= reserved <= 0.5 * 131_072 / 4


def test_slots_that_the_pool_cannot_fill_do_not_make_chunks_too_small() -> None:
    for slots in (16, 64, 256):
        crowded = Capacity(
            max_batch_size=slots, max_blocks=363, tokens_per_block=128, max_input_len=8191, max_seq_len=8192
        )
        sizes = find_sizes([crowded], OVERHEADS, length=400)
        reserved = sizes.chunk_tokens + OVERHEADS[NodeKind.CHUNK] + sizes.chunk_summary_limit
        assert 0.8 * 363 * 128 / 8 <= reserved <= 363 * 128 / 8


def test_the_smallest_engine_decides_the_chunks_and_the_largest_what_is_whole() -> None:
    small = Capacity(
        max_batch_size=4, max_blocks=512, tokens_per_block=64, max_input_len=20_000, max_seq_len=32_768
    )
    both = find_sizes([REFERENCE, small], OVERHEADS, length=400)
    alone = find_sizes([small], OVERHEADS, length=400)
    assert both.chunk_tokens == alone.chunk_tokens < reference_sizes().chunk_tokens
    assert both.whole_tokens == reference_sizes().whole_tokens


def test_a_document_up_to_the_engines_limit_is_one_job() -> None:
    sizes = reference_sizes()
    (node,) = build(sketch(SourceDocument(0, sizes.whole_tokens), sizes, whole=True), sizes, whole=True)
    assert find_excess(REFERENCE, prompt_tokens=node.prompt_tokens, max_tokens=node.max_tokens) is None
    assert fits_whole(SourceDocument(0, sizes.whole_tokens), sizes, asked_chunk_tokens=None)
    assert not fits_whole(SourceDocument(0, sizes.whole_tokens + 1), sizes, asked_chunk_tokens=None)
    assert not fits_whole(SourceDocument(0, 5000), sizes, asked_chunk_tokens=4000)


def test_an_engine_that_is_too_small_is_refused() -> None:
    tiny = Capacity(max_batch_size=4, max_blocks=16, tokens_per_block=64, max_input_len=500, max_seq_len=1024)
    with pytest.raises(ContextLengthExceededError):
        find_sizes([tiny], OVERHEADS, length=400)


CAPACITIES = st.builds(
    Capacity,
    max_batch_size=st.integers(1, 64),
    max_blocks=st.integers(30, 4096),
    tokens_per_block=st.sampled_from([16, 32, 64]),
    max_input_len=st.integers(1000, 200_000),
    max_seq_len=st.integers(1500, 250_000),
)


# Parts longer than the summary itself: joins of parts, not the root, need the most room.
@example(
    capacities=[
        Capacity(max_batch_size=1, max_blocks=84, tokens_per_block=64, max_input_len=2667, max_seq_len=2715)
    ],
    num_leaves=36,
    length=16,
    chunk_tokens=None,
)
@settings(max_examples=300)
@given(
    capacities=st.lists(CAPACITIES, min_size=1, max_size=3),
    num_leaves=st.integers(2, 400),
    length=st.integers(16, 2000),
    chunk_tokens=st.none() | st.integers(64, 50_000),
)
def test_every_job_of_every_tree_fits_and_each_waits_for_what_comes_before_it(
    capacities: list[Capacity], num_leaves: int, length: int, chunk_tokens: int | None
) -> None:
    try:
        sizes = find_sizes(capacities, OVERHEADS, length=length, chunk_tokens=chunk_tokens)
    except ContextLengthExceededError:
        return
    nodes = build(leaves(num_leaves, sizes.chunk_tokens), sizes, whole=False)
    _check_shape(nodes, num_leaves, sizes)
    for node in nodes:
        for capacity in capacities:
            assert find_excess(capacity, prompt_tokens=node.prompt_tokens, max_tokens=node.max_tokens) is None
        assert node.output_tokens <= node.max_tokens
        if node.num_children:
            children = [each for each in nodes if each.parent == node.number]
            assert sum(each.max_tokens for each in children) < node.prompt_tokens


def _check_shape(nodes: list[Node], num_leaves: int, sizes: Sizes) -> None:
    assert [node.number for node in nodes] == list(range(len(nodes)))
    assert [node.leaf.chunk for node in nodes if node.leaf] == list(range(num_leaves))
    assert [node.number for node in nodes if node.parent is None] == [len(nodes) - 1]
    for node in nodes:
        assert node.parent is None or node.parent > node.number
        children = [each for each in nodes if each.parent == node.number]
        assert len(children) == node.num_children <= sizes.fan_in
        assert {each.level for each in children} <= {node.level - 1}
        below = range(node.number - _size(nodes, node) + 1, node.number)
        assert all(_is_below(nodes, nodes[number], node) for number in below), "depth-first"


def _size(nodes: list[Node], top: Node) -> int:
    return 1 + sum(_size(nodes, each) for each in nodes if each.parent == top.number)


def _is_below(nodes: list[Node], node: Node, top: Node) -> bool:
    while node.parent is not None and node.number != top.number:
        node = nodes[node.parent]
    return node.number == top.number


def test_a_combined_summary_of_one_short_document_is_whole_and_of_two_is_a_tree() -> None:
    sizes = reference_sizes()
    sources = [SourceDocument(0, 1000), SourceDocument(1, 2000)]

    def trees(of: list[SourceDocument], *, combine: bool) -> list[list[NodeKind]]:
        found = estimate(of, lambda _: None, lambda _: 0, sizes, combine=combine, chunk_tokens=None)
        return [[node.kind for node in nodes] for nodes in found.trees]

    assert trees(sources[:1], combine=True) == [[NodeKind.WHOLE]]
    assert trees(sources, combine=False) == [[NodeKind.WHOLE], [NodeKind.WHOLE]]
    assert trees(sources, combine=True) == [[NodeKind.CHUNK, NodeKind.CHUNK, NodeKind.JOIN]]
