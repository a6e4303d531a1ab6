"""The parts that an answer is kept apart in: thinking, text, and calls of functions."""

from jobs.errors import UnsupportedParameterError
from jobs.prompts.store import CountedPrompt
from jobs.prompts.tokenizer import Tokenizer, unpack_ids
from jobs.prompts.tools.forms import AnswerForm
from jobs.prompts.tools.harmony import HarmonySplitter
from jobs.prompts.tools.parser import CallParser
from worker.inference.text_answer import AnyAnswer


def split(answer: AnyAnswer, form: AnswerForm, prompt: CountedPrompt, tokenizer: Tokenizer) -> None:
    """Keep the parts of an answer to a conversation apart; a text without template has none.

    An answer that the engine guides from its first token on has no thinking.

    Raises:
        UnsupportedParameterError: how the model writes calls is not known.
    """
    if prompt.is_plain:
        return
    if not form.is_guided:
        _split_thinking(answer, form, prompt, tokenizer)
    if form.calls is None:
        return
    if tokenizer.calls is None:
        raise UnsupportedParameterError("tools: the engine's tokenizer takes none.", param="tools")
    if form.calls.is_json or not tokenizer.channels:
        answer.find_calls(CallParser(form.calls, tokenizer.calls.format), tokenizer.calls.ids)


def _split_thinking(answer: AnyAnswer, form: AnswerForm, prompt: CountedPrompt, tokenizer: Tokenizer) -> None:
    if tokenizer.channels:
        calls = None if form.calls is None or form.calls.is_json else form.calls
        is_single = calls is not None and not calls.is_parallel
        splitter = HarmonySplitter(calls.names if calls else (), is_single=is_single)
        answer.split_channels(splitter, tokenizer.channels, has_calls=calls is not None)
    elif tokenizer.thinking is not None:
        is_open = tokenizer.opens_thinking(unpack_ids(prompt.packed_ids))
        answer.split_thinking(tokenizer.thinking, is_open=is_open)
