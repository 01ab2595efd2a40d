"""The rotation of activations as one Triton kernel: each group of channels times its block."""
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(x, blocks, y, rows, k, ROWS: tl.constexpr, GROUP: tl.constexpr):
    group, first = tl.program_id(0), tl.program_id(1) * ROWS
    row = first + tl.arange(0, ROWS)
    channel = tl.arange(0, GROUP)
    place = row[:, None] * k + group * GROUP + channel[None, :]
    inside = row[:, None] < rows
    block = tl.load(blocks + group * GROUP * GROUP + channel[:, None] * GROUP + channel[None, :])
    turned = tl.dot(tl.load(x + place, mask=inside, other=0.0), block)
    tl.store(y + place, turned.to(y.dtype.element_ty), mask=inside)


def rotate(x: Tensor, blocks: Tensor) -> Tensor:
    """Rows [m, k] of bf16 times the `blocks` [k/128, 128, 128] of their groups."""
    x = x.contiguous()
    y = torch.empty_like(x)
    rows, k = x.shape
    tile = 16 if rows <= 16 else 64
    groups, size = blocks.shape[:2]
    _rotate[(groups, triton.cdiv(rows, tile))](x, blocks, y, rows, k, ROWS=tile, GROUP=size,
                                               num_warps=4)
    return y
