"""Activations in 8 bits: one scale a row (token), chosen where the row is."""
from __future__ import annotations

import torch
from torch import Tensor

from .products import Activation

FP8 = torch.float8_e4m3fn
INT8 = torch.int8
LARGEST = {FP8: 448.0, INT8: 127.0}
"""Largest magnitude of each 8-bit type."""
_SMALLEST = 1e-12


def quantize_rows(x: Tensor, dtype: torch.dtype) -> Activation:
    """
    Quantise `x` [m, k] to `dtype` (`FP8` or `INT8`) with one scale a row.

    Saturates: a plain conversion to e4m3 turns what is above 448 into NaN.
    """
    values, scale = quantize_to(x, dtype)
    return Activation(values, scale)


def quantize_to(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values of `x` [n, k] in `dtype`, and the float32 scales [n] of their rows."""
    x = x.float()
    largest = LARGEST[dtype]
    scale = x.abs().amax(-1).clamp_min(_SMALLEST) / largest
    values = (x / scale[:, None]).clamp(-largest, largest)
    return (values.round() if dtype == INT8 else values).to(dtype), scale


def restored(x: Activation) -> Tensor:
    """The float32 numbers [m, k] that `x` stands for."""
    values = x.values.float()
    return values if x.row_scale is None else values * x.row_scale[:, None]
