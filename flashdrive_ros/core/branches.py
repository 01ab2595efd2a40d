"""
K sequences behind one prompt: separate reasonings, and the action tokens of K samples.

The prompt's keys are never copied.  All sequences attend to them as one, each
attends to its own keys, and the two results are merged by their log-sum-exps.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .attention import lower_right
from .decoder import Attend
from .kv_cache import KVCache
from .rotary import rotate


def shared_prefix(q: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor,
                  own_mask: Tensor | None = None) -> Tensor:
    """
    Attention of K sequences to a shared prefix and to their own keys.

    `q` [K, heads, n, d], `prefix_*` [kv, s, d], `own_*` [K, kv, m, d];
    `own_mask` [K or 1, 1, heads / kv * n, m] is additive; None: every own key.
    """
    samples, kv = q.shape[0], prefix_k.shape[0]
    grouped = q.reshape(samples, kv, -1, q.shape[-1])  # the heads of a group are like queries
    together = grouped.transpose(0, 1).flatten(1, 2)[None]
    on_prefix, prefix_sum = _attend(together, prefix_k[None], prefix_v[None])
    on_prefix = on_prefix[0].unflatten(1, (samples, -1)).transpose(0, 1)
    prefix_sum = prefix_sum[0].unflatten(1, (samples, -1)).transpose(0, 1)
    on_own, own_sum = _attend(grouped, own_k, own_v, own_mask)
    share = torch.sigmoid(prefix_sum - own_sum)[..., None].to(q.dtype)
    return torch.lerp(on_own, on_prefix, share).reshape(q.shape)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention [b, heads, n, d] and the log-sum-exp [b, heads, n] of its scores in float32."""
    if q.device.type == 'cpu' and not torch.is_grad_enabled():
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    scores = scores.float() if mask is None else scores.float() + mask
    total = scores.logsumexp(-1)
    return (scores - total[..., None]).exp().to(q.dtype) @ v, total


class BranchTails:
    """
    Own keys and values of K sequences that share a prompt (separate reasonings).

    `length` counts the slots of the longest sequence.
    """

    def __init__(self, cache: KVCache, samples: int, capacity: int):
        c = cache.config
        shape = (c.num_hidden_layers, samples, c.num_key_value_heads, capacity, c.head_dim)
        self.k = cache.k.new_zeros(shape)
        self.v = cache.k.new_zeros(shape)
        self.cache, self.length = cache, 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append n tokens per sequence and attend; the caller counts `length` up after it."""
        cache, at, n = self.cache, self.length, q.shape[2]
        p, end = cache.prompt_slots, at + n
        cos, sin = cache.cos[p + at:p + end], cache.sin[p + at:p + end]
        self.k[layer, :, :, at:end] = rotate(k, cos, sin)
        self.v[layer, :, :, at:end] = v
        mask = None
        if n > 1:
            group = q.shape[1] // k.shape[1]
            mask = lower_right(n, end, q.dtype, q.device).repeat(group, 1)[None, None]
        return shared_prefix(rotate(q, cos, sin), cache.k[layer, :, :p], cache.v[layer, :, :p],
                             self.k[layer, :, :, :end], self.v[layer, :, :, :end], mask)

    def block(self, starts: Tensor, end: int, count: int) -> Attend:
        """
        Attention of `count` tokens per sequence that are put at slots of their own.

        Sequence k has them from its slot `starts[k]` ([K], counted behind the
        prompt); `end` is the slot after the last of all sequences.
        """
        cache, p = self.cache, self.cache.prompt_slots
        slots = starts[:, None] + torch.arange(count, device=starts.device)
        sequences = torch.arange(len(starts), device=starts.device)[:, None]
        cos, sin = cache.cos[p + slots][:, None], cache.sin[p + slots][:, None]
        group = cache.config.num_attention_heads // cache.config.num_key_value_heads
        hidden = torch.arange(end, device=starts.device) > slots[..., None]
        mask = torch.zeros(hidden.shape, dtype=cache.k.dtype, device=starts.device)
        mask = mask.masked_fill_(hidden, -torch.inf).repeat(1, group, 1)[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.k[layer], self.v[layer]
            keys.transpose(1, 2)[sequences, slots] = rotate(k, cos, sin).transpose(1, 2)
            values.transpose(1, 2)[sequences, slots] = v.transpose(1, 2)
            return shared_prefix(rotate(q, cos, sin), cache.k[layer, :, :p],
                                 cache.v[layer, :, :p], keys[:, :, :end], values[:, :, :end], mask)
        return attend
