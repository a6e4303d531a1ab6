"""The language of a text: by its script, or by frequent words if languages share the script."""

# ruff: noqa: RUF001  # words of other alphabets are the point of this module

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

_NUM_SAMPLES: Final = 16
_SAMPLE_CHARS: Final = 4000
_MIN_LETTERS: Final = 20
_MIN_SHARE: Final = 0.08  # of all words; in a text's own language, frequent words are a third
_MIN_LEAD: Final = 1.15  # over the second language; Danish and Norwegian share most frequent words

# First and last character of each script; its language, or None if words decide.
_SCRIPTS: Final = (
    ("latin", "A", "\u024f", None),
    ("greek", "\u0370", "\u03ff", "el"),
    ("cyrillic", "\u0400", "\u04ff", None),
    ("armenian", "\u0530", "\u058f", "hy"),
    ("hebrew", "\u0590", "\u05ff", "he"),
    ("arabic", "\u0600", "\u06ff", None),
    ("devanagari", "\u0900", "\u097f", "hi"),
    ("bengali", "\u0980", "\u09ff", "bn"),
    ("tamil", "\u0b80", "\u0bff", "ta"),
    ("telugu", "\u0c00", "\u0c7f", "te"),
    ("thai", "\u0e00", "\u0e7f", "th"),
    ("georgian", "\u10a0", "\u10ff", "ka"),
    ("kana", "\u3040", "\u30ff", "ja"),
    ("han", "\u4e00", "\u9fff", "zh"),
    ("hangul", "\uac00", "\ud7af", "ko"),
)
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "latin": {
        "en": "the of and to in is that for it as was with on be by are this not or from at an which you",
        "de": "der die und das in den von zu ist mit nicht sich des auf für eine dem ein auch als wird aus",
        "fr": "le la de les et des en un une du est que pour dans qui sur par au plus pas avec ce sont il",
        "es": "de la que el en y los del se las por un para con no una su al lo como más es son pero",
        "pt": "de que o a e do da em um para com não uma os no se na por mais as dos como mas foi ao são",
        "it": "di che e il la un in per una è non con del si da le dei alla della sono nel come più gli ha",
        "nl": "de het van een en in is dat op te zijn voor met die niet aan er om ook als door bij naar",
        "sv": "och att det i som en på är av för med den till inte om ett har de så men var jag kan från",
        "da": "og i at det en til er af på de for som med den der ikke et har han fra blev var jeg efter",
        "no": "og i det er på til som en å for at av med de har den ikke et om var fra jeg men så etter",
        "fi": "ja on ei se että oli hän mutta ovat kun niin myös joka sen kuin ole tai mitä jos hänen ne voi",
        "pl": "i w nie na się z do to jest że o jak za od po są oraz dla tym przez był ale przy może jego",
        "cs": "a se v na je že s z do o to i za pro jako by jsou ve k po při od jeho být která nebo ale",
        "sk": "a v sa na je že s z do o to aj za pre ako by sú vo k po pri od jeho byť ktorá alebo ale",
        "hu": "a az és hogy nem is egy ez van volt meg de csak már mint vagy ha el kell azt lehet sem még",
        "ro": "și de la în a cu pe care nu din să un o este că mai pentru au fost lui sau prin ca se al",
        "tr": "ve bir bu da de için ile olarak çok daha gibi en olan ne kadar sonra ama o her var mi değil",
        "vi": "và của là có trong được cho các một không người những với này đã để khi từ đến như tôi về",
        "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga ke karena oleh sebagai",
        "hr": "i je u na se da za od su koji s kao a o te iz što ne biti bio ili ali po do sve može",
        "ca": "de la i el que en a les els un per una del amb és no es al són com més ha seva aquest però",
        "la": "et in est non ad ut cum qui quod sed ex per quae ab si de hoc esse atque enim nec sunt",
    },
    "cyrillic": {
        "ru": "и в не на что с по как это он из за от так для то но его был она они бы все или при",
        "uk": "і в не на що з та як це до за від для його але був є про або при також вони й він під",
        "bg": "и на в да се за от е не са с по като че това до си или който при беше ще към може",
        "sr": "и у је да се на за од су који са као а о из што не бити био или али по до све може",
    },
    "arabic": {
        "ar": "في من على إلى أن التي هذا عن مع كان ما لا هذه الذي بين كل بعد أو ذلك قد",
        "fa": "و در به از که این را با است برای آن یک خود تا بر هم شده می های شود",
        "ur": "کے میں کی ہے اور سے کا کو اس پر نے ہیں یہ کہ بھی ایک تھا کر ہو",
    },
}
_FREQUENT: Final = {
    script: {language: frozenset(words.split()) for language, words in each.items()}
    for script, each in _WORDS.items()
}
_WORD: Final = re.compile(r"[^\W\d_]+")


def detect(text: str) -> str | None:
    """Return the ISO 639-1 code of the text's main language; None if unsure."""
    sample = _sample(text)
    letters: Counter[str] = Counter()
    for name, first, last, _ in _SCRIPTS:
        letters[name] = len(re.findall(f"[{first}-{last}]", sample))
    if letters["kana"] * 8 > letters["han"]:  # Japanese uses both
        letters["kana"] += letters.pop("han")
    script, most = letters.most_common(1)[0]
    if most < _MIN_LETTERS:
        return None
    if script not in _FREQUENT:
        return next(language for name, _, _, language in _SCRIPTS if name == script)
    return _by_words(sample, _FREQUENT[script])


def _by_words(sample: str, frequent: Mapping[str, frozenset[str]]) -> str | None:
    words = Counter(_WORD.findall(sample.lower()))
    scores = Counter(
        {
            language: sum(num for word, num in words.items() if word in known)
            for language, known in frequent.items()
        }
    )
    (best, first), (_, second) = scores.most_common(2)
    is_sure = first >= _MIN_SHARE * words.total() and first >= _MIN_LEAD * second
    return best if is_sure else None


def _sample(text: str) -> str:
    """Sample the whole text: it may begin with a title page in another language."""
    if len(text) <= _NUM_SAMPLES * _SAMPLE_CHARS:
        return text
    step = len(text) // _NUM_SAMPLES
    return " ".join(text[at : at + _SAMPLE_CHARS] for at in range(0, step * _NUM_SAMPLES, step))
