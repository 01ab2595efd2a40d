"""The drafter's pass over a text block, in static shapes."""
from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from ..decoder import Attention
from ..drafter import Taps
from ..model import Alpamayo
from ..quantization.products import Activation, Product
from ..rotary import decoder_rotary
from ..speculative import Draft
from .reference import Rotation, Store
from .stack import head_norms, multiply, takes_fp8


class FastDrafter:
    """
    Computes what `speculative.Draft.propose` does, for one block.

    `context` [n, hidden] are the fused features of the last tokens before it.  They join
    the block's rows before each layer's projection, so that their keys and values cost no
    second pass over the weights.
    """

    def __init__(self, draft: Draft, model: Alpamayo, operations: ModuleType):
        self.drafter, self.model, self.ops = draft.drafter, model, operations
        self.config, self.forced = draft.drafter.config, draft.forced
        self.context = draft.context.clone()
        count = len(self.context) + self.config.block_size
        rows = torch.arange(count, device=model.device)
        self.rotation = Rotation(*decoder_rotary(rows.expand(3, -1), self.config, model.dtype),
                                 rows)

    def advance(self, taps: Taps, accepted: Tensor) -> None:
        """Let the context end with the last of the `accepted` [1] tokens of a verified block."""
        known = torch.cat((self.context, self.drafter.fuse(taps.chosen())[0]))
        newest = accepted + 1 + torch.arange(len(self.context), device=accepted.device)
        self.context.copy_(known[newest])

    def propose(self, anchor: Tensor, allowed: Tensor) -> Tensor:
        """Block [B] behind `anchor` [1], its likeliest tokens."""
        embedded = self.model.embed_tokens(anchor)
        x = self.drafter.block(embedded, self.config.block_size)[0]
        states = self._states(x)[1:]
        proposals = self.ops.likeliest(self.model.lm_head(states), allowed)
        block = torch.cat((anchor, proposals))
        for token, following in self.forced.items():
            block[1:].masked_fill_(block[:-1] == token, following)
        return block

    def _states(self, x: Tensor) -> Tensor:
        """Normed states [B, hidden] of the block."""
        ops, config, n, rotation = self.ops, self.config, len(self.context), self.rotation
        shape = (config.num_key_value_heads, n + len(x), config.head_dim)
        store = Store(x.new_empty(shape), x.new_empty(shape), rotation.rows)
        limits = torch.full_like(rotation.rows[n:], n + len(x) - 1)
        product = None
        for layer in self.drafter.layers:
            attention, mlp = layer.self_attn, layer.mlp
            norm = layer.input_layernorm
            x, normed = ops.add_norm(x, product, norm.weight, norm.eps)
            joined = torch.cat((self.context, normed.values))
            q = ops.store_heads(self._project(attention, joined), head_norms(attention), rotation,
                                store)
            heads = ops.attention(q[n:], store.k, store.v, limits)
            merged = Activation(heads)
            if takes_fp8(attention.o_proj, len(x)):
                merged = ops.quantise(heads)
            norm = layer.post_attention_layernorm
            x, normed = ops.add_norm(x, multiply(attention.o_proj, merged), norm.weight, norm.eps,
                                     takes_fp8(mlp.gate_up_proj, len(x)))
            gated = ops.silu_mul(multiply(mlp.gate_up_proj, normed),
                                 takes_fp8(mlp.down_proj, len(x)))
            product = multiply(mlp.down_proj, gated)
        norm = self.drafter.norm
        return ops.add_norm(x, product, norm.weight, norm.eps)[1].values

    def _project(self, attention: Attention, rows: Tensor) -> Product:
        linear = attention.qkv_proj
        return multiply(linear, self.ops.quantise(rows) if takes_fp8(linear, len(rows))
                        else Activation(rows))
