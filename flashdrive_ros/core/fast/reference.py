"""
The fused operations in plain torch: what runs without fusion, and what the kernels must equal.

Rows are tokens: no batch axis.  Products bring their scales (see
`quantization.products`); whoever reads them multiplies these in.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import images
from ..attention import causal
from ..config import PromptConfig, VisionConfig
from ..quantization.products import Activation, Product
from ..rotary import rotate

FP8_MAX = 448.0
"""Largest finite e4m3; a conversion beyond it gives NaN, it does not saturate."""


class HeadNorms(NamedTuple):
    """Weights [d] of the norms on queries and keys, and their epsilon."""

    q: Tensor
    k: Tensor
    eps: float


class Rotation(NamedTuple):
    """Tables [m, d] of cosines and signed sines, and the row [n] of each token in them."""

    cos: Tensor
    sin: Tensor
    rows: Tensor


class Store(NamedTuple):
    """Keys and values [kv_heads, capacity, d] and the slot [n] of each token in them."""

    k: Tensor
    v: Tensor
    slots: Tensor


class Ahead(NamedTuple):
    """Weights that are multiplied with next, which a kernel may fetch into the L2 cache."""

    first: Tensor
    then: Tensor | None = None


def quantise(values: Tensor) -> Activation:
    """`values` [m, k] as e4m3 with a scale a row."""
    values = values.float()
    scale = values.abs().amax(-1).clamp(min=1e-12) / FP8_MAX
    scaled = (values / scale[:, None]).clamp(-FP8_MAX, FP8_MAX)
    return Activation(scaled.to(torch.float8_e4m3fn), scale)


def _activation(values: Tensor, fp8: bool) -> Activation:
    return quantise(values) if fp8 else Activation(values)


def add_norm(x: Tensor, product: Product | None, weight: Tensor, eps: float,
             fp8: bool = False, ahead: Ahead | None = None) -> tuple[Tensor, Activation]:
    """Residual `x` [m, h] plus `product`, and the RMS norm of that."""
    if product is not None:
        x = x + product.apply()
    return x, _activation(F.rms_norm(x, weight.shape, weight, eps), fp8)


def silu_mul(product: Product, fp8: bool = False, ahead: Ahead | None = None) -> Activation:
    """SwiGLU of gate|up [m, 2 k]; [m, k]."""
    gate, up = product.apply().chunk(2, -1)
    return _activation(F.silu(gate) * up, fp8)


def store_heads(product: Product, norms: HeadNorms, rotation: Rotation, store: Store,
                master: Store | None = None, ahead: Ahead | None = None) -> Tensor:
    """
    Norm and rotate queries and keys of q|k|v [n, (heads + 2 kv_heads) d]; queries [n, heads, d].

    Rotated keys and values go to `store`, keys before rotation and values to `master`.
    """
    kv, d = store.k.shape[0], store.k.shape[-1]
    qkv = product.apply().unflatten(-1, (-1, d))
    q, k, v = qkv.split((qkv.shape[1] - 2 * kv, kv, kv), 1)
    q, k = (F.rms_norm(x, (d,), w, norms.eps) for x, w in ((q, norms.q), (k, norms.k)))
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    cos, sin = rotation.cos[rotation.rows], rotation.sin[rotation.rows]
    store.k.index_copy_(1, store.slots, rotate(k, cos, sin))
    store.v.index_copy_(1, store.slots, v)
    if master is not None:
        master.k.index_copy_(1, master.slots, k)
        master.v.index_copy_(1, master.slots, v)
    return rotate(q, cos[:, None], sin[:, None])


def attention(q: Tensor, k: Tensor, v: Tensor, limits: Tensor) -> Tensor:
    """
    Attention of few queries `q` [n, heads, d] to a long cache; [n, heads d].

    Query i sees the slots up to `limits[i]` of `k`, `v` [kv_heads, capacity, d].
    """
    seen = torch.arange(k.shape[1], device=q.device) <= limits[:, None]
    out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None],
                                         attn_mask=seen, enable_gqa=True)
    return out[0].transpose(0, 1).flatten(1)


def window_attention(q: Tensor, k: Tensor, v: Tensor, slots: Tensor,
                     runs: list[tuple[int, int, int]]) -> Tensor:
    """
    Attention of the computed slots of a prompt, each to all up to its own; [n, heads d].

    `q` [n, heads, d] are at the ascending `slots` [n]; `runs` are these as
    (first query, end query, slot after the last) of each contiguous run.
    """
    q = q.transpose(0, 1)[None]
    parts = [causal(q[:, :, a:b], k[None, :, :end], v[None, :, :end]) for a, b, end in runs]
    return torch.cat(parts, 2)[0].transpose(0, 1).flatten(1)


def shared_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, own: Store,
                     samples: int) -> Tensor:
    """
    Attention of K samples of N tokens to a shared prefix and each to its own tokens.

    `q` [K N, heads, d]; slots before `visible` [] of `k`, `v` are the prefix;
    `own` holds the keys of all samples, one after the other; [K N, heads d].
    """
    q = q.unflatten(0, (samples, -1)).transpose(1, 2)
    seen = torch.arange(k.shape[1], device=q.device) < visible
    seen = F.pad(seen, (0, q.shape[2]), value=True)
    keys, values = (torch.cat((shared.expand(samples, -1, -1, -1), mine.unflatten(
        1, (samples, -1)).transpose(0, 1)), 2) for shared, mine in ((k, own.k), (v, own.v)))
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None], enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1).flatten(1)


def gather_rotate(master_k: Tensor, master_v: Tensor, table: Tensor, cos: Tensor, sin: Tensor,
                  k: Tensor, v: Tensor) -> None:
    """
    Working copy of a whole cache: rows `table` [S] of the masters, keys rotated.

    `master_*` [layers, kv_heads, S, d], `k`, `v` [layers, kv_heads, >= S, d],
    `cos`, `sin` [>= S, d].
    """
    size = len(table)
    k[:, :, :size] = rotate(master_k.index_select(2, table), cos[:size], sin[:size])
    v[:, :, :size] = master_v.index_select(2, table)


def likeliest(logits: Tensor, allowed: Tensor) -> Tensor:
    """Allowed token [n] with the largest of `logits` [n, vocabulary]."""
    return logits.float().masked_fill(~allowed, -torch.inf).argmax(-1)


def sample(logits: Tensor, allowed: Tensor, draws: Tensor, sampling: Tensor) -> Tensor:
    """
    Token [n] chosen by `draws` [n] as in `sampling.choose`.

    `sampling` [2] holds the temperature and top_p.
    """
    probs = torch.softmax(logits.float().masked_fill(~allowed, -torch.inf) / sampling[0], -1)
    ordered, index = probs.sort(-1, descending=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling[1], 0)
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered / ordered.sum(-1, keepdim=True))
    reached = kept.cumsum(-1, dtype=torch.float64)
    wanted = draws[:, None] * reached[:, -1:]
    return torch.searchsorted(reached, wanted, right=True).squeeze(-1)


def prepare_images(raw: Tensor, vision: VisionConfig, prompt: PromptConfig,
                   dtype: torch.dtype) -> tuple[Tensor, tuple[int, int]]:
    """RGB uint8 `raw` [n, H, W, 3] -> patch rows of type `dtype` and their grid (`images`)."""
    patches, grid = images.prepare(raw.permute(0, 3, 1, 2), vision, prompt)
    return patches.to(dtype), grid


def add_layer_norm(x: Tensor, product: Tensor | None, bias: Tensor | None,
                   norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Residual `x` [m, h] plus `product` and its `bias` [h], and the layer norm of that."""
    if product is not None:
        x = x + (product + bias)
    return x, norm(x)


def rotate_patches(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    Queries, keys (both rotated) and values [n, heads, p, d] of `qkv` [n, p, 3, heads, d].

    `cos`, `sin` [p, d] in float32.
    """
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    return *(rotate(x.float(), cos, sin).to(x.dtype) for x in (q, k)), v


def patch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Full attention within each image, [n, heads, p, d] -> [n p, heads d]."""
    out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2).flatten(0, 1).flatten(1)


def linear_gelu(x: Tensor, linear: nn.Linear) -> Tensor:
    """Linear layer and the tanh form of GELU."""
    return F.gelu(linear(x), approximate='tanh')
