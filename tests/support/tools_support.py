"""Tokenizers of models that take tools, with chat templates in the forms of Hermes, Qwen and gpt-oss."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from jobs.prompts.tokenizer_files import ensure_default_tokenizer

WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}},
}

HERMES: Final = """\
{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Functions, within <tools></tools>:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nCall one as <tool_call>\\n{"name": …, "arguments": …}\\n</tool_call><|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|eot_id|>' }}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {{- message.content if message.content is string else '' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
"""

HARMONY: Final = """\
{{- '<|start|>system<|message|>Today is ' + strftime_now('%Y-%m-%d') + '.<|end|>' }}
{%- if tools %}
    {{- '<|start|>developer<|message|>namespace functions {' }}
    {%- for tool in tools %}
        {{- '\\n// ' + (tool.function.description or '') + '\\ntype ' + tool.function.name + ' = (_: {' }}
        {%- for name, each in tool.function.parameters.properties.items() %}
            {{- ' ' + name + ': ' }}
            {{- 'number' if each.type == 'integer' else 'string' if each.type == 'string' else 'any' }}
        {%- endfor %}
        {{- ' }) => any;' }}
    {%- endfor %}
    {{- '\\n}<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start|>functions.' + message.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content | tojson + '<|end|>' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary ' }}
            {{- '<|constrain|>json<|message|>' + call.function.arguments | tojson + '<|call|>' }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{{- '<|start|>assistant' }}
"""
_TAGS: Final = {128002: "<tool_call>", 128003: "</tool_call>", 128005: "<think>", 128011: "</think>"}
_CHANNELS: Final = {
    128002: "<|start|>",
    128003: "<|channel|>",
    128005: "<|constrain|>",
    128011: "<|message|>",
    128012: "<|end|>",
    128013: "<|call|>",
}


def hermes_tokenizer(directory: Path, *, thinks: bool = False) -> Path:
    """Write the files of a model like Hermes, or of one that thinks, too, like Qwen 3."""
    names = {key: text for key, text in _TAGS.items() if thinks or "think" not in text}
    return _written(directory, HERMES, names, special=False)


def harmony_tokenizer(directory: Path) -> Path:
    """Write the files of a model that answers in channels, like gpt-oss."""
    return _written(directory, HARMONY, _CHANNELS, special=True)


def _written(directory: Path, template: str, names: dict[int, str], *, special: bool) -> Path:
    shutil.copytree(ensure_default_tokenizer(), directory, dirs_exist_ok=True)
    begin, mark, model = (directory / "tokenizer.json").read_text().partition(',\n  "model": ')
    document = json.loads(begin + "}")
    for token in document["added_tokens"]:
        if token["id"] in names:
            token |= {"content": names[token["id"]], "special": special, "normalized": False}
    (directory / "tokenizer.json").write_text(json.dumps(document)[:-1] + mark + model)
    (directory / "chat_template.jinja").write_text(template)
    if "<|call|>" in names.values():
        ends = json.loads((directory / "generation_config.json").read_text())
        ends["eos_token_id"].append(128013)
        (directory / "generation_config.json").write_text(json.dumps(ends))
    return directory


# For a model in ChatML whose own template takes no tools.
CHATML_WITH_TOOLS: Final = """\
{%- macro told() %}
    {%- if tools %}
        {{- '\\nYou may call functions: answer <tool_call>{"name": …, "arguments": …}</tool_call>.' }}
        {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.' + told() + '<|im_end|>\\n' }}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- if loop.first and message.role == 'system' %}{{- told() }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
"""
