"""An extract of a document: its most informative sentences in their own order, in linear time."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

# A sentence ends at its mark and white space (not needed after a CJK mark) or at an empty line.
_CJK_MARKS = "\u3002\uff01\uff1f"  # ideographic full stop, full-width exclamation and question mark
_SENTENCE_END = re.compile(rf"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[^\W_])|(?<=[{_CJK_MARKS}])|\n\s*\n")
_WORD = re.compile(r"[^\W\d_][\w'-]*")
_STOP_WORDS_TEXT = """
about above after again against all also although always among and another any are because been before being
below between both but can cannot could did does doing done down during each either else even every few for
from further had has have having her here hers him his how however into its itself just like made make many
may might more most much must neither nor not now off often once one only other our ours out over own per
same see shall she should since some such than that the their them then there these they this those though
through thus too two under until upon use used using very was way were what when where whether which while
who whom why will with within without would yet you your
"""
_STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())
_MIN_WORDS, _MAX_WORDS = 6, 45  # shorter ones are headings and fragments, longer ones lists and tables
_TINY = 1e-300  # in place of 0, which has no logarithm
_OVERLAP = 0.5  # a sentence that shares more of its content words with the extract adds nothing new


@dataclass(frozen=True)
class _Sentence:
    place: int
    text: str
    words: frozenset[str]
    length: int
    score: float


@dataclass(frozen=True)
class Draws:
    """The random choice of an extract's sentences.

    Attributes:
        random: None picks the best sentences.
        temperature: above 0; the higher it is, the less the scores matter.
    """

    random: Random | None = None
    temperature: float = 1.0

    def rank(self, score: float) -> float:
        """Return the score, randomized so that the best are drawn in proportion to it.

        Source: the Gumbel-max trick, as in sampling tokens from logits.
        """
        if self.random is None:
            return score
        noise = -math.log(self.random.expovariate(1) or _TINY)
        return math.log(max(score, _TINY)) / self.temperature + noise


_BEST = Draws()


def summarize(document: str, draws: Draws = _BEST) -> str:
    """Extract about 60 to 250 tokens of readable prose, never empty and never reworded."""
    frequencies = Counter(content_words(document))
    found = list(_candidates(document, frequencies))
    if not found:
        return _beginning(document)
    ranked = sorted(found, key=lambda each: -draws.rank(each.score))
    chosen = _choose(ranked, words_wanted(frequencies.total()))
    return " ".join(sentence.text for sentence in chosen)


def words_wanted(num_content_words: int) -> int:
    """Compute the words of an extract: 45 for a page, growing with the log of the length up to 180."""
    return round(min(180.0, 45 + 15 * math.log2(max(1.0, num_content_words / 150))))


def sentences(text: str) -> list[str]:
    """Split a text into sentences, headings and lines of tables, as they stand in it."""
    return [stretch for stretch in _SENTENCE_END.split(text) if stretch]


def content_words(text: str) -> list[str]:
    """List the words that a text is about, in small letters."""
    return [word for word in _WORD.findall(text.lower()) if len(word) > 2 and word not in _STOP_WORDS]


def _candidates(document: str, frequencies: Counter[str]) -> Iterator[_Sentence]:
    """Score the sentences of prose by frequent content words and an early or late position."""
    stretches = sentences(document)
    seen: set[str] = set()
    for place, stretch in enumerate(stretches):
        text = " ".join(stretch.split())
        if not text or text in seen or not _is_prose(text):
            continue
        seen.add(text)
        words = frozenset(content_words(text))
        length = _num_words(text)
        weight = sum(1 + math.log(frequencies[word]) for word in words if frequencies[word] > 1)
        # Dividing by the root favours neither short sentences nor long ones.
        score = weight / math.sqrt(length) * _position_factor(place / len(stretches), place)
        yield _Sentence(place, text, words, length, score)


def _is_prose(text: str) -> bool:
    if text[-1] in _CJK_MARKS:
        return len(text) >= _MIN_WORDS
    if text[-1] not in ".!?\"')" or not (text[0].isupper() or text[0] in "\"'("):
        return False
    if not _MIN_WORDS <= text.count(" ") + 1 <= _MAX_WORDS:
        return False
    letters = sum(map(str.isalpha, text))
    return letters > 0.7 * len(text.replace(" ", ""))


def _num_words(text: str) -> int:
    # Scripts without spaces: about two characters a word.
    return max(text.count(" ") + 1, len(text) // 12)


def _position_factor(share: float, place: int) -> float:
    opening = 0.6 / (1 + place)
    return 1 + opening + (0.15 if share > 0.95 else 0.0)


def _choose(ranked: list[_Sentence], wanted: int) -> list[_Sentence]:
    """Choose the best sentences that do not repeat each other. Returns them in the document's order."""
    chosen: list[_Sentence] = []
    covered: set[str] = set()
    length = 0
    for sentence in ranked:
        if length >= wanted:
            break
        repeats = len(sentence.words & covered) > _OVERLAP * len(sentence.words)
        if chosen and (repeats or length + sentence.length > wanted + 20):
            continue
        chosen.append(sentence)
        covered |= sentence.words
        length += sentence.length
    return sorted(chosen, key=lambda each: each.place)


def _beginning(document: str) -> str:
    """Return the first words of a text without sentences."""
    text = " ".join(document[:4000].split())
    if not text:
        return "The document is empty."
    return " ".join(text.split(" ")[:60])[:600]
