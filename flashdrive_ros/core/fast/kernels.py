"""
The operations of `reference.py` as Triton kernels.

Sums are in float32; what is stored is rounded where the reference rounds it.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantization.products import Activation, Product
from .attention_kernels import attention, shared_attention, window_attention
from .reference import FP8_MAX, Ahead, HeadNorms, Rotation, Store
from .sampling_kernels import likeliest, sample
from .vision_kernels import (
    add_layer_norm,
    linear_gelu,
    patch_attention,
    prepare_images,
    rotate_patches,
)

__all__ = ['add_layer_norm', 'add_norm', 'attention', 'gather_rotate', 'likeliest', 'linear_gelu',
           'patch_attention', 'prepare_images', 'quantise', 'rotate_patches', 'sample',
           'shared_attention', 'silu_mul', 'store_heads', 'window_attention']
FP8 = torch.float8_e4m3fn
FETCHED_BYTES = 0
"""Most bytes of weights that a kernel asks the L2 cache for."""
_MAX = tl.constexpr(FP8_MAX)


@triton.jit
def _fetch(weights, chunks, program, programs, EACH: tl.constexpr):
    """Ask the L2 cache for this program's share of `chunks` of 4 KiB; waits for nothing."""
    chunk = tl.minimum(program + tl.arange(0, EACH) * programs, chunks - 1)
    address = weights.to(tl.int64) + chunk.to(tl.int64) * 4096
    tl.inline_asm_elementwise('cp.async.bulk.prefetch.L2.global [$1], 4096; mov.u32 $0, 0;',
                              '=r,l', [address], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _fetch_ahead(first, first_chunks, then, then_chunks, FIRST: tl.constexpr,
                 THEN: tl.constexpr):
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    programs = tl.num_programs(0) * tl.num_programs(1)
    if FIRST > 0:
        _fetch(first, first_chunks, program, programs, FIRST)
    if THEN > 0:
        _fetch(then, then_chunks, program, programs, THEN)


@triton.jit
def _scaled(values, row_scale, column_scale, row, columns, mask, SCALED: tl.constexpr):
    values = values.to(tl.float32)
    if SCALED:
        values = values * tl.load(row_scale + row)
        values = values * tl.load(column_scale + columns, mask=mask, other=0.0)
    return values


@triton.jit
def _store_row(values, out, out_scale, row, columns, mask, width, FP8: tl.constexpr):
    """Store a whole row, as e4m3 with its scale where FP8."""
    if FP8:
        largest = tl.max(tl.where(mask, tl.abs(values), 0.0), 0)
        scale = tl.maximum(largest, 1e-12) / _MAX
        tl.store(out_scale + row, scale)
        values = tl.minimum(tl.maximum(values / scale, -_MAX), _MAX)
    tl.store(out + row * width + columns, values.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _quantise(values, out, out_scale, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(values + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    _store_row(x, out, out_scale, row, columns, mask, width, True)


@triton.jit
def _add_norm(x, product, row_scale, column_scale, weight, summed, out, out_scale, width, eps,
              first, first_chunks, then, then_chunks, BLOCK: tl.constexpr, ADD: tl.constexpr,
              SCALED: tl.constexpr, FP8: tl.constexpr, FIRST: tl.constexpr, THEN: tl.constexpr):
    _fetch_ahead(first, first_chunks, then, then_chunks, FIRST, THEN)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    at = row * width + columns
    value = tl.load(x + at, mask=mask, other=0.0)
    if ADD:
        more = _scaled(tl.load(product + at, mask=mask, other=0.0), row_scale, column_scale, row,
                       columns, mask, SCALED)
        value = (value.to(tl.float32) + more).to(x.dtype.element_ty)
        tl.store(summed + at, value, mask=mask)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    normed = value * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    _store_row(normed, out, out_scale, row, columns, mask, width, FP8)


@triton.jit
def _silu_mul(product, row_scale, column_scale, out, out_scale, width, first, first_chunks, then,
              then_chunks, BLOCK: tl.constexpr, SCALED: tl.constexpr, FP8: tl.constexpr,
              FIRST: tl.constexpr, THEN: tl.constexpr):
    _fetch_ahead(first, first_chunks, then, then_chunks, FIRST, THEN)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    at = product + row * 2 * width + columns
    gate = _scaled(tl.load(at, mask=mask, other=0.0), row_scale, column_scale, row, columns, mask,
                   SCALED)
    up = _scaled(tl.load(at + width, mask=mask, other=0.0), row_scale, column_scale, row,
                 columns + width, mask, SCALED)
    value = gate / (1.0 + tl.exp(-gate)) * up
    _store_row(value, out, out_scale, row, columns, mask, width, FP8)


@triton.jit
def _store_heads(product, row_scale, column_scale, q_weight, k_weight, cos, sin, table_rows,
                 queries, k, v, slots, k_head, k_slot, master_k, master_v, rows, m_head, m_slot,
                 eps, first_ahead, first_chunks, then, then_chunks, HEADS: tl.constexpr,
                 KV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
                 MASTER: tl.constexpr, FIRST: tl.constexpr, THEN: tl.constexpr):
    _fetch_ahead(first_ahead, first_chunks, then, then_chunks, FIRST, THEN)
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    heads = first + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, D)[None, :]
    other_d = (d + D // 2) % D
    start = token * (HEADS + 2 * KV) * D
    here, there = heads * D + d, heads * D + other_d
    x = _scaled(tl.load(product + start + here), row_scale, column_scale, token, here, here >= 0,
                SCALED)
    if first < HEADS + KV:
        partner = _scaled(tl.load(product + start + there), row_scale, column_scale, token, there,
                          there >= 0, SCALED)
        scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        weight = q_weight
        if first >= HEADS:
            weight = k_weight
        kind = queries.dtype.element_ty
        normed = (x * scale * tl.load(weight + d).to(tl.float32)).to(kind)
        other = (partner * scale * tl.load(weight + other_d).to(tl.float32)).to(kind)
        angle = tl.load(table_rows + token) * D + d
        rotated = (normed.to(tl.float32) * tl.load(cos + angle).to(tl.float32)
                   + other.to(tl.float32) * tl.load(sin + angle).to(tl.float32)).to(kind)
        if first < HEADS:
            tl.store(queries + token * HEADS * D + here, rotated)
        else:
            tl.store(k + (heads - HEADS) * k_head + tl.load(slots + token) * k_slot + d, rotated)
            if MASTER:
                tl.store(master_k + (heads - HEADS) * m_head + tl.load(rows + token) * m_slot + d,
                         normed)
    else:
        at = heads - HEADS - KV
        value = x.to(v.dtype.element_ty)
        tl.store(v + at * k_head + tl.load(slots + token) * k_slot + d, value)
        if MASTER:
            tl.store(master_v + at * m_head + tl.load(rows + token) * m_slot + d, value)


@triton.jit
def _gather_rotate(master_k, master_v, table, cos, sin, k, v, size, m_head, m_slot, k_head, k_slot,
                   D: tl.constexpr, BLOCK: tl.constexpr):
    slots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    head = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D)[None, :]
    mask = slots < size
    source = head * m_head + tl.load(table + slots, mask=mask, other=0) * m_slot
    target = head * k_head + slots * k_slot + d
    x = tl.load(master_k + source + d, mask=mask, other=0.0).to(tl.float32)
    partner = tl.load(master_k + source + (d + D // 2) % D, mask=mask, other=0.0).to(tl.float32)
    angle = slots * D + d
    rotated = (x * tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
               + partner * tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32))
    tl.store(k + target, rotated.to(k.dtype.element_ty), mask=mask)
    tl.store(v + target, tl.load(master_v + source + d, mask=mask, other=0.0), mask=mask)


def _block(width: int) -> tuple[int, int]:
    """Block that holds a row of `width`, and its warps."""
    block = triton.next_power_of_2(width)
    return block, min(max(block // 512, 1), 16)


def _scales(product: Product) -> tuple[Tensor | None, Tensor | None, bool]:
    if (product.row_scale is None) != (product.column_scale is None):
        raise ValueError('a product has both scales or none')
    return product.row_scale, product.column_scale, product.row_scale is not None


def _ahead(ahead: Ahead | None, programs: int) -> tuple[dict, Tensor | None]:
    """Arguments of `_fetch_ahead` besides the first weights, and these."""
    left, arguments = FETCHED_BYTES, []
    for weights in ahead or () if left else ():
        size = 0 if weights is None else min(weights.nbytes, left)
        left -= size
        arguments.append((weights, size // 4096))
    (first, first_chunks), (then, then_chunks) = arguments or ((None, 0), (None, 0))
    each = [triton.next_power_of_2(triton.cdiv(n, programs)) if n else 0
            for n in (first_chunks, then_chunks)]
    return {'first_chunks': first_chunks, 'then': then, 'then_chunks': then_chunks,
            'FIRST': each[0], 'THEN': each[1]}, first


def _row_output(like: Tensor, width: int, fp8: bool) -> tuple[Tensor, Tensor | None]:
    shape, device = (len(like), width), like.device
    values = torch.empty(shape, dtype=FP8 if fp8 else like.dtype, device=device)
    return values, torch.empty(len(like), device=device) if fp8 else None


def quantise(values: Tensor) -> Activation:
    """See `reference.quantise`."""
    out, scale = _row_output(values, values.shape[1], True)
    block, warps = _block(values.shape[1])
    _quantise[len(values),](values, out, scale, values.shape[1], BLOCK=block, num_warps=warps)
    return Activation(out, scale)


def add_norm(x: Tensor, product: Product | None, weight: Tensor, eps: float,
             fp8: bool = False, ahead: Ahead | None = None) -> tuple[Tensor, Activation]:
    """See `reference.add_norm`."""
    out, scale = _row_output(x, x.shape[1], fp8)
    block, warps = _block(x.shape[1])
    add = product is not None
    summed = torch.empty_like(x) if add else x
    row_scale, column_scale, scaled = _scales(product) if add else (None, None, False)
    fetch, first = _ahead(ahead, len(x))
    _add_norm[len(x),](x, product.values if add else None, row_scale, column_scale, weight, summed,
                       out, scale, x.shape[1], eps, first, **fetch, BLOCK=block, ADD=add,
                       SCALED=scaled, FP8=fp8, num_warps=warps)
    return summed, Activation(out, scale)


def silu_mul(product: Product, fp8: bool = False, ahead: Ahead | None = None) -> Activation:
    """See `reference.silu_mul`."""
    values = product.values
    width = values.shape[1] // 2
    out, scale = _row_output(values, width, fp8)
    block, warps = _block(width) if fp8 else (1024, 4)
    row_scale, column_scale, scaled = _scales(product)
    grid = len(values), triton.cdiv(width, block)
    fetch, first = _ahead(ahead, grid[0] * grid[1])
    _silu_mul[grid](values, row_scale, column_scale, out, scale, width, first, **fetch,
                    BLOCK=block, SCALED=scaled, FP8=fp8, num_warps=warps)
    return Activation(out, scale)


def store_heads(product: Product, norms: HeadNorms, rotation: Rotation, store: Store,
                master: Store | None = None, ahead: Ahead | None = None) -> Tensor:
    """See `reference.store_heads`."""
    kv, _, d = store.k.shape
    n, width = product.values.shape
    heads = width // d - 2 * kv
    queries = torch.empty(n, heads, d, dtype=store.k.dtype, device=store.k.device)
    block = min(heads & -heads, kv & -kv, 8)  # a power of two that divides both
    row_scale, column_scale, scaled = _scales(product)
    to = master or Store(None, None, None)
    m_head, m_slot = master.k.stride()[:2] if master else (0, 0)
    grid = n, (heads + 2 * kv) // block
    fetch, first = _ahead(ahead, grid[0] * grid[1])
    _store_heads[grid](
        product.values, row_scale, column_scale, norms.q, norms.k, rotation.cos, rotation.sin,
        rotation.rows, queries, store.k, store.v, store.slots, *store.k.stride()[:2], to.k, to.v,
        to.slots, m_head, m_slot, norms.eps, first, **fetch, HEADS=heads, KV=kv, D=d, BLOCK=block,
        SCALED=scaled, MASTER=master is not None, num_warps=2)
    return queries


def gather_rotate(master_k: Tensor, master_v: Tensor, table: Tensor, cos: Tensor, sin: Tensor,
                  k: Tensor, v: Tensor) -> None:
    """See `reference.gather_rotate`."""
    layers, kv, _, d = master_k.shape
    size, block = len(table), 32
    _gather_rotate[triton.cdiv(size, block), layers * kv](
        master_k, master_v, table, cos, sin, k, v, size, *master_k.stride()[1:3],
        *k.stride()[1:3], D=d, BLOCK=block, num_warps=4)
