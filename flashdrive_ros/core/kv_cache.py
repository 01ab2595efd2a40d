"""
Keys and values of one prompt.

The master copy holds keys before rotation and values, one row per slot,
through a slot table: sliding the window permutes the table and moves nothing.
Once per window `begin` gathers and rotates the whole master into a working copy
in slot order; every attention of that window then is ordinary attention.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .config import DecoderConfig
from .rotary import decoder_rotary, rotate


class KVCache:
    """Cache of `prompt_slots` prompt rows and room for `tail_slots` generated tokens."""

    def __init__(self, config: DecoderConfig, prompt_slots: int, tail_slots: int,
                 dtype: torch.dtype, device: torch.device):
        self.config = config
        self.prompt_slots = prompt_slots
        self.capacity = prompt_slots + tail_slots
        shape = (config.num_hidden_layers, config.num_key_value_heads, prompt_slots,
                 config.head_dim)
        self.master_k = torch.zeros(shape, dtype=dtype, device=device)
        self.master_v = torch.zeros_like(self.master_k)
        shape = (*shape[:2], self.capacity, config.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.table = torch.arange(prompt_slots, device=device)
        self.cos = self.sin = torch.empty(0)

    def set_positions(self, positions: Tensor) -> None:
        """Fix the positions [3, capacity] of all slots; call before the first `begin`."""
        self.cos, self.sin = decoder_rotary(positions, self.config, self.k.dtype)

    def reset(self) -> None:
        """Forget the window: slot i is row i again.  Stale rows are never read."""
        torch.arange(self.prompt_slots, out=self.table)

    def slide(self, table: Tensor) -> None:
        """Let slot i be row `table[i]` from now on (a permutation of the present table)."""
        self.table.copy_(table)

    def begin(self) -> None:
        """Make the working copy for this window: gather in slot order, rotate keys."""
        p = self.prompt_slots
        keys = self.master_k.index_select(2, self.table)
        self.k[:, :, :p] = rotate(keys, self.cos[:p], self.sin[:p])
        self.v[:, :, :p] = self.master_v.index_select(2, self.table)

    def store(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Keep unrotated `k` and `v` [kv_heads, n, d] in the rows [n] of the master copy."""
        self.master_k[layer].index_copy_(1, rows, k)
        self.master_v[layer].index_copy_(1, rows, v)
