"""
Qwen3 decoder: the language model, and the action expert at other sizes.

Projections are fused (q|k|v, gate|up).  Where keys and values come from is the
caller's: `forward` takes one `attend(layer, q, k, v)` that stores and attends.
Keys reach it after k_norm and before rotation.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from .config import DecoderConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [b, heads, n, d], k and v [b, kv_heads, n, d], all unrotated) -> [b, heads, n, d]."""


class TapList(Protocol):
    """What takes the states between the layers: a list, or something that keeps less."""

    def append(self, x: Tensor, /) -> None:
        """Take the states [b, n, hidden] before the next layer, at last those behind all."""


class Attention(nn.Module):
    """Grouped-query attention with per-head norms on queries and keys."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        heads, kv_heads, dim = (config.num_attention_heads, config.num_key_value_heads,
                                config.head_dim)
        self.qkv_proj = nn.Linear(config.hidden_size, (heads + 2 * kv_heads) * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [b, heads, n, d] of `x` [b, n, hidden], normed, unrotated."""
        c = self.config
        qkv = self.qkv_proj(x).view(*x.shape[:2], -1, c.head_dim)
        q, k, v = qkv.split((c.num_attention_heads, c.num_key_value_heads,
                             c.num_key_value_heads), 2)
        return self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [b, kv_heads, n, d] of `x` [b, n, hidden], normed, unrotated."""
        c = self.config
        weight = self.qkv_proj.weight[c.num_attention_heads * c.head_dim:]
        k, v = F.linear(x, weight).view(*x.shape[:2], -1, c.head_dim).chunk(2, 2)
        return self.k_norm(k).transpose(1, 2), v.transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """Output [b, n, hidden] of the attended values [b, heads, n, d]."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class DecoderLayer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """Keep the shape."""
        return self.after(x, attend(layer, *self.before(x)))

    def before(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Everything up to the attention: queries, keys and values."""
        return self.self_attn.project(self.input_layernorm(x))

    def after(self, x: Tensor, heads: Tensor) -> Tensor:
        """Everything behind it: what was attended to joins `x`, then the MLP."""
        x = x + self.self_attn.merge(heads)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The stack of layers and the final norm; no embedding and no head."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, attend: Attend, deepstack: Tensor | None = None,
                image_rows: Tensor | None = None, taps: TapList | None = None) -> Tensor:
        """
        Final hidden states (normed) of `x` [b, n, hidden].

        `deepstack` [k, b, image tokens, hidden] is added to the rows `image_rows`
        after layers 0 to k-1.  `taps`, when given, collects the input of every
        layer and the output of the last.
        """
        for index, layer in enumerate(self.layers):
            if taps is not None:
                taps.append(x)
            x = layer(x, index, attend)
            if deepstack is not None and index < len(deepstack):
                x = x.index_add(1, image_rows, deepstack[index].to(x.dtype))
        if taps is not None:
            taps.append(x)
        return self.norm(x)
