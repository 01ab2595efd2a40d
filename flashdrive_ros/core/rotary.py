"""
Rotary positions: two axes in the vision tower, three interleaved axes in the decoder.

Both use the rotate-half convention: channel i is paired with channel i + d/2.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .config import DecoderConfig


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [..., d] by angles given as `cos`, `sin` [..., d] (both halves equal)."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def decoder_rotary(positions: Tensor, config: DecoderConfig,
                   dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """
    Cosine and sine for interleaved three-axis positions.

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
    mixed = torch.cat((mixed, mixed), -1)
    return mixed.cos().to(dtype), mixed.sin().to(dtype)


def vision_rotary(rows: Tensor, columns: Tensor, head_dim: int,
                  theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine [n, head_dim] for patches at (`rows`, `columns`), each [n]."""
    count = head_dim // 4
    exponents = torch.arange(count, device=rows.device).float() / count
    frequencies = 1.0 / theta ** exponents
    angles = torch.cat((rows.float()[:, None] * frequencies,
                        columns.float()[:, None] * frequencies), -1)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()
