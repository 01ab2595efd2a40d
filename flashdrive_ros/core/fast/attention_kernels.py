"""
Attention of new tokens to a cache, the keys split over programs where rows are few.

One kernel: rows are the queries of a group of heads that share keys; each sees
the slots up to its own limit, which is read on the device.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import flash_attention
from .reference import Store


class Tiles(NamedTuple):
    """Rows and keys of a tile, programs a row of tiles is split over, warps, stages."""

    rows: int
    keys: int
    splits: int
    warps: int
    stages: int


@triton.jit
def _tile(q, k, v, seen, top, total, acc, scale, MASKED: tl.constexpr):
    """Take one tile of keys into the running maximum, sum and weighted values."""
    scores = tl.dot(q, tl.trans(k), input_precision='ieee') * scale
    if MASKED:
        scores = tl.where(seen, scores, -float('inf'))
    new = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(new == -float('inf'), 0.0, new)
    weights = tl.exp2(scores - safe[:, None])
    fade = tl.exp2(top - safe)
    total = total * fade + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision='ieee')
    return new, total, acc


@triton.jit
def _attend(q, k, v, limits, k_head, k_slot, own_k, own_v, own_head, own_slot, out, part_acc,
            part_sum, count, heads, per_sample, scale, GROUP: tl.constexpr, D: tl.constexpr,
            ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, OWN: tl.constexpr,
            SHARED_LIMIT: tl.constexpr):
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the last see most: they begin first
    head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    rows = block * ROWS + tl.arange(0, ROWS)
    valid = rows < count * GROUP
    token = rows // GROUP
    d = tl.arange(0, D)
    at = (token.to(tl.int64) * heads + head * GROUP + rows % GROUP)[:, None] * D + d[None, :]
    queries = tl.load(q + at, mask=valid[:, None], other=0.0)
    if SHARED_LIMIT:
        limit = tl.zeros((ROWS,), tl.int32) + tl.load(limits).to(tl.int32) - 1
    else:
        limit = tl.load(limits + token, mask=valid, other=-1).to(tl.int32)
    most = tl.max(limit, 0) + 1
    least = tl.min(tl.where(valid, limit, most), 0) + 1
    chunk = tl.cdiv(tl.cdiv(most, KEYS), SPLITS) * KEYS
    first = split * chunk
    end = tl.minimum(first + chunk, most)
    top = tl.full((ROWS,), -float('inf'), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    k += head * k_head
    v += head * k_head
    whole = first + tl.maximum(tl.minimum(end, least) - first, 0) // KEYS * KEYS
    for start in range(first, whole, KEYS):
        keys = start + tl.arange(0, KEYS)
        place = keys[:, None] * k_slot + d[None, :]
        top, total, acc = _tile(queries, tl.load(k + place), tl.load(v + place), 0, top, total,
                                acc, scale, False)
    for start in range(whole, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        place = keys[:, None] * k_slot + d[None, :]
        inside = (keys < end)[:, None]
        seen = (keys[None, :] <= limit[:, None]) & (keys < end)[None, :]
        top, total, acc = _tile(queries, tl.load(k + place, mask=inside, other=0.0),
                                tl.load(v + place, mask=inside, other=0.0), seen, top, total, acc,
                                scale, True)
    if OWN:  # noqa: SIM102 (decided when it is compiled)
        if split == SPLITS - 1:
            sample = token // per_sample
            begin = tl.min(sample, 0) * per_sample
            stop = tl.minimum((tl.max(sample, 0) + 1) * per_sample, count)
            for start in range(begin, stop, KEYS):
                keys = start + tl.arange(0, KEYS)
                place = head * own_head + keys[:, None] * own_slot + d[None, :]
                inside = (keys < stop)[:, None]
                mine = (keys[None, :] // per_sample == sample[:, None]) & (keys < stop)[None, :]
                top, total, acc = _tile(queries, tl.load(own_k + place, mask=inside, other=0.0),
                                        tl.load(own_v + place, mask=inside, other=0.0), mine, top,
                                        total, acc, scale, True)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if SPLITS == 1:
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=valid[:, None])
    else:
        place = split * count * heads + token * heads + head * GROUP + rows % GROUP
        tl.store(part_acc + place.to(tl.int64)[:, None] * D + d[None, :], acc,
                 mask=valid[:, None])
        tl.store(part_sum + place, top + tl.log2(total), mask=valid)


@triton.jit
def _combine(part_acc, part_sum, out, rows, D: tl.constexpr, SPLITS: tl.constexpr,
             BLOCK: tl.constexpr):
    row = tl.program_id(0)
    splits = tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    mask = splits < SPLITS
    sums = tl.load(part_sum + splits * rows + row, mask=mask, other=-float('inf'))
    weights = tl.exp2(sums - tl.max(sums, 0))
    weights = weights / tl.sum(weights, 0)
    parts = tl.load(part_acc + (splits.to(tl.int64) * rows + row)[:, None] * D + d[None, :],
                    mask=mask[:, None], other=0.0)
    parts = tl.where(weights[:, None] == 0.0, 0.0, parts)
    tl.store(out + row.to(tl.int64) * D + d,
             tl.sum(parts * weights[:, None], 0).to(out.dtype.element_ty))


def _run(q: Tensor, k: Tensor, v: Tensor, limits: Tensor, tiles: Tiles, own: Store | None = None,
         per_sample: int = 1) -> Tensor:
    count, heads, d = q.shape
    kv, group = len(k), heads // len(k)
    out = torch.empty(count, heads * d, dtype=q.dtype, device=q.device)
    part_acc = part_sum = None
    if tiles.splits > 1:
        part_acc = torch.empty(tiles.splits, count * heads, d, device=q.device)
        part_sum = torch.empty(tiles.splits, count * heads, device=q.device)
    own_k, own_v = (own.k, own.v) if own else (None, None)
    own_head, own_slot = own.k.stride()[:2] if own else (0, 0)
    _attend[triton.cdiv(count * group, tiles.rows), kv, tiles.splits](
        q, k, v, limits, *k.stride()[:2], own_k, own_v, own_head, own_slot, out, part_acc,
        part_sum, count, heads, per_sample, d ** -0.5 * 1.4426950408889634, GROUP=group, D=d,
        ROWS=tiles.rows, KEYS=tiles.keys, SPLITS=tiles.splits, OWN=own is not None,
        SHARED_LIMIT=limits.dim() == 0, num_warps=tiles.warps, num_stages=tiles.stages)
    if tiles.splits > 1:
        _combine[count * heads,](part_acc, part_sum, out, count * heads, D=d, SPLITS=tiles.splits,
                                 BLOCK=triton.next_power_of_2(tiles.splits), num_warps=4)
    return out


def _row_tile(rows: int, most: int) -> int:
    return min(max(triton.next_power_of_2(rows), 16), most)


def split_tiles(rows: int, kv: int, keys: int) -> Tiles:
    """Tiles for few rows (of one group of heads) and many keys."""
    tile = _row_tile(rows, 128)
    programs = triton.cdiv(rows, tile) * kv
    splits = min(max(132 // programs, 1), triton.cdiv(keys, 64))
    return Tiles(tile, 64, splits, 8 if tile >= 128 else 4, 3)


def attention(q: Tensor, k: Tensor, v: Tensor, limits: Tensor) -> Tensor:
    """See `reference.attention`."""
    rows = len(q) * q.shape[1] // len(k)
    return _run(q, k, v, limits, split_tiles(rows, len(k), k.shape[1]))


def window_attention(q: Tensor, k: Tensor, v: Tensor, slots: Tensor,
                     runs: list[tuple[int, int, int]]) -> Tensor:
    """See `reference.window_attention`."""
    if flash_attention.serves(q):
        return flash_attention.window_attention(q, k, v, runs)
    rows = len(q) * q.shape[1] // len(k)
    tile = _row_tile(rows, 64)
    return _run(q, k, v, slots, Tiles(tile, 64, 1, 4, 3))


def shared_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, own: Store,
                     samples: int) -> Tensor:
    """See `reference.shared_attention`."""
    rows = len(q) * q.shape[1] // len(k)
    return _run(q, k, v, visible, split_tiles(rows, len(k), k.shape[1]), own, len(q) // samples)
