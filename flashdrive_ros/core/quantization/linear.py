"""A quantised projection in the place of an `nn.Linear`."""
from __future__ import annotations

from torch import Tensor, nn

from .matrices import Matrix, PlainMatrix


class QuantLinear(nn.Module):
    """Calls its `matrix` as an `nn.Linear` without bias is called; keeps the dtype of `x`."""

    def __init__(self, matrix: Matrix):
        super().__init__()
        self.matrix = matrix
        self.in_features, self.out_features = matrix.k, matrix.n

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x` [..., k]: [..., n]."""
        product = self.matrix(self.matrix.activate(x.reshape(-1, x.shape[-1])))
        return product.apply().to(x.dtype).view(*x.shape[:-1], -1)


def matrix_of(linear: nn.Module) -> Matrix:
    """Weights of a projection, quantised or plain."""
    return linear.matrix if isinstance(linear, QuantLinear) else PlainMatrix(linear.weight)
