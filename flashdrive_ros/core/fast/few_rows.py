"""
Products of few rows of activations, which take as long as reading the weights does.

One kernel with what stands before and behind a projection: the RMS norm of its
input (rows are scaled when they are summed, for the factor is known only then),
SwiGLU or the residual sum.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_ROWS = 64


class Tile(NamedTuple):
    """Outputs and inputs of a tile, warps, stages."""

    outputs: int
    inputs: int
    warps: int
    stages: int


@triton.jit
def _project(x, norm, weights, weight_scale, residual, out, rows, outputs, inputs, eps,
             ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, NORM: tl.constexpr,
             SWIGLU: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr):
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    m, k = tl.arange(0, ROWS), tl.arange(0, INPUTS)
    n_inside, m_inside = n < outputs, m < rows
    at = weights + n.to(tl.int64)[:, None] * inputs + k[None, :]
    x_at = x + m[:, None] * inputs + k[None, :]
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    ups = tl.zeros((OUTPUTS, ROWS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, inputs, INPUTS):
        inside = (k + start < inputs)[None, :]
        w = tl.load(at + start, mask=n_inside[:, None] & inside, other=0.0)
        a = tl.load(x_at + start, mask=m_inside[:, None] & inside, other=0.0)
        if NORM:
            value = a.to(tl.float32)
            squares += tl.sum(value * value, 1)
            factor = tl.load(norm + k + start, mask=k + start < inputs, other=0.0)
            a = (value * factor.to(tl.float32)[None, :]).to(a.dtype)
        sums = tl.dot(w.to(a.dtype), tl.trans(a), sums, input_precision='ieee')
        if SWIGLU:
            w = tl.load(at + start + outputs.to(tl.int64) * inputs,
                        mask=n_inside[:, None] & inside, other=0.0)
            ups = tl.dot(w.to(a.dtype), tl.trans(a), ups, input_precision='ieee')
    if NORM:
        scale = tl.rsqrt(squares / inputs + eps)
        sums, ups = sums * scale[None, :], ups * scale[None, :]
    if SCALED:
        sums *= tl.load(weight_scale + n, mask=n_inside, other=0.0)[:, None]
        if SWIGLU:
            ups *= tl.load(weight_scale + outputs + n, mask=n_inside, other=0.0)[:, None]
    if SWIGLU:
        sums = sums / (1.0 + tl.exp(-sums)) * ups
    place = m[None, :] * outputs + n[:, None]
    mask = m_inside[None, :] & n_inside[:, None]
    if ADD:
        sums += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=mask)


def tile_of(rows: int, outputs: int, inputs: int) -> Tile:
    """Tile for a projection's sizes."""
    return Tile(64, 128, 4, 4)


def _run(x: Tensor, weights: Tensor, outputs: int, norm: Tensor | None = None, eps: float = 0.0,
         residual: Tensor | None = None, scale: Tensor | None = None,
         tile: Tile | None = None) -> Tensor:
    rows, inputs = x.shape
    tile = tile or tile_of(rows, outputs, inputs)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    _project[triton.cdiv(outputs, tile.outputs),](
        x, norm, weights, scale, residual, out, rows, outputs, inputs, eps,
        ROWS=max(triton.next_power_of_2(rows), 16), OUTPUTS=tile.outputs, INPUTS=tile.inputs,
        NORM=norm is not None, SWIGLU=len(weights) == 2 * outputs, ADD=residual is not None,
        SCALED=scale is not None, num_warps=tile.warps,
        num_stages=tile.stages)
    return out


def norm_linear(x: Tensor, norm: Tensor, eps: float, weights: Tensor) -> Tensor:
    """RMS norm of `x` [m, k] times `weights` [n, k]: [m, n]."""
    return _run(x, weights, len(weights), norm, eps)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, weights: Tensor) -> Tensor:
    """SwiGLU of the RMS norm of `x` [m, k] and gate|up `weights` [2 n, k]: [m, n]."""
    return _run(x, weights, len(weights) // 2, norm, eps)


def linear_add(x: Tensor, weights: Tensor, residual: Tensor) -> Tensor:
    """Sum of `residual` [m, n] and `x` [m, k] times `weights` [n, k]."""
    return _run(x, weights, len(weights), residual=residual)
