"""
Rotations of the input channels that make weights easier to round, and matrices behind them.

ParoQuant scales each channel, then turns pairs of channels inside groups of 128, eight
times (spec `alpamayo.md` section 12).  All of that is linear and stays inside a group, so
one dense 128 x 128 block a group does it at once (spec `low_bit_kernels.md` section 6).
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .activations import restored
from .int4 import GROUP
from .matrices import Matrix
from .products import Activation, Product

LARGEST_SCALE = 512.0
"""Checkpoints hold channel scales that overflowed; whoever made them runs with this bound."""


class Rotation(nn.Module):
    """`blocks` [groups, 128, 128]: channels of a group, a row vector, times its block."""

    def __init__(self, blocks: Tensor):
        super().__init__()
        self.register_buffer('blocks', blocks)

    @classmethod
    def of_pairs(cls, theta: Tensor, pairs: Tensor, channel_scales: Tensor) -> Rotation:
        """
        Collapse sets of Givens rotations, which follow the scaling of the channels.

        `theta` [sets, k/2], `pairs` [sets, k] (channels within the group, two that belong
        together side by side), `channel_scales` [k].  A pair (a, b) becomes
        (a cos + b sin, b cos - a sin).
        """
        sets, k = pairs.shape
        groups = k // GROUP
        scales = channel_scales.flatten().double().nan_to_num(posinf=LARGEST_SCALE)
        blocks = torch.diag_embed(scales.clamp(-LARGEST_SCALE, LARGEST_SCALE).view(groups, GROUP))
        angles = theta.double().view(sets, groups, 1, GROUP // 2)
        channels = pairs.long().view(sets, groups, 1, GROUP // 2, 2)
        for angle, pair in zip(angles, channels):
            first, second = (i.expand(groups, GROUP, -1) for i in pair.unbind(-1))
            a, b = blocks.gather(2, first), blocks.gather(2, second)
            cos, sin = angle.cos(), angle.sin()
            blocks = blocks.scatter(2, first, a * cos + b * sin)
            blocks = blocks.scatter(2, second, b * cos - a * sin)
        return cls(blocks.float())

    def forward(self, x: Tensor) -> Tensor:
        """Rotate rows [m, k]; the same dtype."""
        blocks = self.blocks
        if x.is_cuda and x.dtype == blocks.dtype:
            from .rotation_kernel import rotate
            return rotate(x, blocks)
        groups = x.unflatten(1, (len(blocks), GROUP)).transpose(0, 1).to(blocks.dtype)
        return torch.bmm(groups, blocks).transpose(0, 1).flatten(1).to(x.dtype)


class RotatedMatrix(Matrix):
    """Takes plain activations, rotates them, and hands them to the matrix inside."""

    def __init__(self, rotation: Rotation, inner: Matrix):
        super().__init__(inner.n, inner.k)
        self.rotation, self.inner = rotation, inner

    def dequantized(self) -> Tensor:
        """Weights [n, k] for activations that are not rotated, in float32."""
        blocks = self.rotation.blocks.float()
        groups = self.inner.dequantized().unflatten(1, (len(blocks), GROUP))
        return torch.einsum('ngj,gij->ngi', groups, blocks).flatten(1)

    def seal(self) -> None:
        """Hand the weights to the kernels of their device, where they fit."""
        blocks = self.rotation.blocks
        if blocks.is_cuda:
            self.rotation.blocks = blocks.bfloat16()
        self.inner.seal()

    def forward(self, x: Activation) -> Product:
        """Multiply plain activations [m, k]: a product [m, n]."""
        return self.inner(self.inner.activate(self.rotation(restored_plain(x))))


class StackedMatrix(Matrix):
    """Matrices of one input above each other, such as q, k and v with rotations of their own."""

    def __init__(self, parts: Sequence[Matrix]):
        super().__init__(sum(part.n for part in parts), parts[0].k)
        self.parts = nn.ModuleList(parts)

    def dequantized(self) -> Tensor:
        """Return the float32 weights [n, k] that are stood for."""
        return torch.cat([part.dequantized() for part in self.parts])

    def seal(self) -> None:
        """Hand the weights to the kernels of their device, where they fit."""
        for part in self.parts:
            part.seal()

    def forward(self, x: Activation) -> Product:
        """Multiply plain activations [m, k]: a product [m, n] whose scales are multiplied in."""
        x = restored_plain(x)
        return Product(torch.cat([part(part.activate(x)).apply() for part in self.parts], 1))


def restored_plain(x: Activation) -> Tensor:
    """Plain numbers of an activation."""
    return x.values if x.row_scale is None else restored(x)
