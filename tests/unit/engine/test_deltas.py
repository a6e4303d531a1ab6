"""Deltas of a stream that came together."""

from jobs.answers.log_probs import Score
from worker.engine.deltas import CachedPrompt, EngineDelta, TextDelta, TokenDelta, joined


def test_neighbouring_tokens_become_one_delta_and_all_else_stays_in_order() -> None:
    cached, text = CachedPrompt(16), TextDelta("so")
    deltas: list[EngineDelta] = [TokenDelta([1]), TokenDelta([2, 3]), cached, TokenDelta([4]), text, text]
    assert joined(deltas) == [TokenDelta([1, 2, 3]), cached, TokenDelta([4]), text, text]
    assert joined([]) == []


def test_the_score_of_each_token_stays_with_it() -> None:
    first, second = Score(-0.5, []), Score(-1.5, [(7, -1.0)])
    assert joined([TokenDelta([1], [first]), TokenDelta([7], [second])]) == [
        TokenDelta([1, 7], [first, second])
    ]


def test_a_token_without_the_scores_that_its_neighbour_has_is_not_hidden() -> None:
    (found,) = joined([TokenDelta([1], [Score(-0.5, [])]), TokenDelta([2])])
    assert isinstance(found, TokenDelta)
    assert found.scores is not None
    assert len(found.scores) != len(found.ids)
