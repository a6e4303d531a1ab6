"""The default speaker: an extract of the documents in the last user message, or a sentence of them."""

from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from . import answers, fields, summary
from .documents import MARK, Asked
from .speech import Ask, Markup, Script, TokenIds


class ExtractiveSpeaker:
    """A speaker of the most informative sentences of the prompt's documents; sampling requests draw them."""

    def __init__(self, tokenizer_dir: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
        self.markup = markup_of(self._tokenizer)
        self.tags = _thinking_tags(self._tokenizer)

    def script(self, asked: TokenIds, ask: Ask) -> Script:
        """Extract about 60 to 250 tokens from the documents, or answer in JSON what is asked about them."""
        message = Asked.of(self.message(asked))
        reply = fields.reply(message) or answers.reply(message)
        if reply is not None:
            ids = self.encode(reply)
            return Script(ids=ids, length=len(ids))
        draws = summary.Draws(ask.generator(), ask.temperature)
        opening = self.encode(MARK)
        ids = self.encode(f" {summary.summarize(message.texts, draws)}")
        return Script(ids=ids, length=len(opening) + len(ids), opening=opening)

    def message(self, asked: TokenIds) -> str:
        """Return the text of the last user message, or the whole prompt if it has no turns."""
        content = asked
        headers = self.markup.headers(asked)
        for (header, role_end, start), (following, _, _) in pairwise(headers):
            role = self._tokenizer.decode(asked[header + 1 : role_end].tolist())
            if role.strip() == "user":
                content = asked[start:following]
        text: str = self._tokenizer.decode(content.tolist(), skip_special_tokens=True)
        return text

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode a text without tokens that mark its beginning or end."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _thinking_tags(tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Look up the ids of the tags around thinking. Returns None if the tokenizer lacks one."""
    begin, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")
    return None if begin is None or end is None else (int(begin), int(end))


def markup_of(tokenizer: Tokenizer) -> Markup:
    """Look up the ids of Llama 3's markup. A token that the tokenizer lacks gets an id that never occurs."""

    def known(token: str) -> int:
        found = tokenizer.token_to_id(token)
        return -1 if found is None else int(found)

    return Markup(
        start_header=known("<|start_header_id|>"),
        end_header=known("<|end_header_id|>"),
        end_of_turn=known("<|eot_id|>"),
        blank_line=tuple(tokenizer.encode("\n\n", add_special_tokens=False).ids),
    )
