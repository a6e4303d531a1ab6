"""The order in which a run's documents start, and what they wait for."""

from pathlib import Path

import pytest

from longbatch.documents.opening import MAX_WAIT_SECONDS, Opening
from longbatch.documents.sources import SourceFile, Survey
from longbatch.documents.trees import Trees
from longbatch.flows import Pause

SIZES = {"a.txt": 900, "b.txt": 0, "c.txt": 30, "d.txt": 30, "e.txt": 500}


@pytest.fixture
def sources() -> list[SourceFile]:
    return [SourceFile(Path("/in") / name, name, Path(name), num_bytes=size) for name, size in SIZES.items()]


@pytest.fixture
def opening(sources: list[SourceFile]) -> Opening:
    survey = Survey()
    for source in sources:
        survey.add(source)
    return Opening(Trees(), {}, survey, num_sampled=5)


def waits(opening: Opening, source: SourceFile) -> bool:
    return isinstance(next(opening.turn(source), None), Pause)


def test_the_shortest_document_with_content_comes_first_and_all_keep_their_places(
    opening: Opening, sources: list[SourceFile]
) -> None:
    assert (opening.survey.num_documents, opening.survey.num_bytes) == (5, 1460)
    ordered = [*opening.survey.ordered(sources)]
    assert [source.shown for _, source in ordered] == ["c.txt", "a.txt", "b.txt", "d.txt", "e.txt"]
    assert all(sources[place] is source for place, source in ordered)


def test_a_shortest_document_that_is_gone_changes_no_order(
    opening: Opening, sources: list[SourceFile]
) -> None:
    left = [source for source in sources if source.shown != "c.txt"]
    assert [source for _, source in opening.survey.ordered(left)] == left
    assert not any(waits(opening, source) for source in left), "nor does any document wait for it"


def test_documents_wait_until_any_has_a_result(opening: Opening, sources: list[SourceFile]) -> None:
    long, _, shortest, other, last = sources
    assert not waits(opening, shortest)
    assert waits(opening, long)
    opening.ended(other, is_completed=False)
    assert waits(opening, long)
    opening.ended(last, is_completed=True)
    assert not waits(opening, long)


def test_no_document_waits_for_a_shortest_one_that_failed(
    opening: Opening, sources: list[SourceFile]
) -> None:
    opening.ended(sources[2], is_completed=False)
    assert not waits(opening, sources[0])


def test_no_document_waits_for_one_that_an_earlier_run_began(
    opening: Opening, sources: list[SourceFile]
) -> None:
    opening.uploaded(sources[0], "doc_1")
    opening.started(sources[0])
    assert waits(opening, sources[0]), "it was uploaded just now"
    opening.started(sources[2])
    assert not waits(opening, sources[0])


def test_no_document_waits_long(opening: Opening, sources: list[SourceFile]) -> None:
    now = 1000.0
    opening.clock = lambda: now
    opening.uploaded(sources[2], "doc_1")
    opening.started(sources[2])
    now += MAX_WAIT_SECONDS - 0.1
    assert waits(opening, sources[0])
    now += 0.1
    assert not waits(opening, sources[0])
