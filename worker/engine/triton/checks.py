"""What is checked of a Triton server that answers: what it shows, its sizes, the models around its engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from jobs.diagnostics import Finding
from jobs.errors import EngineUnavailableError
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from worker.engine import loop
from worker.engine.engine import ServedModel
from worker.engine.gauges import Gauges, load_finding
from worker.engine.triton.engine import TritonEngine
from worker.engine.triton.model_config import ModelConfig, Offer, flag, number, parameter, reuses_prefix
from worker.engine.triton.server_flags import KEEPALIVE

# Kinds that are a server of their own: no models around them, no gauges, nothing told of their limits.
ALONE: Final = ("llmapi", "vllm")
# Text in many scripts: if two tokenizers differ at all, they differ here.
_SAMPLE: Final = (
    "The 3 naïve façades — 希望と平和, надежда, नमस्ते 🜂 cost 1234567.89€;\n\n\tdef f(x): return x**2"
)
_CHUNKING: Final = "enable_chunked_context:True, with --use_paged_context_fmha enable in the build"
_STUB_TROUBLE: Final = ("stub process", "numpy", "_array_api", "failed to load")


@dataclass(frozen=True)
class InspectedServer:
    """A server that answers, with everything read from it so far, and how many requests we have there."""

    side: EngineSide
    tokenizer: Tokenizer
    engine: TritonEngine
    offer: Offer
    served: ServedModel
    configs: dict[str, ModelConfig]
    gauges: Gauges | None
    num_ours: int | None = None


def _metrics(server: InspectedServer) -> Iterator[Finding]:
    """Check that slots and blocks are visible, and that no request waits inside."""
    url = server.side.triton.metrics_url
    if server.served.kind in ALONE:
        detail = (
            f"a model of the kind {server.served.kind} has no gauges: nothing shows its requests and blocks"
        )
        yield Finding("metrics", "unknown", detail)
    elif url is None:
        yield Finding(
            "metrics", "warning", "no URL is set", "LONGBATCH_TRITON__METRICS_URL=http://host:8002/metrics"
        )
    elif server.gauges is None:
        yield Finding(
            "metrics",
            "warning",
            f"{url} does not answer, or has no gauges of {server.offer.engine.name}",
            "publish port 8002; without gauges, blocks of cancelled jobs stay reserved for longer",
        )
    else:
        yield load_finding(server.gauges, num_ours=server.num_ours)


def _batch(server: InspectedServer) -> Iterator[Finding]:
    """Check that all models have the same batch size."""
    reported = {name: int(config.max_batch_size) for name, config in server.configs.items()}
    if server.gauges is not None and server.gauges.max_requests:
        reported["the engine itself"] = server.gauges.max_requests
    sizes = {size for size in reported.values() if size}
    listed = ", ".join(f"{name} {size}" for name, size in reported.items())
    if len(sizes) > 1:
        advice = "triton_max_batch_size:N for every model, N as in trtllm-build --max_batch_size"
        yield Finding("batch size", "warning", f"the smallest applies: {listed}", advice)
    elif sizes:
        yield Finding("batch size", "ok", f"{sizes.pop()} everywhere")
    else:
        advice = "LONGBATCH_ENGINE__MAX_BATCH_SIZE; until it is set, one request runs at a time"
        configured = server.side.engine.max_batch_size
        yield Finding(
            "batch size", "ok" if configured else "warning", "the server does not report it", advice
        )


def _pool(server: InspectedServer) -> Iterator[Finding]:
    """Check that the KV cache is as large as configured, and large enough."""
    wanted = number(server.offer.engine, "max_tokens_in_paged_kv_cache")
    gauges = server.gauges
    real = gauges.max_blocks * gauges.tokens_per_block if gauges is not None else 0
    if wanted and real and real < wanted:
        advice = "smaller weights, a larger kv_cache_free_gpu_mem_fraction, or fewer configured tokens"
        yield Finding(
            "KV cache", "warning", f"{wanted} tokens are configured, but the load left {real}", advice
        )
    pool = real or wanted
    if not pool:
        advice = "LONGBATCH_ENGINE__MAX_BLOCKS and __TOKENS_PER_BLOCK"
        if server.served.kind == "llmapi":
            advice += ": kv_cache_config of its model.yaml, max_tokens divided by tokens_per_block"
        is_set = bool(server.side.engine.max_blocks)
        yield Finding("KV cache", "ok" if is_set else "failed", "the server does not report its size", advice)
        return
    longest = server.side.engine.max_seq_len
    if "max_seq_len" in server.side.engine.model_fields_set and pool < longest:
        detail = f"it holds {pool} tokens, less than max_seq_len {longest}: longer jobs are refused"
        yield Finding("KV cache", "warning", detail, "LONGBATCH_ENGINE__MAX_SEQ_LEN, or a larger pool")
    elif real >= wanted:
        yield Finding("KV cache", "ok", f"it holds {pool} tokens")


def _lengths(server: InspectedServer) -> Iterator[Finding]:
    """Check that the engine can take prompts as long as the settings promise."""
    engine = server.offer.engine
    if server.served.kind in ALONE:
        return
    # TensorRT-LLM's own model has no such parameter: the number is in the engine that it loads.
    limit = number(engine, "max_num_tokens")
    wanted = server.side.engine.max_input_len
    if flag(engine, "enable_chunked_context", absent=False):
        yield Finding(
            "chunked context", "ok", "on: prompts longer than one iteration's tokens are read in chunks"
        )
    elif not limit:
        detail = f"off: prompts over max_num_tokens (not told) are refused; {wanted} are promised"
        yield Finding("chunked context", "warning", detail, f"{_CHUNKING}; or max_num_tokens >= {wanted}")
    elif limit < wanted:
        detail = f"off: prompts over {limit} tokens (max_num_tokens) are refused, and {wanted} are promised"
        yield Finding("chunked context", "failed", detail, _CHUNKING)
    policy = parameter(engine, "batch_scheduler_policy")
    if policy == "max_utilization":
        detail = "max_utilization: running requests are paused and read again when blocks run out"
        yield Finding("scheduler", "warning", detail, "batch_scheduler_policy:guaranteed_no_evict")
    if not reuses_prefix(engine) and server.side.engine.reuses_prefix:
        detail = "the engine does not reuse prompt prefixes, but the settings say that it does"
        yield Finding("prefix cache", "warning", detail, "LONGBATCH_ENGINE__REUSES_PREFIX=false")


def _llmapi(server: InspectedServer) -> Iterator[Finding]:
    """Report what follows from the model.yaml of `llmapi`, of which only `decoupled` can be seen."""
    if server.served.kind != "llmapi":
        return
    if server.served.abilities.is_streaming:
        yield Finding(
            "live output", "ok", "the model is decoupled: it streams, and confirms a cancelled request"
        )
    elif server.offer.entry.model_transaction_policy.decoupled:
        yield Finding(
            "live output",
            "warning",
            "the model is decoupled, but of a release whose answers come whole all the same, and which a stop"
            " string does not end early",
            "a release of TensorRT-LLM whose llmapi model has the input lora_id",
        )
    else:
        yield Finding(
            "live output",
            "warning",
            "the model is not decoupled: whole answers, which a stop string does not end early, and blocks of"
            " cancelled jobs stay reserved for longer",
            "triton_config.decoupled: True in its model.yaml, and no --disable-auto-complete-config",
        )
    yield Finding(
        "model.yaml",
        "unknown",
        "it cannot be asked: without enable_chunked_prefill prompts over max_num_tokens (8192 by default) are"
        " refused, and another policy than GUARANTEED_NO_EVICT pauses running requests",
        "enable_chunked_prefill: true; scheduler_config.capacity_scheduler_policy: GUARANTEED_NO_EVICT",
    )


def _text_models(server: InspectedServer) -> Iterator[Finding]:
    """Check the models around the engine: tokenizer, token order, known pitfalls."""
    for config in server.configs.values():
        if "TOKENS_BATCH" in {each.name for each in config.input} and _instances(config) > 1:
            detail = f"{config.name} has {_instances(config)} instances: they reorder the tokens of a stream"
            yield Finding("order", "failed", detail, "postprocessing_instance_count:1")
        if config.dynamic_batching.default_queue_policy.max_queue_size and server.served.kind == "ensemble":
            detail = f"{config.name} sets max_queue_size: before 26.02 an ensemble that reaches it hangs"
            yield Finding("queue", "failed", detail, "leave max_queue_size at 0")
    name = str(server.offer.preprocessing.name) if server.offer.preprocessing is not None else "preprocessing"
    if server.served.kind in ALONE or not loop.run(server.engine.models()).get(name):
        yield Finding("tokenizer", "unknown", "no model shows how the server encodes text")
        return
    yield _tokenizer(server, name)


def _tokenizer(server: InspectedServer, name: str) -> Finding:
    ours = server.tokenizer.markup.read(_SAMPLE).tolist()
    try:
        theirs = loop.run(server.engine.encode(name, _SAMPLE))
    except EngineUnavailableError as error:
        if any(words in (error.said or error.message).lower() for words in _STUB_TROUBLE):
            advice = "numpy<2 where the Python backend runs: with numpy 2 it crashes on text"
            return Finding("Python backend", "failed", f"{name}: {error.said}", advice)
        return Finding(
            "tokenizer",
            "failed",
            f"{name} does not encode: {error.said or error.message}",
            "see the server's log",
        )
    if theirs == ours or (server.tokenizer.bos_id is not None and theirs == [server.tokenizer.bos_id, *ours]):
        return Finding(
            "tokenizer", "ok", f"the server's gives the same tokens as {server.tokenizer.fingerprint[:8]}"
        )
    detail = f"the server's gives {len(theirs)} tokens where ours gives {len(ours)}, or others"
    return Finding("tokenizer", "failed", detail, "LONGBATCH_TOKENIZER__PATH must be the served model's")


def _keepalive(server: InspectedServer) -> Iterator[Finding]:
    """Report which flags the server must have; they cannot be queried."""
    if server.side.triton.fast_keepalive:
        detail = "a server without its flags closes silent streams after 30 s; `--keepalive` tests it"
        yield Finding("keepalive", "unknown", detail, " ".join(KEEPALIVE))


def _instances(config: ModelConfig) -> int:
    return max((int(group.count) for group in config.instance_group), default=1)


CHECKS: Final[tuple[Callable[[InspectedServer], Iterator[Finding]], ...]] = (
    _metrics,
    _batch,
    _pool,
    _lengths,
    _llmapi,
    _text_models,
    _keepalive,
)
