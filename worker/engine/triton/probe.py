"""A read-only inspection of an engine's server: what it offers and what is wrong, in words."""

from collections.abc import Iterator, Mapping
from typing import Final

from jobs.diagnostics import Finding
from jobs.errors import EngineError, EngineUnavailableError
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from worker.engine import loop
from worker.engine.abilities import abilities_finding
from worker.engine.canary import answers
from worker.engine.client import EngineClient
from worker.engine.triton.checks import ALONE, CHECKS, InspectedServer
from worker.engine.triton.engine import TritonEngine
from worker.engine.triton.model_config import ModelConfig, Offer, entry_kind

# The repository of TensorRT-LLM's C++ backend.
_REPOSITORY: Final = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls", "preprocessing", "postprocessing")
_KINDS: Final = {
    "ids": "token ids in and out: jobs can continue where they stopped, and cancelling frees the engine",
    "ensemble": "text in, whole text out: no live output, and jobs start over after a fault",
    "bls": "text in, text out: cancelling does not reach the engine, and jobs start over after a fault",
    "llmapi": "text in, text out: jobs start over after a fault, cancelling frees the engine, and neither its"
    " KV cache nor its load is visible",
    "vllm": "text in, text out: jobs start over after a fault, and the KV cache is not visible",
}


def probe(
    side: EngineSide, tokenizer: Tokenizer, client: EngineClient, *, num_ours: int | None
) -> Iterator[Finding]:
    """Inspect the server, most basic findings first, until nothing more can be found out."""
    engine = TritonEngine(side.triton, side.engine)
    try:
        yield from _server(side, engine)
        offer = loop.run(engine.offer())
        if offer is None:
            yield _no_model(side, engine)
            return
        try:
            served = loop.run(engine.model())
        except EngineUnavailableError:
            raise
        except EngineError as error:
            yield Finding("entry point", "failed", error.message, "decoupled_mode:True for fill_template")
            return
        yield Finding("entry point", "ok", f"{served.name} ({served.kind}): {_KINDS[served.kind]}")
        yield answers(client, served)
        yield abilities_finding(served.abilities, configured=side.engine.blocks_per_sequence)
        gauges = loop.run(engine.gauges())
        server = InspectedServer(
            side, tokenizer, engine, offer, served, _configs(engine, offer, served.kind), gauges, num_ours
        )
        for check in CHECKS:
            yield from check(server)
    except EngineUnavailableError as error:
        yield Finding(
            "server", "failed", f"{side.triton.url}: {error.said or error.message}", "LONGBATCH_TRITON__URL"
        )
    finally:
        loop.run(engine.close())


def _server(side: EngineSide, engine: TritonEngine) -> Iterator[Finding]:
    version, models = loop.run(engine.version()), loop.run(engine.models())
    yield Finding("server", "ok", f"{side.triton.url} runs Triton {version}")
    offered = _entries(engine, models)
    yield Finding(
        "models", "ok", f"{', '.join(sorted(models))}; entry points: {', '.join(offered) or 'none'}"
    )
    if broken := sorted(name for name, is_ready in models.items() if not is_ready):
        yield Finding("models", "warning", f"not ready: {', '.join(broken)}", "see the server's log")


def _no_model(side: EngineSide, engine: TritonEngine) -> Finding:
    models = loop.run(engine.models())
    others = _entries(engine, models)
    return Finding(
        "entry point",
        "failed",
        f"there is no model {side.triton.model_name}",
        f"LONGBATCH_TRITON__MODEL_NAME={others[0]}" if others else "the server's model repository",
    )


def _entries(engine: TritonEngine, models: Mapping[str, bool]) -> list[str]:
    """List the models that are ready and that an adapter fits, by their tensors; the most able ones first."""
    ready = sorted(name for name, is_ready in models.items() if is_ready)
    configs = {name: loop.run(engine.config(name)) for name in ready}
    kinds = {name: entry_kind(config) for name, config in configs.items() if config is not None}
    return [name for each in _KINDS for name, kind in kinds.items() if kind == each]


def _configs(engine: TritonEngine, offer: Offer, kind: str) -> dict[str, ModelConfig]:
    """Read the configurations of the entry point and its repository's other models."""
    names = {str(offer.entry.name), str(offer.engine.name)}
    if kind not in ALONE:
        models = loop.run(engine.models())
        names |= {name for name in _REPOSITORY if models.get(name)}
    found = {name: loop.run(engine.config(name)) for name in sorted(names)}
    return {name: config for name, config in found.items() if config is not None}
