"""The served model's tokenizer files: found, cached, or built from the bundled vocabulary."""

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from jobs.errors import LongbatchError

# Part of the cached directory's name: raise it when the files below are built differently.
BUILD_VERSION: Final = 3

# How Llama 3 and 3.1 split text before merging byte pairs (tokenizer.py of llama-models).
LLAMA3_PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# In the order of their ids, from 128000 on, as in Meta-Llama-3.1-8B-Instruct's tokenizer.json.
LLAMA3_SPECIAL_TOKENS: Final = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_2|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    *(f"<|reserved_special_token_{number}|>" for number in range(3, 248)),
)

# The prompt format of Llama 3.1. Unlike the published template, it adds no system message with a date and
# does not trim, so the same messages always give the same prompt. The system message tells of functions.
LLAMA3_CHAT_TEMPLATE: Final = """\
{{- bos_token }}
{%- set told = namespace(tools=not tools) %}
{%- macro functions() %}
    {{- 'You may call these functions. To call one, answer with JSON alone, in the form ' }}
    {{- '{"name": name of the function, "parameters": an object with its arguments}.' }}
    {%- for tool in tools %}
        {{- '\\n\\n' + tool | tojson(indent=4) }}
    {%- endfor %}
{%- endmacro %}
{%- if tools and messages[0]['role'] != 'system' %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + functions() + '<|eot_id|>' }}
    {%- set told.tools = true %}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'ipython' if message['role'] == 'tool' else message['role'] %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
    {%- if message['content'] %}
        {{- message['content'] }}
    {%- endif %}
    {%- if not told.tools %}
        {{- '\\n\\n' + functions() }}
        {%- set told.tools = true %}
    {%- endif %}
    {%- for call in message['tool_calls'] or [] %}
        {{- '; ' if not loop.first else '' }}
        {{- '{"name": ' + call.function.name | tojson + ', "parameters": ' }}
        {{- call.function.arguments | tojson + '}' }}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
LLAMA3_EOS_IDS: Final = [128001, 128008, 128009]

# The path that names the estimating tokenizer in place of a model's own.
ESTIMATE: Final = "estimate"
# In tokenizer_config.json: its counts are estimates.
ESTIMATE_MARK: Final = "longbatch_estimate"
# Byte pairs nest: with only the first merges, a text has as many tokens as with all of them, or more. 8,192
# of Llama 3's gave at least the count of five models' tokenizers in 35 languages, code and tables.
_ESTIMATE_VOCABULARY: Final = 8192
# Vocabularies differ most in runs of blanks, and few have line ends within other tokens.
_MAX_BLANKS: Final = 4
# Llama 3 keeps up to three digits together; most others count each.
_ESTIMATE_PATTERN: Final = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
# The server's own template wraps the messages: these tokens stand for a system message that it may add.
_ESTIMATE_TEMPLATE: Final = """\
{{- bos_token }}
{%- for _ in range(32) %}
    {{- '<|reserved_special_token_0|>' }}
{%- endfor %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' or message['tool_calls'] %}
        {{- raise_exception('calls of tools need the tokenizer of the model') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# A snapshot with one of these has a tokenizer.
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


class TokenizerMissingError(LongbatchError):
    """There is no usable tokenizer; set LONGBATCH_TOKENIZER__PATH or install the extra `local`."""

    code = "tokenizer_missing"


def tokenizer_directory(path_or_name: str | None) -> Path:
    """Return a directory with tokenizer.json and any chat template and token names.

    Args:
        path_or_name: a directory, a name in the Hugging Face cache, `estimate` for the estimating tokenizer,
            or None for the bundled Llama 3 one.

    Raises:
        TokenizerMissingError: the tokenizer is not on this machine; nothing is ever downloaded.
    """
    if path_or_name is None:
        return ensure_default_tokenizer()
    if path_or_name == ESTIMATE:
        return ensure_estimating_tokenizer()
    directory = Path(path_or_name)
    if (directory / "tokenizer.json").is_file():
        return directory
    if not directory.exists() and (cached := _hub_cache_directory(path_or_name)):
        return cached
    return _converted(path_or_name)


def local_tokenizer(path_or_name: str) -> Path | None:
    """Return the tokenizer directory of a model in this folder or in the Hugging Face cache.

    Returns:
        None if the tokenizer is not on this machine. Nothing is downloaded, and the bundled one is no
        substitute.
    """
    if not Path(path_or_name).is_dir():
        from huggingface_hub import try_to_load_from_cache

        try:
            hits = [try_to_load_from_cache(path_or_name, name) for name in _TOKENIZER_FILES]
        except ValueError:  # HFValidationError: not a valid name
            return None
        found = next((hit for hit in hits if isinstance(hit, str)), None)
        if found is None:
            return None
        path_or_name = str(Path(found).parent)
    try:
        return tokenizer_directory(path_or_name).absolute()
    except TokenizerMissingError:
        return None


def prepare_transformers() -> None:
    """Set, before the first import of transformers, that it downloads nothing and does not ask for PyTorch.

    Tokenizers and configurations need no PyTorch; its advice to install it looks like an error.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def template_of(directory: Path, config: Mapping[str, object], given: str | None) -> str | None:
    """Read a tokenizer's chat template.

    Args:
        directory: of the tokenizer.
        config: its tokenizer_config.json.
        given: a file that replaces it; None: none does.

    Raises:
        TokenizerMissingError: there is no such file.
    """
    if given is not None:
        try:
            return Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerMissingError(f"There is no chat template at {given!r}.") from error
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # older tokenizers have several, by name
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _hub_cache_directory(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        hit = try_to_load_from_cache(name, "tokenizer.json")
    except ValueError as error:  # HFValidationError: neither a directory nor a valid name
        raise TokenizerMissingError(f"There is no tokenizer at {name!r}.") from error
    return Path(hit).parent if isinstance(hit, str) else None


def _converted(path_or_name: str) -> Path:
    """Convert a tokenizer without tokenizer.json to its fast form and cache that."""
    prepare_transformers()
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path_or_name, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TokenizerMissingError(f"There is no tokenizer at {path_or_name!r}.") from error
    building = _building_directory(cache_directory())
    tokenizer.save_pretrained(building)
    generation = Path(path_or_name) / "generation_config.json"
    if generation.is_file():
        shutil.copy(generation, building)
    if not (building / "tokenizer.json").is_file():
        shutil.rmtree(building)
        raise TokenizerMissingError(f"The tokenizer at {path_or_name!r} has no fast form (tokenizer.json).")
    content = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(building.iterdir()))).hexdigest()
    return _publish(building, cache_directory() / f"converted-{content[:16]}")


def ensure_default_tokenizer(cache_dir: Path | None = None) -> Path:
    """Build the bundled Llama 3 tokenizer if necessary and return its directory.

    The files are those that `save_pretrained` writes. Built once per cache (about 4 s); safe to call from
    several processes at the same time.

    Args:
        cache_dir: None means `cache_directory()`.

    Raises:
        TokenizerMissingError: the wheel `llama-models` is not installed, or holds no vocabulary.
    """
    return _ensure_built("llama3", _build_llama3, cache_dir)


def ensure_estimating_tokenizer(cache_dir: Path | None = None) -> Path:
    """Build the estimating tokenizer if necessary and return its directory.

    It counts for models whose tokenizer is unknown, at or above their own count. Its ids mean nothing to an
    engine, but a conversation can be read back from them; see `jobs.prompts.estimates`.

    Arguments and errors are those of `ensure_default_tokenizer`.
    """
    return _ensure_built("estimate", _build_estimate, cache_dir)


def _ensure_built(name: str, build: Callable[[Path, Path], None], cache_dir: Path | None) -> Path:
    vocabulary = _llama_vocabulary()
    # The size identifies the content: the wheel is pinned, and hashing would read the file at every start.
    key = f"{name}-{BUILD_VERSION}-{vocabulary.stat().st_size}"
    final = (cache_dir or cache_directory()) / key
    if (final / "tokenizer.json").is_file():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    building = _building_directory(final.parent)
    build(vocabulary, building)
    return _publish(building, final)


def _llama_vocabulary() -> Path:
    """Find the vocabulary inside the installed wheel without importing it."""
    spec = importlib.util.find_spec("llama_models")
    if spec is None or spec.origin is None:
        raise TokenizerMissingError
    path = Path(spec.origin).parent / "llama3" / "tokenizer.model"
    if not path.is_file():
        raise TokenizerMissingError(f"The installed llama-models has no {path.name}.")
    return path


def _build_llama3(vocabulary: Path, into: Path) -> None:
    lines = (line.split() for line in vocabulary.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    _save(vocabulary, ranks, into, pattern=LLAMA3_PATTERN, template=LLAMA3_CHAT_TEMPLATE)
    _add_settings(into, {"add_bos_token": True})  # the published tokenizer begins every text with that token
    (into / "generation_config.json").write_text(json.dumps({"eos_token_id": LLAMA3_EOS_IDS}))


def _build_estimate(vocabulary: Path, into: Path) -> None:
    lines = vocabulary.read_bytes().splitlines()[:_ESTIMATE_VOCABULARY]
    tokens = [base64.b64decode(line.split()[0]) for line in lines]
    kept = [token for token in tokens if len(token) == 1 or not _is_uncommon(token)]
    ranks = {token: rank for rank, token in enumerate(kept)}
    _save(vocabulary, ranks, into, pattern=_ESTIMATE_PATTERN, template=_ESTIMATE_TEMPLATE)
    _add_settings(into, {"add_bos_token": True, ESTIMATE_MARK: True})


def _is_uncommon(token: bytes) -> bool:
    """Return True for a token that many vocabularies lack: line ends next to others, long runs of blanks."""
    is_blank = len(token) > _MAX_BLANKS and not token.strip(b" \t")
    return b"\n" in token or b"\r" in token or is_blank


def _save(vocabulary: Path, ranks: Mapping[bytes, int], into: Path, *, pattern: str, template: str) -> None:
    prepare_transformers()
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    class Converter(TikTokenConverter):  # type: ignore[misc]  # mypy does not read transformers
        # tiktoken's own loader leaves an unchecked copy in a temporary folder shared by all users.
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:  # noqa: ARG004  # its file is read
            return dict(ranks)

    converter = Converter(str(vocabulary), pattern=pattern, extra_special_tokens=list(LLAMA3_SPECIAL_TOKENS))
    PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(),
        bos_token="<|begin_of_text|>",  # noqa: S106 a token of text, not a secret
        eos_token="<|eot_id|>",  # noqa: S106
        pad_token="<|finetune_right_pad_id|>",  # noqa: S106
        chat_template=template,
        model_max_length=131_072,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(into)


def _add_settings(directory: Path, settings: Mapping[str, object]) -> None:
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | dict(settings)))


def cache_directory() -> Path:
    """Return Longbatch's cache: a directory that this user owns and can write."""
    if chosen := os.environ.get("LONGBATCH_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    for candidate in (Path(base) / "longbatch" if base else None, _home_cache()):
        if candidate is not None and _is_writable(candidate):
            return candidate
    fallback = Path(tempfile.gettempdir()) / f"longbatch-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.is_symlink() or fallback.stat().st_uid != os.getuid():
        raise TokenizerMissingError(f"{fallback} belongs to another user; set LONGBATCH_CACHE_DIR.")
    return fallback


def _home_cache() -> Path | None:
    try:
        return Path.home() / ".cache" / "longbatch"
    except RuntimeError:  # no HOME and no passwd entry, as in a container with a bare uid
        return None


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


def _building_directory(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".building-", dir=parent))


def _publish(building: Path, final: Path) -> Path:
    """Move the built files to `final` atomically, unless another process was faster."""
    for file in building.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    building.chmod(0o755)
    try:
        building.rename(final)
    except OSError:
        shutil.rmtree(building)
        if not (final / "tokenizer.json").is_file():
            raise
    return final
