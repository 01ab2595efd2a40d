"""
Weights of a projection in the number type that they are kept in, and their product.

Every kind is called alike: `matrix(activation) -> Product`.  A caller that fuses
the quantisation of activations into the kernel before asks `activation_type(rows)`
for what the product reads; others call `matrix.activate(x)`.  The CUDA kernels
need certain sizes; elsewhere, and as the oracle of the kernels, the product is one of
float32 numbers with the same weights and the same quantised activations.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from .activations import FP8, quantize_rows, quantize_to, restored
from .products import Activation, Product


class Matrix(nn.Module):
    """Weights [n, k]: what all kinds have in common."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.n, self.k = rows, columns

    def activation_type(self, rows: int) -> torch.dtype | None:
        """8-bit type of the activations that a product of that many rows reads; None: plain."""
        return None

    def activate(self, x: Tensor) -> Activation:
        """Plain `x` [m, k] as this matrix reads it."""
        dtype = self.activation_type(len(x))
        return Activation(x) if dtype is None else quantize_rows(x, dtype)

    def dequantized(self) -> Tensor:
        """The float32 weights [n, k] that are stood for."""
        raise NotImplementedError

    def forward(self, x: Activation) -> Product:
        """Multiply activations [m, k]: a product [m, n] whose scales its reader applies."""
        raise NotImplementedError

    def reference(self, x: Activation) -> Product:
        """The same in float32: the oracle of the kernels, and what runs without them."""
        return Product(restored(x) @ self.dequantized().T)

    def seal(self) -> None:
        """Bring the weights into the order that the kernels of their device read; once."""


class PlainMatrix(Matrix):
    """Weights as they are; the parameter is shared, not copied."""

    def __init__(self, weight: Tensor):
        super().__init__(*weight.shape)
        self.weight = weight

    def dequantized(self) -> Tensor:
        """Return the float32 weights [n, k] that are stood for."""
        return self.weight.float()

    def forward(self, x: Activation) -> Product:
        """Multiply activations [m, k]: a product [m, n]."""
        return Product(x.values @ self.weight.T)


class Fp8Matrix(Matrix):
    """
    e4m3 with one scale an output channel, for e4m3 activations with one scale a token.

    The product itself runs with scale 1 (spec `low_bit_kernels.md` section 4).
    """

    def __init__(self, rows: int, columns: int, device=None):
        super().__init__(rows, columns)
        self.register_buffer('weight', torch.zeros(rows, columns, dtype=FP8, device=device))
        self.register_buffer('weight_scale', torch.ones(
            rows, dtype=torch.float32, device=device))
        self.one: Tensor | None = None

    @classmethod
    def quantized(cls, weight: Tensor) -> Fp8Matrix:
        """Quantise plain weights [n, k]."""
        matrix = cls(*weight.shape, device='meta')
        matrix.weight, matrix.weight_scale = quantize_to(weight, FP8)
        return matrix

    def activation_type(self, rows: int) -> torch.dtype:
        """8-bit type of the activations that a product of `rows` rows reads; None: plain."""
        return FP8

    def dequantized(self) -> Tensor:
        """Return the float32 weights [n, k] that are stood for."""
        return self.weight.float() * self.weight_scale[:, None]

    def seal(self) -> None:
        """Hand the weights to the kernels of their device, where they fit."""
        if self.weight.is_cuda and self.n % 16 == 0 and self.k % 16 == 0:
            self.one = torch.ones((), device=self.weight.device)

    def forward(self, x: Activation) -> Product:
        """Multiply activations [m, k]: a product [m, n]."""
        if self.one is None:
            values = x.values.float() @ self.weight.float().T
            return Product(values, x.row_scale, self.weight_scale)
        values = scaled_mm(x.values, self.weight, self.one)
        return Product(values, x.row_scale, self.weight_scale)


def scaled_mm(x: Tensor, weight: Tensor, one: Tensor) -> Tensor:
    """bf16 product [m, n] of e4m3 numbers [m, k] and [n, k] as they are."""
    return torch._scaled_mm(x, weight.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
