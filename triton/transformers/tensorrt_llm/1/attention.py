"""Attention over packed sequences of different lengths: torch's own flash kernel, no mask, no extra package.

For continuous batching transformers offers either flash-attention, a package that must be built, or SDPA with
a dense mask over all sequences, where each prompt pays for the KV cache of all others. Torch includes a flash
kernel for sequences of different lengths; this module registers it with transformers under its own name.
"""

import inspect
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME: Final = "longbatch_varlen"


def use(model: Any) -> None:  # noqa: ANN401  transformers' model
    """Switch the model to this attention. Call it after batching is set up, which rejects unknown names."""
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001  the lengths are enough
    dropout: float = 0.0,  # noqa: ARG001  inference
    scaling: float | None = None,
    **kwargs: Any,  # noqa: ANN401  the packed batch, as transformers describes it
) -> tuple[torch.Tensor, None]:
    """Attend from each query to its own sequence, up to itself.

    Shapes:
        query: `[1, heads, queries, dim]`; key, value: `[1, kv_heads, queries, dim]`, the new tokens' alone.
        returns: `[1, queries, heads, dim]`.
    """
    key, value = _cached(module, key, value, kwargs)
    queries = query.squeeze(0).transpose(0, 1).contiguous()
    lengths_q, lengths_k = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    longest_q = kwargs.get("max_seqlen_q", kwargs.get("max_length_q"))
    longest_k = kwargs.get("max_seqlen_k", kwargs.get("max_length_k"))
    if queries.is_cuda:
        found = torch.ops.aten._flash_attention_forward(  # noqa: SLF001  what torch's varlen_attn calls, too
            queries,
            key,
            value,
            lengths_q.to(torch.int32),
            lengths_k.to(torch.int32),
            longest_q,
            longest_k,
            0.0,
            True,  # causal, aligned to the last query
            return_debug_mask=False,
            scale=scaling,
        )
        return found[0].unsqueeze(0), None
    return _one_by_one(queries, key, value, lengths_q, lengths_k, scaling).unsqueeze(0), None


def _cached(
    module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of all sequences with the new tokens: `[tokens, kv_heads, dim]`."""
    update = kwargs["cache"].update
    if "kwargs" in inspect.signature(update).parameters:  # transformers 5.22
        key, value = update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    else:
        key, value = update(
            key_states=key,
            value_states=value,
            layer_idx=module.layer_idx,
            read_index=kwargs["read_index"],
            write_index=kwargs["write_index"],
        )
    if key.dim() == 4:
        key, value = key.squeeze(0).transpose(0, 1), value.squeeze(0).transpose(0, 1)
    return key.contiguous(), value.contiguous()


def _one_by_one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths_q: torch.Tensor,
    lengths_k: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Attend without the kernel: one sequence after the other, on a CPU."""
    answer = torch.empty_like(query)
    bounds_q, bounds_k = lengths_q.tolist(), lengths_k.tolist()
    for place in range(len(bounds_q) - 1):
        mine = slice(bounds_q[place], bounds_q[place + 1])
        seen = slice(bounds_k[place], bounds_k[place + 1])
        num_q, num_k = mine.stop - mine.start, seen.stop - seen.start
        mask = torch.ones(num_q, num_k, dtype=torch.bool, device=query.device).tril(num_k - num_q)
        answer[mine] = scaled_dot_product_attention(
            query[mine].transpose(0, 1).unsqueeze(0),
            key[seen].transpose(0, 1).unsqueeze(0),
            value[seen].transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )[0].transpose(0, 1)
    return answer
