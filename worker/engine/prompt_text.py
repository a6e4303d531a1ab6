"""A counted prompt as text, for servers that encode it themselves, so that they read what was counted."""

from jobs.errors import EngineError
from jobs.prompts.tokenizer import TokenIds, Tokenizer


def prompt_text(tokenizer: Tokenizer, ids: TokenIds, *, adds_bos: bool) -> str:
    """The text that the server turns back into these ids.

    Args:
        tokenizer: of the served model.
        ids: the prompt.
        adds_bos: the server puts a beginning-of-text token in front by itself.

    Raises:
        UnsafeTextError: no text means these ids; see `Markup.write`.
        EngineError: the server would put a token in front that was not counted.
    """
    begins = tokenizer.bos_id is not None and len(ids) > 0 and ids[0] == tokenizer.bos_id
    if not adds_bos or tokenizer.bos_id is None:
        return tokenizer.markup.write(ids)
    if not begins:
        raise EngineError("the server begins every text with a token that this prompt does not have")
    return tokenizer.markup.write(ids[1:])
