"""
The attention patterns of a window, over the working copy in slot order.

In slot order the streaming mask is exactly `key_slot <= query_slot`
(spec `alpamayo.md` section 13), so each contiguous run of computed slots is one
bottom-right aligned causal call: no dense mask over the window.
"""
from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .kv_cache import KVCache
from .rotary import rotate


def runs(slots) -> list[tuple[int, int, int]]:
    """Contiguous runs of ascending `slots` as (first index, end index, slot after the run)."""
    slots = [int(s) for s in slots]
    breaks = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    edges = [0, *breaks, len(slots)]
    return [(a, b, slots[b - 1] + 1) for a, b in zip(edges, edges[1:])]


@lru_cache(maxsize=64)
def _lower_right(queries: int, keys: int, device: torch.device) -> Tensor:
    """Boolean mask [queries, keys] of one run."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bottom-right aligned causal attention; `q` [b, heads, n, d], `k`, `v` [b, kv, m, d]."""
    n, m = q.shape[-2], k.shape[-2]
    mask = None if n in (1, m) else _lower_right(n, m, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=n == m and n > 1,
                                          enable_gqa=True)


class PromptAttention:
    """Computes the prompt slots `slots` [n]: stores their keys, attends run by run."""

    def __init__(self, cache: KVCache, slots: Tensor):
        self.cache, self.slots, self.runs = cache, slots, runs(slots.tolist())
        self.cos, self.sin = cache.cos[slots], cache.sin[slots]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with batch 1."""
        cache = self.cache
        cache.write_prompt(layer, self.slots, k[0], v[0])
        q = rotate(q, self.cos, self.sin)
        keys, values = cache.k[layer][None], cache.v[layer][None]
        return torch.cat([causal(q[:, :, a:b], keys[:, :, :end], values[:, :, :end])
                          for a, b, end in self.runs], 2)


class TailAttention:
    """Generated tokens at consecutive slots from `first`, one sequence."""

    def __init__(self, cache: KVCache, first: int, count: int = 1):
        self.cache, self.end = cache, first + count
        self.slots = torch.arange(first, first + count, device=cache.k.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with batch 1."""
        cache = self.cache
        cache.write(layer, self.slots, k[0], v[0])
        q = rotate(q, cache.cos[self.slots], cache.sin[self.slots])
        return causal(q, cache.k[layer, None, :, :self.end], cache.v[layer, None, :, :self.end])


def shared_prefix(q: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor,
                  own_mask: Tensor | None = None) -> Tensor:
    """
    Attention of K sequences to a shared prefix (not copied) and to their own keys.

    `q` [K, heads, n, d], `prefix_*` [kv, s, d], `own_*` [K, kv, m, d];
    `own_mask` [K, 1, heads / kv * n, m] True where attended; None: every own key.
    """
    samples, heads, n, d = q.shape
    kv = prefix_k.shape[0]
    q = (q * d ** -0.5).reshape(samples, kv, -1, d)
    together = q.transpose(0, 1).reshape(kv, -1, d)
    prefix_scores = (together @ prefix_k.mT).view(kv, samples, -1, prefix_k.shape[1])
    prefix_scores = prefix_scores.transpose(0, 1)
    own_scores = q @ own_k.mT
    if own_mask is not None:
        own_scores = own_scores.masked_fill(~own_mask, -torch.inf)
    weights = torch.cat((prefix_scores, own_scores), -1).float().softmax(-1).to(q.dtype)
    on_prefix, on_own = weights.split((prefix_k.shape[1], own_k.shape[2]), -1)
    on_prefix = on_prefix.transpose(0, 1).reshape(kv, -1, prefix_k.shape[1])
    out = (on_prefix @ prefix_v).view(kv, samples, -1, d).transpose(0, 1) + on_own @ own_v
    return out.reshape(samples, heads, n, d)


class BranchTails:
    """Own keys and values of K sequences that share a prompt (separate reasonings)."""

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
            mask = _lower_right(n, end, q.device).repeat(group, 1)
        return shared_prefix(rotate(q, cos, sin), cache.k[layer, :, :p], cache.v[layer, :, :p],
                             self.k[layer, :, :, :end], self.v[layer, :, :, :end], mask)
