"""Engines that run already: found by their URLs before anything else of the stack starts."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from cli.engine import model_config
from cli.engine.errors import ProfileError
from cli.engine.vllm_blocks import sequence_of
from cli.stack.engine_urls import EngineUrls
from cli.stack.errors import StackError
from jobs.diagnostics import Finding
from jobs.errors import EngineError, LongbatchError
from jobs.prompts.estimates import HOW_COUNTED
from jobs.prompts.gguf import Gguf
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import ESTIMATE, cache_directory, local_tokenizer, tokenizer_directory
from jobs.settings import EngineSettings, EngineSide
from worker.engine import loop
from worker.engine.discovery import (
    CapacityUnknownError,
    DiscoveredEngine,
    KeyRefusedError,
    NoServerError,
    NotAnEngineError,
    SeveralModelsError,
    StillLoadingError,
    compare,
    discover,
)
from worker.engine.http.chat import OPENAI_CHAT
from worker.engine.http.openai import OPENAI
from worker.engine.http.vllm import VLLM

# With the start of the command, and the tokenizer's, below the 5 s within which an engine is refused.
_DISCOVERY_SECONDS: Final = 3.5
_DEFAULT_MAX_TOKENS: Final = 4096
# These run on CPUs, too, where the deadlines of a GPU would end every job.
_TEXT_KINDS: Final = frozenset({OPENAI.name, OPENAI_CHAT.name})
_CPU_KINDS: Final = _TEXT_KINDS | {"llama.cpp"}
_CPU_TIME_SCALE: Final = "0.05"
_MAX_NAMES: Final = 10
_SLOTS: Final = "MAX_BATCH_SIZE"  # the setting of --engine-slots


@dataclass(frozen=True, kw_only=True)
class FoundEngine:
    """An engine with the settings of the processes that use it.

    Attributes:
        engine: what its server reports.
        settings: variables that describe it to a worker or a command.
        defaults: variables that the user's own environment overrides.
        tokenizer: its directory.
        check: how the tokenizer compares with the engine's.
    """

    engine: DiscoveredEngine
    settings: Mapping[str, str] = field(repr=False)
    defaults: Mapping[str, str]
    tokenizer: Path
    check: Finding

    def words(self) -> str:
        """Describe it in a line."""
        found, capacity = self.engine, self.engine.capacity
        size = "its first request shows its capacity"
        if capacity is not None:
            slots = f"{capacity.max_batch_size} slot{'' if capacity.max_batch_size == 1 else 's'}"
            size = (
                f"context {capacity.max_seq_len:,} tokens, {slots}, KV cache"
                f" {capacity.max_blocks * capacity.tokens_per_block:,} tokens"
            )
        same = "the same tokens as the engine's" if self.check.status == "ok" else "not compared"
        counts = f"tokenizer {self.tokenizer} ({same})"
        if found.kind == OPENAI_CHAT.name:
            counts = f"{HOW_COUNTED} (its tokenizer is not on this machine: --engine-tokenizer DIR)"
        return f"{found.settings.url}: {found.kind} serves {found.model}; {size}; {counts}"


def find_engines(options: EngineUrls, environment: Mapping[str, str]) -> tuple[FoundEngine, ...]:
    """Find the engines, in the order of their URLs, and their model's tokenizer on this machine.

    Raises:
        StackError: an engine cannot be used; the message is one line with its address and the next step.
    """
    sides = _sides(options, environment)
    engines = loop.run(_discover_all(sides, options))
    path = options.tokenizer or environment.get("LONGBATCH_TOKENIZER__PATH") or None
    found = _with_tokenizer(engines, path)
    return tuple(
        FoundEngine(
            engine=engine,
            settings=_settings(engine, tokenizer, environment, is_alone=len(engines) == 1),
            defaults=_defaults(engine),
            tokenizer=tokenizer,
            check=check,
        )
        for engine, tokenizer, check in found
    )


def _sides(options: EngineUrls, environment: Mapping[str, str]) -> list[EngineSide]:
    """Combine the options with the environment's settings, for each URL."""
    given = {"served_model": options.model, "max_batch_size": options.slots}
    named = {name: value for name, value in given.items() if value is not None}
    sides = []
    for url in dict.fromkeys(_normalized(each) for each in options.urls):
        try:
            # The environment's settings are joined with these before any relation between them is checked.
            side = EngineSide.model_validate({"engine": named | {"url": url}})
            engine = side.engine
        except ValidationError as error:
            wrong = error.errors(include_input=False)[0]
            raise StackError(f"{url}: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}.") from error
        if environment.get("LONGBATCH_ENGINE__MAX_SEQ_LEN") is None and options.kv_tokens is not None:
            engine = engine.model_copy(update=_bounded(engine, options.kv_tokens))
        sides.append(side.model_copy(update={"engine": engine}))
    return sides


def _bounded(engine: EngineSettings, kv_tokens: int) -> Mapping[str, int]:
    """Bound a sequence by the pool: a longer one could never run."""
    longest = min(engine.max_seq_len, kv_tokens)
    return {"max_seq_len": longest, "max_input_len": min(engine.max_input_len, longest - 1)}


def _normalized(url: str) -> str:
    """Return the URL without the path of an API, which clients of OpenAI's append.

    Raises:
        StackError: it is no URL of an engine.
    """
    bare = url.rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(bare)
        is_address = parts.port != 0 and bool(parts.hostname) and not parts.path
    except ValueError:
        raise StackError("--engine-url has no valid host and port: give http://host:port.") from None
    if "@" in parts.netloc:
        raise StackError("--engine-url has a user or password: give a key in LONGBATCH_ENGINE__API_KEY.")
    if parts.scheme not in {"http", "https", "grpc"} or not is_address:
        raise StackError(
            f"{url} is no engine's address: give http://host:port, or grpc://host:port for Triton."
        )
    return bare


async def _discover_all(sides: Sequence[EngineSide], options: EngineUrls) -> list[DiscoveredEngine]:
    return await asyncio.gather(*(_discover_one(side, options) for side in sides))


async def _discover_one(side: EngineSide, options: EngineUrls) -> DiscoveredEngine:
    """Discover an engine, and put into one line why it cannot be used."""
    url = side.engine.url or ""
    try:
        async with asyncio.timeout(_DISCOVERY_SECONDS):
            return await discover(side, kv_tokens=options.kv_tokens)
    except TimeoutError as error:
        raise StackError(
            f"{url} did not answer within {_DISCOVERY_SECONDS:g} s: is the engine stuck?"
        ) from error
    except EngineError as error:
        raise StackError(_refusal(url, side, error)) from error


def _refusal(url: str, side: EngineSide, error: EngineError) -> str:
    """Put into one line why the engine cannot be used: its address, the reason and the next step."""
    why = error.message
    match error:
        case NoServerError():
            return f"nothing answers at {url} ({why}): is the engine running?"
        case NotAnEngineError():
            advice = (
                "give the address of vLLM, SGLang, trtllm-serve, llama-server or an OpenAI-compatible server"
            )
            found = f"answers, but is no engine ({why}): {advice}."
        case StillLoadingError():
            found = f"is still loading its model ({why}): start again once it serves."
        case KeyRefusedError() if side.engine.api_key is None:
            found = f"needs a key ({why}): set LONGBATCH_ENGINE__API_KEY."
        case KeyRefusedError():
            found = f"refuses the key in LONGBATCH_ENGINE__API_KEY ({why}): set the engine's own."
        case SeveralModelsError(names=names):
            found = _several(names, wanted=side.engine.served_model)
        case CapacityUnknownError(missing=missing, hint=hint):
            found = f"does not report its whole capacity: add {_flags(missing)}; {hint}."
        case _:
            why = (error.said or why).rstrip(".")
            found = f"cannot be used: {why}; `longbatch engine inspect --url {url}` shows more."
    return f"{url} {found}"


def _several(names: Sequence[str], *, wanted: str | None) -> str:
    shown = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
    if wanted is not None:
        return f"has no model {wanted}: give --engine-model one of {shown}."
    return f"has several models: choose one with --engine-model ({shown})."


def _flags(missing: Sequence[str]) -> str:
    """Name the flags that set what is missing."""
    flags = []
    if _SLOTS in missing:
        flags.append("--engine-slots N (requests at once)")
    if set(missing) - {_SLOTS}:
        flags.append("--engine-kv-tokens N (tokens of its KV cache)")
    return " and ".join(flags)


def _with_tokenizer(
    engines: Sequence[DiscoveredEngine], given: str | None
) -> list[tuple[DiscoveredEngine, Path, Finding]]:
    """Choose the tokenizer, which all processes share, and compare it with each engine's.

    Raises:
        StackError: there is none on this machine, or an engine has another one.
    """
    takes_messages = all(each.kind in _TEXT_KINDS for each in engines)
    if given == ESTIMATE and not takes_messages:
        raise StackError(
            f"{engines[0].settings.url} takes token ids, which no estimate gives: name the model's directory"
            " with --engine-tokenizer DIR, or set LONGBATCH_ENGINE__KIND=openai to send it messages."
        )
    paths: list[Path | None] = [_own_directory(each) for each in engines]
    if given:
        paths = [None if given == ESTIMATE else _directory(given)] * len(engines)
    chosen = next((each for each in paths if each is not None), None)
    if chosen is None and takes_messages:
        # Nothing needs the model's ids: its tokens are estimated.
        engines = [each.by_chat() for each in engines]
        paths = [tokenizer_directory(ESTIMATE)] * len(engines)
        chosen = paths[0]
    if chosen is None:
        raise StackError(_tokenizer_missing(engines[0]))
    tokenizer = Tokenizer.load(str(chosen))
    checks = loop.run(_compare_all(engines, tokenizer))
    for engine, path, check in zip(engines, paths, checks, strict=True):
        if check.status == "failed":
            raise StackError(_other_tokenizer(engine, chosen, check, is_given=given is not None))
        if check.status == "ok" or path == chosen:
            continue
        if path is None:
            raise StackError(_tokenizer_missing(engine))
        if Tokenizer.load(str(path)).fingerprint != tokenizer.fingerprint:
            raise StackError(_other_tokenizer(engine, chosen, check, is_given=False))
    return [(engine, chosen, check) for engine, check in zip(engines, checks, strict=True)]


async def _compare_all(engines: Sequence[DiscoveredEngine], tokenizer: Tokenizer) -> list[Finding]:
    return await asyncio.gather(*(compare(each, tokenizer) for each in engines))


def _directory(given: str) -> Path:
    """Return the directory of the tokenizer that was chosen.

    Raises:
        StackError: there is none.
    """
    found = local_tokenizer(given)
    if found is None:
        raise StackError(
            f"There is no tokenizer at {given}: name the served model's directory with"
            " --engine-tokenizer DIR."
        )
    return found


def _own_directory(engine: DiscoveredEngine) -> Path | None:
    """Find the tokenizer of the engine's model; Triton's may be the bundled one, as its workers' default."""
    if engine.kind == "triton":
        return tokenizer_directory(None)
    for place in engine.model_files:
        found = _of_gguf(Path(place)) if place.endswith(".gguf") else local_tokenizer(place)
        if found is not None:
            return found
    return None


def _of_gguf(file: Path) -> Path | None:
    """Build the tokenizer of a model's file; None if it is not on this machine, or has an unsupported one."""
    try:
        return ensure_gguf_tokenizer(Gguf.read(file), cache_directory()) if file.is_file() else None
    except (LongbatchError, OSError):
        return None


def _tokenizer_missing(engine: DiscoveredEngine) -> str:
    return (
        f"{engine.settings.url} serves {engine.model}, and its tokenizer is not on this machine: name the"
        " model's directory, or one with its tokenizer.json and tokenizer_config.json, with"
        " --engine-tokenizer DIR."
    )


def _other_tokenizer(engine: DiscoveredEngine, chosen: Path, check: Finding, *, is_given: bool) -> str:
    where = f"{engine.settings.url} serves {engine.model} with another tokenizer than {chosen}"
    if is_given:
        return f"{where} ({check.detail}): name the served model's with --engine-tokenizer DIR."
    return (
        f"{where}: start one `longbatch up` for each tokenizer, or name the right one with"
        " --engine-tokenizer DIR."
    )


def _settings(
    engine: DiscoveredEngine, tokenizer: Path, environment: Mapping[str, str], *, is_alone: bool
) -> dict[str, str]:
    """Build the variables of an engine's worker. What the server reports stays the server's to change."""
    found, capacity = engine.settings, engine.capacity
    given: dict[str, object] = {
        "URL": found.url,
        "KIND": None if engine.kind == "triton" else engine.kind,
        "API_KEY": found.api_key and found.api_key.get_secret_value(),
        "SERVED_MODEL": found.served_model,
        "MAX_BATCH_SIZE": found.max_batch_size,
        "MAX_BLOCKS": found.max_blocks,
        "TOKENS_PER_BLOCK": found.tokens_per_block,
        "BLOCKS_PER_SEQUENCE": _kept_blocks(engine),
        "MAX_SEQ_LEN": capacity.max_seq_len if capacity else found.max_seq_len,
        "MAX_INPUT_LEN": capacity.max_input_len if capacity else found.max_input_len,
        "NAME": None if is_alone else urlsplit(found.url or "").netloc[:64],
        "MODEL": None if is_alone else environment.get("LONGBATCH_ENGINE__MODEL", engine.model),
    }
    named = {f"LONGBATCH_ENGINE__{name}": str(value) for name, value in given.items() if value is not None}
    path = ESTIMATE if engine.kind == OPENAI_CHAT.name else str(tokenizer)
    return named | {"LONGBATCH_TOKENIZER__PATH": path}


def _kept_blocks(engine: DiscoveredEngine) -> int | None:
    """Compute what a sequence of vLLM keeps besides its text, from the model's config.json.

    Returns:
        None where nothing is kept or the file is not on this machine: what the server reports is reserved.
    """
    found, capacity = engine.settings, engine.capacity
    if found.blocks_per_sequence is not None or engine.kind != VLLM.name or capacity is None:
        return found.blocks_per_sequence
    folder = next(filter(None, map(local_tokenizer, engine.model_files)), None)
    if folder is None or not capacity.blocks_per_sequence:
        return None
    try:
        layout = model_config.read_layout(folder / "config.json")
    except ProfileError:
        return None
    sequence = sequence_of(layout, width=2, longest=capacity.max_seq_len, max_num_batched_tokens=0)
    return min(sequence.kept_blocks, capacity.blocks_per_sequence)


def _defaults(engine: DiscoveredEngine) -> dict[str, str]:
    found = {"LONGBATCH_ENGINE__MODEL": engine.model}
    if engine.capacity is not None:
        default = min(_DEFAULT_MAX_TOKENS, engine.capacity.max_seq_len // 4)
        found["LONGBATCH_BATCHES__DEFAULT_MAX_TOKENS"] = str(default)
    if engine.kind in _CPU_KINDS:
        found["LONGBATCH_ENGINE__TIME_SCALE"] = _CPU_TIME_SCALE
    return found
