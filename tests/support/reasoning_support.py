"""A Llama 3 tokenizer whose model thinks: two tags, and a chat template with a switch."""

import json
import shutil
from pathlib import Path
from typing import Final

from jobs.prompts.tokenizer_files import ensure_default_tokenizer

BEGIN: Final = "<think>"
END: Final = "</think>"
# They replace two reserved tokens, and are not special, as in Qwen 3 and DeepSeek-R1.
BEGIN_ID: Final = 128002
END_ID: Final = 128003
# The switch is Qwen 3's: thinking is on by default, and `enable_thinking=false` closes it in the prompt. With
# `opens`, the prompt opens it, as that of DeepSeek-R1 does.
TEMPLATE: Final = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- elif opens %}
        {{- '<think>\\n' }}
    {%- endif %}
    {%- if effort is defined %}
        {{- 'Effort: ' + effort.upper() + '\\n' }}
    {%- endif %}
{%- endif %}
"""


def thinking_tokenizer(
    directory: Path, *, template: str = TEMPLATE, tags: tuple[str, str] = (BEGIN, END), special: bool = False
) -> Path:
    """Write the tokenizer's files into this directory and return it."""
    shutil.copytree(ensure_default_tokenizer(), directory, dirs_exist_ok=True)
    # The model, 17 MB of it, stays as it is: reading and writing it as JSON takes seconds.
    begin, mark, model = (directory / "tokenizer.json").read_text().partition(',\n  "model": ')
    document = json.loads(begin + "}")
    names = dict(zip((BEGIN_ID, END_ID), tags, strict=True))
    for token in document["added_tokens"]:
        if token["id"] in names:
            token |= {"content": names[token["id"]], "special": special, "normalized": False}
    (directory / "tokenizer.json").write_text(json.dumps(document)[:-1] + mark + model)
    (directory / "chat_template.jinja").write_text(template)
    return directory
