"""
Image preparation identical to the released one: resize rule, bicubic, normalise, patches.

Works on any device; the CPU path is the oracle (spec `alpamayo.md` section 3).
"""
from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import PromptConfig, VisionConfig
from .types import MAX_ASPECT, InputError


def smart_resize(height: int, width: int, factor: int, min_pixels: int,
                 max_pixels: int) -> tuple[int, int]:
    """
    Size to resize to: multiples of `factor`, area within the limits, aspect kept.

    Qwen's rule (round half to even); raises `InputError` for an aspect ratio above 200.
    """
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise InputError(f'image {width}x{height} has an aspect ratio above {MAX_ASPECT}')
    h, w = round(height / factor) * factor, round(width / factor) * factor
    if h * w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        h = max(factor, math.floor(height / beta / factor) * factor)
        w = max(factor, math.floor(width / beta / factor) * factor)
    elif h * w < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        h = math.ceil(height * beta / factor) * factor
        w = math.ceil(width * beta / factor) * factor
    return h, w


def patch_grid(height: int, width: int, vision: VisionConfig,
               prompt: PromptConfig) -> tuple[int, int]:
    """Rows and columns of patches that an image of this size becomes."""
    factor = vision.patch_size * vision.spatial_merge_size
    h, w = smart_resize(height, width, factor, prompt.min_pixels, prompt.max_pixels)
    return h // vision.patch_size, w // vision.patch_size


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """
    Bicubic with antialiasing, uint8 [n, 3, h, w] in and out.

    The CPU's own kernel is the released one.  Elsewhere its fixed-point
    arithmetic is repeated with matrix products.
    """
    if images.shape[-2:] == (height, width):
        return images
    if images.device.type == 'cpu':
        return F.interpolate(images, (height, width), mode='bicubic', antialias=True,
                             align_corners=False)
    return resize_by_products(images, height, width)


def resize_by_products(images: Tensor, height: int, width: int) -> Tensor:
    """`resize` on any device: columns first, rounded to uint8, then rows."""
    for axis, size in ((-1, width), (-2, height)):
        if images.shape[axis] != size:
            weights, bits = fixed_point_weights(images.shape[axis], size, images.device)
            sums = weights @ images.float() if axis == -2 else images.float() @ weights.mT
            images = ((sums + 2 ** (bits - 1)) / 2 ** bits).floor().clamp(0, 255)
    return images.to(torch.uint8)


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # kept ones may meet autograd
def fixed_point_weights(size_in: int, size_out: int,
                         device: torch.device) -> tuple[Tensor, int]:
    """Integer resampling weights [size_out, size_in] in float32, times 2 ** bits."""
    scale = size_in / size_out
    stretch = max(scale, 1.0)
    weights = torch.zeros(size_out, size_in, dtype=torch.float64)
    for i in range(size_out):
        centre, support = scale * (i + 0.5), 2 * stretch
        first = max(int(centre - support + 0.5), 0)
        end = min(int(centre + support + 0.5), size_in)
        x = (torch.arange(first, end, dtype=torch.float64) - centre + 0.5) / stretch
        row = _cubic(x.abs())
        weights[i, first:end] = row / row.sum()
    largest = float(weights.max())
    bits = next((b for b in range(22) if int(0.5 + largest * 2 ** (b + 1)) >= 2 ** 15), 22)
    scaled = weights * 2 ** bits
    return (scaled + 0.5 * scaled.sign()).trunc().float().to(device), bits


def _cubic(x: Tensor) -> Tensor:
    """Cubic convolution kernel, a = -0.5, at distances `x` >= 0."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def to_patches(images: Tensor, vision: VisionConfig) -> Tensor:
    """
    Patch rows of resized images: uint8 [n, 3, h, w] -> float32 [n, patches, patch_dim].

    Order within a row: channel, temporal slot (a still image is repeated), row,
    column; each merge group of patches is contiguous.
    """
    n, c, h, w = images.shape
    p, m = vision.patch_size, vision.spatial_merge_size
    rows, columns = h // p, w // p
    x = (images.float() - 127.5) / 127.5
    x = x.view(n, c, rows // m, m, p, columns // m, m, p)
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)  # n, row group, column group, row, column, c, y, x
    x = x.unsqueeze(6).expand(*x.shape[:6], vision.temporal_patch_size, p, p)
    return x.reshape(n, rows * columns, vision.patch_dim)


def prepare(images: Tensor, vision: VisionConfig,
            prompt: PromptConfig) -> tuple[Tensor, tuple[int, int]]:
    """Raw RGB uint8 [n, 3, H, W] -> patch rows and their (rows, columns) grid."""
    rows, columns = grid = patch_grid(images.shape[-2], images.shape[-1], vision, prompt)
    resized = resize(images, rows * vision.patch_size, columns * vision.patch_size)
    return to_patches(resized, vision), grid
