"""Estimates of summaries: the very plan that would run, made without writing anything."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobs.forecast.duration import Estimate
from jobs.forecast.engine_speed import reading_work
from jobs.summaries import tree
from jobs.summaries.chunking import Count, Starts
from jobs.summaries.tree import Leaf, Node, Sizes, SourceDocument


class Build(Protocol):
    """Builds the nodes over these leaves; see `tree.build`."""

    def __call__(self, leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:
        """Build the nodes by number."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """The trees of a request.

    Attributes:
        trees: the nodes of each tree.
        leaves: number of leaves of each document, in the order of the sources.
        levels: number of levels of each document's tree.
    """

    trees: Sequence[Sequence[Node]]
    leaves: Sequence[int]
    levels: Sequence[int]

    @property
    def nodes(self) -> Iterable[Node]:
        """The nodes of all trees."""
        return (node for tree in self.trees for node in tree)

    @property
    def num_jobs(self) -> int:
        """Number of jobs in all trees."""
        return sum(map(len, self.trees))

    def as_work(self) -> Estimate:
        """Add up the engines' work, to estimate its duration."""
        return Estimate(
            num_lines=self.num_jobs,
            prompt_tokens=sum(node.prompt_tokens for node in self.nodes),
            max_output_tokens=sum(node.output_tokens for node in self.nodes),
            reading=sum(reading_work(node.prompt_tokens) for node in self.nodes),
        )


def estimate(
    sources: Sequence[SourceDocument],
    load: Callable[[SourceDocument], str | None],
    count: Count,
    sizes: Sizes,
    *,
    combine: bool,
    chunk_tokens: int | None,
    starts: Starts | None = None,
    build: Build = tree.build,
) -> Estimated:
    """Plan the trees over these documents.

    Args:
        sources: the documents, in order.
        load: returns a document's text; None if only its length is known, or cutting all would take too long.
        count: counts the tokens of a text.
        starts: finds where tokens begin, see `chunking.cut`.
        sizes: for the available engines.
        combine: plan one tree over all documents.
        chunk_tokens: as requested.
        build: builds the nodes over the leaves of a tree.

    Raises:
        TooManyChunksError: all trees together have more chunks than one plan may have.
    """

    def is_whole(source: SourceDocument) -> bool:
        fits = tree.fits_whole(source, sizes, asked_chunk_tokens=chunk_tokens)
        return fits and (len(sources) == 1 or not combine)

    def cut(source: SourceDocument) -> list[Leaf]:
        whole = is_whole(source)
        text = None if whole else load(source)  # one at a time: texts can be long
        if text is None:
            return tree.sketch(source, sizes, whole=whole)
        return tree.cut(source, text, count, sizes, whole=whole, starts=starts)

    tree.check_num_chunks((each for each in sources if not is_whole(each)), sizes, whole=False)
    found = [cut(source) for source in sources]
    if combine:
        joined = [leaf for leaves in found for leaf in leaves]
        trees = [build(joined, sizes, whole=len(sources) == 1 and is_whole(sources[0]))]
    else:
        trees = [
            build(leaves, sizes, whole=is_whole(source))
            for source, leaves in zip(sources, found, strict=True)
        ]
    levels = [tree[-1].level + 1 for tree in trees]
    return Estimated(trees, [len(leaves) for leaves in found], levels * len(found) if combine else levels)
