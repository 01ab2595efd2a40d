"""
What goes into a matrix product, and what comes out of it.

Scales are not applied by the product itself: whatever reads it next (a norm,
SiLU, the residual) multiplies them in, which costs nothing there.
"""
from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Activation(NamedTuple):
    """`values` [m, k]; with a `row_scale` [m] (float32) they are 8-bit, else plain."""

    values: Tensor
    row_scale: Tensor | None = None


class Product(NamedTuple):
    """
    `values` [m, n], to be multiplied by `row_scale` [m] and `column_scale` [n] (float32).

    None stands for 1.
    """

    values: Tensor
    row_scale: Tensor | None = None
    column_scale: Tensor | None = None

    def apply(self) -> Tensor:
        """Multiply the scales in; [m, n] in the dtype of `values`."""
        result = self.values.float()
        if self.row_scale is not None:
            result = result * self.row_scale[:, None]
        if self.column_scale is not None:
            result = result * self.column_scale
        return result.to(self.values.dtype)
