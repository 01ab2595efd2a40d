"""The vision tower's operations that are not matrix products, as kernels."""
from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import images
from ..config import PromptConfig, VisionConfig

_BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
             SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@triton.jit
def _resize_columns(raw, first, weights, out, width, width_out, bits, TAPS: tl.constexpr,
                    BLOCK: tl.constexpr):
    """uint8 [rows, width, 3] -> [rows, 3, width_out], as the fixed-point resampling rounds."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width_out
    start = tl.load(first + column, mask=mask, other=0)
    half = (1 << bits) >> 1
    for channel in tl.static_range(3):
        total = tl.zeros((BLOCK,), tl.int32)
        for tap in range(TAPS):
            at = tl.minimum(start + tap, width - 1)
            total += (tl.load(weights + column * TAPS + tap, mask=mask, other=0)
                      * tl.load(raw + (row * width + at) * 3 + channel, mask=mask,
                                other=0).to(tl.int32))
        value = tl.minimum(tl.maximum((total + half) >> bits, 0), 255)
        tl.store(out + (row * 3 + channel) * width_out + column, value.to(tl.uint8), mask=mask)


@triton.jit
def _resize_rows(columns, first, weights, patches, height, height_out, width, bits,
                 TAPS: tl.constexpr, PATCH: tl.constexpr, MERGE: tl.constexpr,
                 REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    """uint8 [n, height, 3, width] -> normalised patch rows in merge order."""
    image = (tl.program_id(0) // height_out).to(tl.int64)
    row = tl.program_id(0) % height_out
    channel = tl.program_id(1)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    start = tl.load(first + row)
    total = tl.zeros((BLOCK,), tl.int32)
    for tap in range(TAPS):
        at = tl.minimum(start + tap, height - 1)
        total += tl.load(weights + row * TAPS + tap) * tl.load(
            columns + ((image * height + at) * 3 + channel) * width + column, mask=mask,
            other=0).to(tl.int32)
    value = tl.minimum(tl.maximum((total + ((1 << bits) >> 1)) >> bits, 0), 255)
    value = (value.to(tl.float32) - 127.5) / 127.5
    patch_row, patch_column = row // PATCH, column // PATCH
    group = (patch_row // MERGE) * (width // PATCH // MERGE) + patch_column // MERGE
    patch = (group * MERGE + patch_row % MERGE) * MERGE + patch_column % MERGE
    count = (height_out // PATCH) * (width // PATCH)
    size: tl.constexpr = PATCH * PATCH
    base = ((image * count + patch) * 3 + channel) * REPEAT * size
    for time in tl.static_range(REPEAT):
        tl.store(patches + base + time * size + (row % PATCH) * PATCH + column % PATCH,
                 value.to(patches.dtype.element_ty), mask=mask)


@triton.jit
def _add_layer_norm(x, product, bias, weight, norm_bias, summed, out, width, eps,
                    BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    at = row * width + column
    value = tl.load(x + at, mask=mask, other=0.0)
    if ADD:
        more = tl.load(product + at, mask=mask, other=0.0).to(tl.float32)
        more += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + more).to(x.dtype.element_ty)
        tl.store(summed + at, value, mask=mask)
    value = value.to(tl.float32)
    centred = tl.where(mask, value - tl.sum(value, 0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    normed = (centred * scale * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
              + tl.load(norm_bias + column, mask=mask, other=0.0).to(tl.float32))
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_patches(qkv, cos, sin, patches, HEADS: tl.constexpr, D: tl.constexpr,
                    BLOCK: tl.constexpr, HALF: tl.constexpr):
    """Rotate the queries and keys of a patch in place."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, HALF)[None, :]
    mask = (heads < 2 * HEADS) & (d < D // 2)
    at = qkv + token * 3 * HEADS * D + heads * D + d
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + D // 2, mask=mask, other=0.0).to(tl.float32)
    angle = (token % patches) * D + d
    inside = d < D // 2
    low_cos, high_cos = (tl.load(cos + angle, mask=inside, other=0.0),
                         tl.load(cos + angle + D // 2, mask=inside, other=0.0))
    low_sin, high_sin = (tl.load(sin + angle, mask=inside, other=0.0),
                         tl.load(sin + angle + D // 2, mask=inside, other=0.0))
    kind = qkv.dtype.element_ty
    tl.store(at, (low * low_cos + high * low_sin).to(kind), mask=mask)
    tl.store(at + D // 2, (high * high_cos + low * high_sin).to(kind), mask=mask)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _taps(size_in: int, size_out: int, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """First input of every output, its integer weights [size_out, taps], and their bits."""
    if size_in == size_out:
        weights, bits = torch.eye(size_in), 0
    else:
        weights, bits = images.fixed_point_weights(size_in, size_out, torch.device('cpu'))
    used = weights != 0
    first = used.int().argmax(1)
    last = size_in - 1 - used.flip(1).int().argmax(1)
    taps = int((last - first).max()) + 1
    at = first[:, None] + torch.arange(taps)
    taken = weights.gather(1, at.clamp(max=size_in - 1)) * (at < size_in)
    return first.int().to(device), taken.int().to(device), bits


def prepare_images(raw: Tensor, vision: VisionConfig, prompt: PromptConfig,
                   dtype: torch.dtype) -> tuple[Tensor, tuple[int, int]]:
    """See `reference.prepare_images`."""
    n, height, width, _ = raw.shape
    device = raw.device
    rows, columns = grid = images.patch_grid(height, width, vision, prompt)
    size = vision.patch_size
    height_out, width_out = rows * size, columns * size
    block = 128
    first, weights, bits = _taps(width, width_out, device)
    narrow = torch.empty(n, height, 3, width_out, dtype=torch.uint8, device=device)
    _resize_columns[n * height, triton.cdiv(width_out, block)](
        raw, first, weights, narrow, width, width_out, bits, TAPS=weights.shape[1], BLOCK=block,
        num_warps=4)
    first, weights, bits = _taps(height, height_out, device)
    patches = torch.empty(n, rows * columns, vision.patch_dim, dtype=dtype, device=device)
    _resize_rows[n * height_out, 3, triton.cdiv(width_out, block)](
        narrow, first, weights, patches, height, height_out, width_out, bits,
        TAPS=weights.shape[1], PATCH=size, MERGE=vision.spatial_merge_size,
        REPEAT=vision.temporal_patch_size, BLOCK=block, num_warps=4)
    return patches, grid


def add_layer_norm(x: Tensor, product: Tensor | None, bias: Tensor | None,
                   norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """See `reference.add_layer_norm`."""
    add = product is not None
    summed, out = torch.empty_like(x) if add else x, torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _add_layer_norm[len(x),](x, product, bias, norm.weight, norm.bias, summed, out, x.shape[1],
                             norm.eps, BLOCK=block, ADD=add, num_warps=max(1, block // 512))
    return summed, out


def rotate_patches(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.rotate_patches`; works in place."""
    n, patches, _, heads, d = qkv.shape
    block = min(triton.next_power_of_2(2 * heads), 8)
    _rotate_patches[n * patches, triton.cdiv(2 * heads, block)](
        qkv, cos, sin, patches, HEADS=heads, D=d, BLOCK=block,
        HALF=triton.next_power_of_2(d // 2), num_warps=4)
    return tuple(qkv.permute(2, 0, 3, 1, 4))


def patch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """See `reference.patch_attention`."""
    if q.device.type == 'cuda':
        with sdpa_kernel(_BACKENDS, set_priority=True):
            out = F.scaled_dot_product_attention(q, k, v)
    else:
        out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2).flatten(0, 1).flatten(1)


def linear_gelu(x: Tensor, linear: nn.Linear) -> Tensor:
    """See `reference.linear_gelu`; in the product's epilogue where cuBLASLt has one."""
    if x.device.type != 'cuda' or x.dtype == torch.float32:
        return F.gelu(linear(x), approximate='tanh')
    return torch._addmm_activation(linear.bias, x, linear.weight.t(), use_gelu=True)
