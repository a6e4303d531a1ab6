"""Restoring token ids that a stream left out from the text that they spell."""

from collections.abc import Iterator, Sequence

from jobs.prompts.token_bytes import TokenBytes


def settle(
    ids: Sequence[int | None], text: str, vocabulary: TokenBytes | None, *, is_any_right: bool = False
) -> list[int] | None:
    """Find the missing ids among those that spell a text.

    Args:
        ids: None where one is missing; after each such token the text ends inside a character.
        text: what all of them spell.
        vocabulary: the bytes of each id; None if unknown.
        is_any_right: of several sequences that spell the text, any will do.

    Returns:
        All ids, or None if no sequence of ids spells the text, or several do.
    """
    if None not in ids:
        return [each for each in ids if each is not None]
    if vocabulary is None:
        return None
    found = _spellings(ids, text.encode(errors="surrogatepass"), 0, vocabulary)
    only = next(found, None)
    return only if is_any_right or next(found, None) is None else None


def _spellings(
    ids: Sequence[int | None], text: bytes, begin: int, vocabulary: TokenBytes
) -> Iterator[list[int]]:
    """Yield every sequence of ids that spells exactly the text from `begin` on."""
    if not ids:
        if begin == len(text):
            yield []
        return
    first, *later = ids
    if first is not None:
        end = begin + len(vocabulary[first])
        if text[begin:end] == vocabulary[first]:
            yield from ([first, *rest] for rest in _spellings(later, text, end, vocabulary))
        return
    for end in range(begin + 1, len(text)):
        if text[end] & 0xC0 == 0x80:  # inside a character
            for candidate in vocabulary.ids_of(text[begin:end]):
                yield from ([candidate, *rest] for rest in _spellings(later, text, end, vocabulary))
