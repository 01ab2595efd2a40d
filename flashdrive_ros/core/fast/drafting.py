"""The drafter's pass over a text block, in static shapes."""
from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from ..decoder import Attention
from ..drafter import Drafter
from ..model import Alpamayo
from ..quantization.products import Activation, Product
from ..rotary import decoder_rotary
from .reference import HeadNorms, Rotation, Store
from .stack import Stack, head_norms, multiply, takes_fp8


class FastDrafter:
    """
    Computes what `speculative.Draft.propose` does, for one block.

    The context joins the block's rows before each layer's projection, so that its
    keys and values cost no second pass over the weights.
    """

    def __init__(self, drafter: Drafter, model: Alpamayo, operations: ModuleType):
        self.drafter, self.model, self.ops = drafter, model, operations
        self.config = drafter.config
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    def fuse(self, taps) -> Tensor:
        """Fused features, as `Drafter.fuse`."""
        return self.drafter.fuse(taps)

    def propose(self, anchor: Tensor, context: Tensor, allowed: Tensor,
                forced: tuple[tuple[int, int], ...]) -> Tensor:
        """Block [B] behind `anchor` [1], its likeliest tokens given `context` [n, hidden]."""
        embedded = self.model.embed_tokens(anchor)
        x = self.drafter.block(embedded, self.config.block_size)[0]
        states = self._states(x, context)[1:]
        proposals = self.ops.likeliest(self.model.lm_head(states), allowed)
        block = torch.cat((anchor, proposals))
        for token, following in forced:
            block[1:].masked_fill_(block[:-1] == token, following)
        return block

    def _states(self, x: Tensor, context: Tensor) -> Tensor:
        """Normed states [B, hidden] of the block."""
        ops, config, n = self.ops, self.config, len(context)
        rotation = self._rotation(n + len(x))
        shape = (config.num_key_value_heads, n + len(x), config.head_dim)
        store = Store(x.new_empty(shape), x.new_empty(shape), rotation.rows)
        limits = torch.full_like(rotation.rows[n:], n + len(x) - 1)
        product = None
        for layer in self.drafter.layers:
            attention, mlp = layer.self_attn, layer.mlp
            norm = layer.input_layernorm
            x, normed = ops.add_norm(x, product, norm.weight, norm.eps)
            joined = torch.cat((context, normed.values))
            q = ops.store_heads(self._project(attention, joined), head_norms(attention), rotation,
                                store)
            heads = ops.attention(q[n:], store.k, store.v, limits)
            merged = ops.quantise(heads) if takes_fp8(attention.o_proj) else Activation(heads)
            norm = layer.post_attention_layernorm
            x, normed = ops.add_norm(x, multiply(attention.o_proj, merged), norm.weight, norm.eps,
                                     takes_fp8(mlp.gate_up_proj))
            gated = ops.silu_mul(multiply(mlp.gate_up_proj, normed), takes_fp8(mlp.down_proj))
            product = multiply(mlp.down_proj, gated)
        norm = self.drafter.norm
        return ops.add_norm(x, product, norm.weight, norm.eps)[1].values

    def _project(self, attention: Attention, rows: Tensor) -> Product:
        matrix = attention.qkv_proj
        return multiply(matrix, self.ops.quantise(rows) if takes_fp8(matrix) else Activation(rows))

    def _rotation(self, count: int) -> Rotation:
        """Tables of the positions 0 to `count` - 1; only differences of positions matter."""
        if count not in self.tables:
            rows = torch.arange(count, device=self.model.device)
            cos, sin = decoder_rotary(rows.expand(3, -1), self.config, self.model.dtype)
            self.tables[count] = Rotation(cos, sin, rows)
        return self.tables[count]
