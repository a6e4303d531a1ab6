"""How models write calls: told by their chat templates."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ToolFormat(StrEnum):
    """The form in which a model writes calls."""

    LLAMA3 = "llama3"  # JSON alone, or after <|python_tag|>
    HERMES = "hermes"  # JSON in <tool_call>…</tool_call>, as Qwen 2.5 and 3 do too
    HARMONY = "harmony"  # gpt-oss: messages in channels, a call's one has a recipient


# The control tokens that the text of an answer must show, since calls are found by them.
SHOWN: Final[dict[ToolFormat, tuple[str, ...]]] = {
    ToolFormat.LLAMA3: ("<|python_tag|>",),
    ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
    ToolFormat.HARMONY: ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
}


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """How a model writes calls.

    Attributes:
        format: its form.
        ids: of the control tokens that an answer's text must show, with their text.
        are_hidden: a server that decodes tokens itself leaves one out without which no call is found.
    """

    format: ToolFormat
    ids: dict[int, str]
    are_hidden: bool


def find_markup(
    template: str | None,
    controls: Mapping[str, int],
    hidden_ids: frozenset[int],
    *,
    takes_tools: bool,
    setting: str,
) -> CallMarkup | None:
    """Find out how a model writes calls, unless the setting tells.

    Args:
        template: the source of its chat template; None: it has none.
        controls: the ids of the tokenizer's added tokens.
        hidden_ids: those of them that have no text in an answer.
        takes_tools: whether the template reads the tools that a request defines.
        setting: a `ToolFormat`, `auto` or `none`.

    Returns:
        None: requests cannot have tools.
    """
    found = find_format(template) if setting == "auto" else None if setting == "none" else ToolFormat(setting)
    if found is None or not takes_tools:
        return None
    ids = {controls[text]: text for text in SHOWN[found] if text in controls}
    # Llama 3 writes most calls without its tag.
    are_hidden = found is not ToolFormat.LLAMA3 and not hidden_ids.isdisjoint(ids)
    return CallMarkup(found, ids, are_hidden=are_hidden)


def find_format(template: str | None) -> ToolFormat | None:
    """Find out how a model writes calls by its chat template; None: in a form that is not known here."""
    if template is None:
        return None
    if _is_harmony(template):
        return ToolFormat.HARMONY
    # Both are other forms within the same tags, without JSON.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return ToolFormat.HERMES
    if "<|python_tag|>" in template or ("<|eot_id|>" in template and "ipython" in template):
        return ToolFormat.LLAMA3
    return None


def channel_ids(template: str | None, controls: Mapping[str, int]) -> dict[int, str]:
    """Return the ids of the tokens between the parts of a model's answers in channels, with their text.

    Returns:
        Empty: they have none.
    """
    if template is None or not _is_harmony(template):
        return {}
    return {controls[text]: text for text in SHOWN[ToolFormat.HARMONY] if text in controls}


def _is_harmony(template: str) -> bool:
    return "<|channel|>" in template and "<|message|>" in template
