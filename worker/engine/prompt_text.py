"""Converting a counted prompt to text that a server encodes back into the same tokens."""

from jobs.errors import EngineError
from jobs.prompts.tokenizer import TokenIds, Tokenizer


def prompt_text(tokenizer: Tokenizer, ids: TokenIds, *, adds_bos: bool) -> str:
    """Return the text that the server encodes back into these ids.

    Args:
        tokenizer: the served model's tokenizer.
        ids: the prompt.
        adds_bos: the server itself prepends a beginning-of-text token.

    Raises:
        UnsafeTextError: no text encodes to these ids; see `Markup.write`.
        EngineError: the server would prepend a token that was not counted.
    """
    has_bos = tokenizer.bos_id is not None and len(ids) > 0 and ids[0] == tokenizer.bos_id
    if not adds_bos or tokenizer.bos_id is None:
        return tokenizer.markup.write(ids)
    if not has_bos:
        raise EngineError("the server starts every text with a token that this prompt does not have")
    return tokenizer.markup.write(ids[1:])
