"""
Weights in 4 bits: asymmetric, one scale and one zero point a group of 128 input channels.

Kept two to a byte with the lower channel in the lower bits, whole groups to a row:
an input size that is no multiple of 128 is padded with channels that stand for 0.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import int4_kernels
from .matrices import Matrix
from .products import Activation, Product

GROUP = 128
HIGHEST = 15
"""Largest code of 4 bits."""
_SMALLEST_SCALE = 2.0 ** -24


class Int4Weights(NamedTuple):
    """`codes` [n, groups x 128] and `zero` [n, groups] in uint8, `scale` [n, groups] in fp16."""

    codes: Tensor
    scale: Tensor
    zero: Tensor

    def dequantized(self) -> Tensor:
        """(codes - zero) x scale [n, groups x 128] in float32."""
        groups = self.codes.view(len(self.codes), -1, GROUP).float()
        return ((groups - self.zero[..., None].float()) * self.scale[..., None].float()).flatten(1)


def padded(columns: int) -> int:
    """Input channels with those that fill up the last group."""
    return -(-columns // GROUP) * GROUP


def quantize_int4(weight: Tensor) -> Int4Weights:
    """Round plain weights [n, k] to the nearest code; each group's range includes 0."""
    groups = _in_groups(weight.float())
    low = groups.amin(-1).clamp_max(0)
    high = groups.amax(-1).clamp_min(0)
    scale = ((high - low) / HIGHEST).clamp_min(_SMALLEST_SCALE).half()
    step = scale.float()
    zero = (-low / step).round().clamp(0, HIGHEST)
    codes = ((groups / step[..., None]).round() + zero[..., None]).clamp(0, HIGHEST)
    return Int4Weights(codes.to(torch.uint8).flatten(1), scale, zero.to(torch.uint8))


def _in_groups(weight: Tensor) -> Tensor:
    """[n, groups, 128], padded with 0."""
    n, k = weight.shape
    if k % GROUP:
        weight = torch.nn.functional.pad(weight, (0, padded(k) - k))
    return weight.view(n, -1, GROUP)


def pack(codes: Tensor) -> Tensor:
    """Two codes [..., 2m] to a byte [..., m]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """Invert `pack`."""
    return torch.stack((packed & HIGHEST, packed >> 4), -1).flatten(-2)


class Int4Matrix(Matrix):
    """
    Weights of 4 bits; products of up to 16 rows read them as they are.

    With more rows they are made plain, or 8-bit numbers as the `activations`, in a
    buffer that all matrices share.  Where the kernel does not run (a CPU), all
    products take `activations`.
    """

    def __init__(self, rows: int, columns: int, activations: torch.dtype | None, device=None):
        super().__init__(rows, columns)
        self.activations = activations
        groups = padded(columns) // GROUP
        self.register_buffer('qweight', torch.zeros(
            rows, groups * GROUP // 2, dtype=torch.uint8, device=device))
        self.register_buffer('scales', torch.ones(
            rows, groups, dtype=torch.float16, device=device))
        self.register_buffer('qzeros', torch.zeros(
            rows, groups, dtype=torch.uint8, device=device))
        self.kernel: int4_kernels.Kernel | None = None

    @classmethod
    def quantized(cls, weight: Tensor, activations: torch.dtype | None) -> Int4Matrix:
        """Quantise plain weights [n, k]."""
        return cls.of(quantize_int4(weight), weight.shape[1], activations)

    @classmethod
    def of(cls, weights: Int4Weights, columns: int, activations: torch.dtype | None) -> Int4Matrix:
        """Keep weights that are quantised; of their channels, `columns` are no padding."""
        matrix = cls(len(weights.codes), columns, activations, device='meta')
        matrix.qweight, matrix.scales, matrix.qzeros = (
            pack(weights.codes), weights.scale, weights.zero)
        return matrix

    def weights(self) -> Int4Weights:
        """Codes, scales and zeros; not after `seal` on a GPU, which keeps them otherwise."""
        return Int4Weights(unpack(self.qweight), self.scales, self.qzeros)

    def dequantized(self) -> Tensor:
        """Return the float32 weights [n, k] that are stood for."""
        if self.kernel is not None:
            return self.kernel.dequantized().float()
        return self.weights().dequantized()[:, :self.k]

    def activation_type(self, rows: int) -> torch.dtype | None:
        """8-bit type of the activations that a product of `rows` rows reads; None: plain."""
        few = self.kernel is not None and rows <= int4_kernels.MOST_ROWS
        return None if few else self.activations

    def seal(self) -> None:
        """Hand the weights to the kernels of their device, where they fit."""
        if self.qweight.is_cuda and int4_kernels.fits(self.n, self.k):
            self.kernel = int4_kernels.Kernel(self.weights(), self.k, self.activations)
            self.qweight = self.scales = self.qzeros = None

    def forward(self, x: Activation) -> Product:
        """Multiply activations [m, k]: a product [m, n]."""
        if self.kernel is None:
            return self.reference(x)
        if self.activation_type(len(x.values)) is None:
            return Product(self.kernel.multiply(x.values))
        return Product(self.kernel.multiply_8bit(x.values), x.row_scale, self.kernel.row_scale)
