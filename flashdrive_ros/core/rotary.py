"""
Rotary positions: two axes in the vision tower, three interleaved axes in the decoder.

Both use the rotate-half convention: channel i is paired with channel i + d/2.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .config import DecoderConfig


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """
    Rotate `x` [..., d] by tables [..., d] of `rotary_tables`.

    The sign of the rotate-half convention is in the table.
    """
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def rotary_tables(angles: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [n, d] for `angles` [n, d / 2]."""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def decoder_rotary(positions: Tensor, config: DecoderConfig,
                   dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """
    Tables for interleaved three-axis positions.

    `positions` [3, n] (temporal, height, width) gives two tensors [n, head_dim].
    Frequency index i belongs to height when i % 3 == 1, to width when
    i % 3 == 2 (each up to 3 * section), else to time (spec `alpamayo.md`
    section 2).  Angles are computed in float32, then cast.
    """
    half = config.head_dim // 2
    index = torch.arange(half, device=positions.device)
    frequencies = 1.0 / config.rope_theta ** (index.float() / half)
    angles = positions.float()[..., None] * frequencies  # [3, n, half]
    mixed = angles[0].clone()
    for axis in (1, 2):
        owned = (index % 3 == axis) & (index < 3 * config.mrope_section[axis])
        mixed[:, owned] = angles[axis][:, owned]
    return rotary_tables(mixed, dtype)


def vision_rotary(rows: Tensor, columns: Tensor, head_dim: int,
                  theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Tables [n, head_dim] for patches at (`rows`, `columns`), each [n]."""
    count = head_dim // 4
    exponents = torch.arange(count, device=rows.device).float() / count
    frequencies = 1.0 / theta ** exponents
    angles = torch.cat((rows.float()[:, None] * frequencies,
                        columns.float()[:, None] * frequencies), -1)
    return rotary_tables(angles)
