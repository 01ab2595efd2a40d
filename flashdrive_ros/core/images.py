"""
Image preparation identical to the released one: resize rule, bicubic, normalise, patches.

Works on any device; the CPU path is the oracle (spec `alpamayo.md` section 3).
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import PromptConfig, VisionConfig
from .types import InputError

MAX_ASPECT = 200


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
    """Bicubic with antialiasing, uint8 [n, 3, h, w] in and out (rounded, clamped)."""
    if images.shape[-2:] == (height, width):
        return images
    resized = F.interpolate(images.float(), (height, width), mode='bicubic', antialias=True,
                            align_corners=False)
    return resized.round().clamp(0, 255).to(torch.uint8)


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
