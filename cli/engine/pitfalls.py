"""The known pitfalls of TensorRT-LLM deployments, as a sentence for each one that a profile meets."""

from collections.abc import Iterator

from cli.engine.profile import Profile

_FP8_FROM = 89  # compute capability of Ada; Ampere (80, 86) has no FP8 tensor cores


def find(
    profile: Profile, *, pool_blocks: int, typical_blocks: int, longest_blocks: int, largest_pool_tokens: int
) -> tuple[str, ...]:
    """List the pitfalls of the profile, the worst first."""
    return (
        *_memory(profile, largest_pool_tokens),
        *_context(profile),
        *_formats(profile),
        *_pool(profile, pool_blocks, typical_blocks, longest_blocks),
        *_layers(profile),
        *_scheduling(profile),
    )


def _memory(profile: Profile, largest: int) -> Iterator[str]:
    wanted = profile.engine.kv_cache_tokens
    if largest == 0:
        yield (
            f"the weights do not fit: {profile.gpu.count} {profile.hardware.title} have no memory left"
            " for a KV pool"
        )
    elif largest < wanted:
        yield (
            f"pool reduced at load: free_gpu_memory_fraction {profile.engine.free_gpu_memory_fraction:g}"
            f" leaves room for {largest} tokens, not the {wanted} of kv_cache_tokens; the server takes the"
            " smaller one without an error"
        )


def _context(profile: Profile) -> Iterator[str]:
    engine = profile.engine
    if not engine.chunked_context:
        yield (
            f"chunked context off: the longest prompt is max_num_tokens, {engine.max_num_tokens} tokens, not"
            f" {engine.max_input_len}, and one prefill stops all decoding while it lasts"
        )
    if not engine.paged_context_fmha:
        yield "paged context FMHA off: chunked context and KV cache reuse both need it"
    if engine.max_num_tokens % engine.tokens_per_block:
        yield (
            f"max_num_tokens {engine.max_num_tokens} is not a multiple of tokens_per_block"
            f" {engine.tokens_per_block}: prompt chunks must be"
        )
    if engine.max_num_tokens <= engine.max_batch_size:
        yield "max_num_tokens is not above max_batch_size: a full batch leaves no room for a prompt chunk"
    if profile.shape.max_positions and engine.max_seq_len > profile.shape.max_positions:
        yield (
            f"max_seq_len {engine.max_seq_len} is above the {profile.shape.max_positions} positions that the"
            " model supports"
        )


def _formats(profile: Profile) -> Iterator[str]:
    formats = profile.precision
    if formats.kv_cache == "int8":
        yield (
            "INT8 KV cache with paged context FMHA: they exclude each other, so chunked context and cache"
            " reuse would be lost; quantize the weights instead"
        )
    if "fp8" in {formats.weights, formats.kv_cache} and profile.hardware.compute_capability < _FP8_FROM:
        yield (
            f"FP8 on sm{profile.hardware.compute_capability}: the {profile.hardware.title} has no FP8 tensor"
            " cores; use int8 weights"
        )
    if formats.kv_cache == "fp8" and formats.weights != "fp8":
        yield "FP8 KV cache without FP8 weights: the FP8 context kernels need both"
    if formats.kv_cache == "int8" and formats.weights in {"fp8", "int4_awq"}:
        yield f"INT8 KV cache with {formats.weights} weights: nobody here saw an engine with both"


def _pool(profile: Profile, pool_blocks: int, typical_blocks: int, longest_blocks: int) -> Iterator[str]:
    engine = profile.engine
    pool = pool_blocks * engine.tokens_per_block
    if pool_blocks < longest_blocks:
        yield (
            f"pool smaller than one sequence: {pool} tokens, but max_seq_len is {engine.max_seq_len}; longer"
            " requests can never run"
        )
    if engine.kv_cache_tokens % engine.tokens_per_block:
        yield f"kv_cache_tokens is not a multiple of tokens_per_block: only {pool} tokens are usable"
    if (usable := pool_blocks // typical_blocks) < engine.max_batch_size:
        yield (
            f"batch larger than the pool can use: {engine.max_batch_size} slots, but the pool holds {usable}"
            " typical jobs"
        )


def _layers(profile: Profile) -> Iterator[str]:
    """Yield what the plan's single pool does not say of layers that do not keep every token."""
    kinds = {each.kind for each in profile.shape.cache.groups}
    if kinds & {"sliding", "chunked"}:
        yield (
            "layers with windows: planned as one pool that all layers share; TensorRT-LLM divides its memory"
            " among one pool for each window once, at load, so less may fit: compare with the running engine"
        )
    if "recurrent" in kinds:
        yield (
            "recurrent layers: the engine keeps one state for each slot, so slots may run out before blocks;"
            " check that it can reuse prefixes of this model before kv_cache_reuse is left on"
        )
    if not kinds & {"full", "latent"}:
        yield (
            "every layer has a window: Longbatch still reserves blocks for the whole text, so fewer jobs run"
            " than the engine could hold"
        )


def _scheduling(profile: Profile) -> Iterator[str]:
    if profile.speculative is not None and profile.image.flow == "build":
        yield (
            "speculative decoding: only requests to tensorrt_llm_bls with num_draft_tokens use the draft, and"
            " Longbatch sends none; the pool is not planned for the draft's cache"
        )
    if profile.engine.host_cache_gib and not profile.engine.kv_cache_reuse:
        yield "host_cache_gib without kv_cache_reuse: nothing would be kept there"
    if profile.engine.scheduler_policy == "max_utilization":
        yield (
            "max_utilization: when the pool is full it pauses and recomputes requests, and Longbatch's"
            " reservations do not match the engine's; use guaranteed_no_evict"
        )
