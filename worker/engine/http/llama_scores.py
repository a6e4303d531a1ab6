"""Log probabilities of llama.cpp's tokens, and requests for those that it leaves out.

Source: llama.cpp's server of October 2026, `n_probs` of `/completion`.
"""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jobs.answers.log_probs import LEAST, Score
from jobs.prompts.token_bytes import TokenBytes
from worker.engine.deltas import TokenDelta
from worker.engine.http.call import Event, HttpEnd
from worker.engine.request import Request

SCORES: Final = "completion_probabilities"
# A run that waits for tokens waits on.
SIGN_OF_LIFE: Final = TokenDelta([], [])
# The server tells nothing of a token after which the text ends inside a character, so it is asked for another
# one in its place, whatever it is, and for the most likely ones.
_ANY_LETTER: Final = "root ::= [a-z]"
# Where a token that was picked is found almost always; the next request is for the whole vocabulary.
_NUM_LIKELY: Final = 256
_NUM_ALL: Final = 2**24


@dataclass(slots=True)
class Scoring:
    """The requests for scores that an answer lacks, one for each place; a `Dialect`.

    What the server tells of probabilities does not depend on how it picks a token.

    Attributes:
        before: the ids before those that are held.
        held: ids and scores; None where one is missing.
        request: whose answer it is.
        end: of the answer.
        num_likely: how many of the most likely tokens the server is asked for.
    """

    before: Sequence[int]
    held: list[tuple[int, Score | None]]
    request: Request
    end: HttpEnd
    num_likely: int = _NUM_LIKELY

    path = "/completion"
    refuses_reliably = True
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body: what comes before the place is still in the server's cache."""
        earlier = [token_id for token_id, _ in self.held[: self._place]]
        return {
            "prompt": [*self.before, *earlier],
            "n_predict": 1,
            "n_probs": self.num_likely,
            "temperature": 0.0,
            "grammar": _ANY_LETTER,
            "cache_prompt": self.request.may_reuse,
            "response_fields": [SCORES],
            **adapted(self.request),
        }

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the score of the place; after the last one give all tokens that were held back."""
        (told,), place = event[SCORES], self._place
        token_id, top = self.held[place][0], _top_of(told)
        log_prob = dict(top).get(token_id)
        if log_prob is None and self.num_likely < _NUM_ALL:
            self.num_likely = _NUM_ALL
            return [SIGN_OF_LIFE, HttpEnd(rest=self)]
        self.num_likely = _NUM_LIKELY
        self.held[place] = (
            token_id,
            Score(LEAST if log_prob is None else log_prob, top[: self.request.num_top or 0]),
        )
        scores = [each for _, each in self.held if each is not None]
        if len(scores) < len(self.held):
            return [SIGN_OF_LIFE, HttpEnd(rest=self)]
        return [TokenDelta([token_id for token_id, _ in self.held], scores), self.end]

    def stop(self) -> None:
        """Return None: the server ends a request when its stream is cut."""

    @property
    def _place(self) -> int:
        return next(place for place, (_, score) in enumerate(self.held) if score is None)


def adapted(request: Request) -> Mapping[str, object]:
    """Build the field that names the request's adapter: of those that are not listed, the scale is 0."""
    if request.adapter is None:
        return {}
    return {"lora": [{"id": request.adapter.place, "scale": 1.0}]}


def scores_in(
    event: Mapping[str, Any], ids: Sequence[int], vocabulary: TokenBytes | None
) -> list[Score | None]:
    """Read the scores of an event's tokens.

    Args:
        event: of a stream, or a whole answer.
        ids: of the tokens.
        vocabulary: the bytes of each token. None: the event has those tokens alone that end a character.

    Returns:
        None for a token after which the text ends inside a character.

    Raises:
        ValueError: they are not those of these tokens.
    """
    told = list(event.get(SCORES) or ())
    are_told = [True] * len(ids) if vocabulary is None else _ends_of_characters(ids, vocabulary)
    if len(told) != sum(are_told):
        raise ValueError(f"{len(told)} log probabilities for {len(ids)} tokens")
    each = iter(told)
    return [_score_of(next(each)) if is_told else None for is_told in are_told]


def _score_of(told: Mapping[str, Any]) -> Score:
    return Score(float(told["logprob"]), _top_of(told))


def _top_of(told: Mapping[str, Any]) -> list[tuple[int, float]]:
    return [(int(each["id"]), float(each["logprob"])) for each in told.get("top_logprobs") or ()]


def _ends_of_characters(ids: Sequence[int], vocabulary: TokenBytes) -> list[bool]:
    """Return for each token whether the text after it ends with a whole character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for token_id in ids:
        decoder.decode(vocabulary[token_id])
        found.append(not decoder.getstate()[0])
    return found
