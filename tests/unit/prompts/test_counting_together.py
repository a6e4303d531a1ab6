"""Short prompts counted together: exactly, lazily, in bounded calls."""

import json
from collections.abc import Sequence

import pytest

from jobs.prompts.counter import TOGETHER_CHARS, PromptCounter, count_some
from jobs.prompts.messages import Message, canonical, canonical_text
from jobs.prompts.store import CountedPrompt
from jobs.prompts.tokenizer import Tokenizer


@pytest.mark.parametrize("is_plain", [False, True])
def test_prompts_counted_together_have_the_ids_of_each_alone(tokenizer: Tokenizer, *, is_plain: bool) -> None:
    texts = ["Why?", "", " two  spaces ", "naïve 😀 漢字", "<|eot_id|> is text", "x" * 20_000, "a\n\nb\t"]
    counter = PromptCounter(tokenizer)
    prompts = [canonical_text(each) if is_plain else canonical([Message("user", each)]) for each in texts]
    refused = json.dumps([{"role": "tool", "content": "no such role"}])
    together = counter.count_together([*prompts, refused])
    alone = [counter.count_prompt(each) for each in prompts]
    assert [each for each in together if each is None] == [None] * 2, "the long one, and the error"
    assert [each or one for each, one in zip(together[:-1], alone, strict=True)] == alone


def test_prompts_are_counted_in_calls_that_grow_and_stay_bounded(tokenizer: Tokenizer) -> None:
    class Watched(PromptCounter):
        def count_together(self, canonicals: Sequence[str]) -> list[CountedPrompt | None]:
            sizes.append(sum(map(len, canonicals)))
            return [None] * len(canonicals)

    sizes: list[int] = []
    prompts = ["y" * 3000 if number % 10 else "long " * 900 for number in range(200)]
    found = count_some(prompts, Watched(tokenizer), max_chars=4000)
    assert next(found) is None
    assert sum(sizes) < 20_000, "a caller who stops here had few counted in vain"
    assert len(list(found)) == 199
    assert sum(sizes) == 180 * 3000, "long ones are left out"
    assert max(sizes) <= TOGETHER_CHARS
