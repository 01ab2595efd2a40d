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
@torch.inference_mode(False)  # kept ones may meet autograd
def lower_right(queries: int, keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive mask [queries, keys] of one run: 0 where attended, else -inf."""
    mask = torch.full((queries, keys), -torch.inf, dtype=dtype, device=device)
    return mask.triu(keys - queries + 1)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bottom-right aligned causal attention; `q` [b, heads, n, d], `k`, `v` [b, kv, m, d]."""
    n, m = q.shape[-2], k.shape[-2]
    mask = None if n in (1, m) else lower_right(n, m, q.dtype, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=n == m and n > 1,
                                          enable_gqa=True)


class PromptAttention:
    """Computes the prompt slots `slots` [n]: stores their keys, attends run by run."""

    def __init__(self, cache: KVCache, slots: Tensor):
        self.cache, self.runs = cache, runs(slots.tolist())
        whole = len(slots) == cache.prompt_slots
        self.slots = slice(0, len(slots)) if whole else slots
        self.rows = cache.table[self.slots]
        self.cos, self.sin = cache.cos[slots], cache.sin[slots]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with batch 1."""
        cache = self.cache
        cache.store(layer, self.rows, k[0], v[0])
        keys, values = cache.k[layer, None], cache.v[layer, None]
        keys[:, :, self.slots] = rotate(k, self.cos, self.sin)
        values[:, :, self.slots] = v
        q = rotate(q, self.cos, self.sin)
        return torch.cat([causal(q[:, :, a:b], keys[:, :, :end], values[:, :, :end])
                          for a, b, end in self.runs], 2)


class TailAttention:
    """Generated tokens at consecutive slots from `first`, one sequence."""

    def __init__(self, cache: KVCache, first: int, count: int = 1):
        self.cache, self.slots = cache, slice(first, first + count)
        self.cos, self.sin = cache.cos[self.slots], cache.sin[self.slots]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with batch 1."""
        keys, values = self.cache.k[layer, None], self.cache.v[layer, None]
        keys[:, :, self.slots] = rotate(k, self.cos, self.sin)
        values[:, :, self.slots] = v
        end = self.slots.stop
        return causal(rotate(q, self.cos, self.sin), keys[:, :, :end], values[:, :, :end])
