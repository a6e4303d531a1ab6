"""A read-only inspection of an HTTP engine: its kind, capacity and tokenizer, in words."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Final

from jobs.diagnostics import Finding
from jobs.errors import EngineError, EngineUnavailableError
from jobs.prompts.estimates import HOW_COUNTED
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, EngineSide
from worker.engine import loop
from worker.engine.abilities import abilities_finding
from worker.engine.canary import answers
from worker.engine.client import CANARY_SECONDS, EngineClient, EngineModel
from worker.engine.gauges import Gauges, load_finding
from worker.engine.http.chat import OPENAI_CHAT
from worker.engine.http.server import HttpServer
from worker.engine.kinds import HTTP_KINDS
from worker.engine.sessions import BROKEN

_TOKENIZE_PATH: Final = "/tokenize"
# Text in many scripts: if two tokenizers differ at all, they differ here.
_SAMPLE: Final = (
    "The 3 naïve façades — 希望と平和, надежда, नमस्ते 🜂 cost 1234567.89€;\n\n\tdef f(x): return x**2"
)


def probe(
    side: EngineSide, tokenizer: Tokenizer, client: EngineClient, *, num_ours: int | None
) -> Iterator[Finding]:
    """Inspect the server, most basic findings first, until nothing more can be found out."""
    server = HttpServer((side.engine.url or "").rstrip("/"), side.engine.api_key)
    try:
        served = client.served()
    except EngineUnavailableError as error:
        yield Finding(
            "server", "failed", f"{server.url}: {error.said or error.message}", "LONGBATCH_ENGINE__URL"
        )
        return
    except EngineError as error:
        yield Finding("server", "failed", error.message, "LONGBATCH_ENGINE__KIND and __SERVED_MODEL")
        return
    yield Finding("server", "ok", f"{server.url} runs {served.kind}")
    yield Finding("entry point", "ok", f"{served.name}: {HTTP_KINDS[served.kind].words}")
    yield answers(client, served)
    gauges = client.gauges()
    yield abilities_finding(
        served.abilities,
        configured=side.engine.blocks_per_sequence,
        reported=None if gauges is None else gauges.blocks_per_sequence,
        hint=HTTP_KINDS[served.kind].constant_hint,
    )
    yield from _notes(server, served.kind, side.engine)
    yield from _capacity(side, client)
    yield _load(gauges, num_ours)
    yield loop.run(compare_tokenizer(server, served.kind, tokenizer))


def _notes(server: HttpServer, kind: str, settings: EngineSettings) -> Iterator[Finding]:
    try:
        yield from loop.run(HTTP_KINDS[kind].notes(server, settings))
    except EngineError as error:
        yield Finding("options", "unknown", error.said or error.message)


def _capacity(side: EngineSide, client: EngineClient) -> Iterator[Finding]:
    try:
        model: EngineModel = client.describe()
    except EngineError as error:
        yield Finding("capacity", "failed", error.message, "docs/engines.md")
        return
    found = model.capacity
    pool = f"{found.max_blocks} blocks of {found.tokens_per_block} tokens"
    yield Finding("capacity", "ok", f"{found.max_batch_size} slots, {pool}, {found.max_seq_len} tokens a job")
    is_configured = "max_seq_len" in side.engine.model_fields_set
    if is_configured and found.max_seq_len < side.engine.max_seq_len:
        detail = (
            f"its context is {found.max_seq_len} tokens, less than the {side.engine.max_seq_len} promised"
        )
        yield Finding("context", "warning", detail, "LONGBATCH_ENGINE__MAX_SEQ_LEN; longer jobs are refused")


def _load(gauges: Gauges | None, num_ours: int | None) -> Finding:
    if gauges is None:
        detail = "the server shows no load: blocks of cancelled jobs stay reserved for longer"
        return Finding("metrics", "warning", detail, "its option for metrics; docs/engines.md")
    return load_finding(gauges, num_ours=num_ours)


async def compare_tokenizer(server: HttpServer, kind: str, tokenizer: Tokenizer) -> Finding:
    """Compare the tokens of a text in many scripts with those of the server, which has this kind."""
    is_chat = kind == OPENAI_CHAT.name
    if tokenizer.is_estimate and is_chat:
        return Finding("tokenizer", "warning", HOW_COUNTED, "LONGBATCH_TOKENIZER__PATH makes counts exact")
    if tokenizer.is_estimate or is_chat:
        detail = "an estimating tokenizer and an engine of the kind openai-chat need each other"
        return Finding("tokenizer", "failed", detail, "LONGBATCH_TOKENIZER__PATH and LONGBATCH_ENGINE__KIND")
    encoding = HTTP_KINDS[kind].encoding
    if encoding is None:
        return Finding("tokenizer", "unknown", "this kind of server does not show how it encodes text")
    theirs = await _encode(server, {encoding.text_field: _SAMPLE, **encoding.options})
    ours = tokenizer.markup.read(_SAMPLE).tolist()
    if theirs is None:
        return Finding("tokenizer", "unknown", f"{_TOKENIZE_PATH} does not answer")
    if theirs == ours:
        return Finding(
            "tokenizer", "ok", f"the server's gives the same tokens as {tokenizer.fingerprint[:8]}"
        )
    detail = f"the server's gives {len(theirs)} tokens where ours gives {len(ours)}, or others"
    return Finding("tokenizer", "failed", detail, "LONGBATCH_TOKENIZER__PATH must be the served model's")


async def _encode(server: HttpServer, body: Mapping[str, object]) -> list[int] | None:
    try:
        async with (
            asyncio.timeout(CANARY_SECONDS),
            server.session() as http,
            http.post(_TOKENIZE_PATH, json=body, allow_redirects=False) as answer,
        ):
            answer.raise_for_status()
            return [int(each) for each in json.loads(await answer.read())["tokens"]]
    except (*BROKEN, KeyError, TypeError, ValueError):
        return None
