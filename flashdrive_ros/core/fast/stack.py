"""A decoder's layers out of fused operations; the weights are the decoder's own."""
from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder import Attention, Decoder, DecoderLayer, TapList
from ..quantization.linear import QuantLinear
from ..quantization.products import Activation, Product
from .reference import Ahead, HeadNorms

Attend = Callable[[int, Product, HeadNorms, int, Ahead | None], Tensor]
"""
(layer, q|k|v [n, .], head norms, m, what is multiplied with next) -> [m, heads * d] of the
last m tokens; their keys are stored.
"""
FEW_ROWS = 512
"""With more rows, reading the weights is not what a product waits for."""


def multiply(linear: nn.Module, activation: Activation) -> Product:
    """Product of a projection, quantised or not, with activations as it reads them or plain."""
    if not isinstance(linear, QuantLinear):
        return Product(F.linear(activation.values, linear.weight))
    if activation.row_scale is None:
        activation = linear.matrix.activate(activation.values)
    return linear.matrix(activation)


def weights_of(linear: nn.Module) -> Tensor | None:
    """Where the weights of a projection lie, if they are one tensor."""
    holder = linear.matrix if isinstance(linear, QuantLinear) else linear
    return getattr(holder, 'weight', None)


def takes_fp8(linear: nn.Module, rows: int) -> bool:
    """Say whether `linear` multiplies so many rows of activations as e4m3."""
    return (isinstance(linear, QuantLinear)
            and linear.matrix.activation_type(rows) == torch.float8_e4m3fn)


def head_norms(attention: Attention) -> HeadNorms:
    """Norms of a layer's queries and keys."""
    return HeadNorms(attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.eps)


class Stack:
    """
    Computes what a `Decoder` does, for rows of tokens without a batch axis.

    `operations` is the module `reference` or `kernels`.
    """

    def __init__(self, decoder: Decoder, operations: ModuleType):
        self.decoder, self.ops = decoder, operations

    def __call__(self, x: Tensor, attend: Attend, deepstack: Tensor | None = None,
                 image_rows: Tensor | None = None, taps: TapList | None = None,
                 last: int | None = None) -> Tensor:
        """
        Final hidden states (normed) of the `last` tokens of `x` [n, hidden]; None: all.

        The last layer computes only these.  `deepstack`, `image_rows` and `taps`
        are as in `Decoder.forward`; the final tap too holds only the `last`.
        """
        product, layers = None, self.decoder.layers
        for index, layer in enumerate(layers):
            sees_images = deepstack is not None and index < len(deepstack)
            cut = index == len(layers) - 1 and not sees_images
            x, product = self.layer(layer, index, x, product, attend, taps, last if cut else None)
            if sees_images:
                x = x.index_add(0, image_rows, deepstack[index].to(x.dtype))
        norm = self.decoder.norm
        x, normed = self.ops.add_norm(x, product, norm.weight, norm.eps)
        if taps is not None:
            taps.append(x[None])
        return normed.values if last is None else normed.values[-last:]

    def layer(self, layer: DecoderLayer, index: int, x: Tensor, product: Product | None,
              attend: Attend, taps: TapList | None, last: int | None) -> tuple[Tensor, Product]:
        """Residual stream and what is still to be added to it, behind one layer."""
        ops, attention, mlp = self.ops, layer.self_attn, layer.mlp
        norm = layer.input_layernorm
        x, normed = ops.add_norm(x, product, norm.weight, norm.eps,
                                 takes_fp8(attention.qkv_proj, len(x)),
                                 self._ahead(x, attention.qkv_proj))
        if taps is not None:
            taps.append(x[None])
        last = len(x) if last is None else last
        heads = attend(index, multiply(attention.qkv_proj, normed), head_norms(attention), last,
                       self._ahead(x, attention.o_proj, mlp.gate_up_proj))
        merged = ops.quantise(heads) if takes_fp8(attention.o_proj, last) else Activation(heads)
        product = multiply(attention.o_proj, merged)
        norm = layer.post_attention_layernorm
        x, normed = ops.add_norm(x[-last:], product, norm.weight, norm.eps,
                                 takes_fp8(mlp.gate_up_proj, last),
                                 self._ahead(x, mlp.gate_up_proj))
        gated = ops.silu_mul(multiply(mlp.gate_up_proj, normed), takes_fp8(mlp.down_proj, last),
                             self._ahead(x, mlp.down_proj))
        return x, multiply(mlp.down_proj, gated)

    def _ahead(self, x: Tensor, *linears: nn.Module) -> Ahead | None:
        """Weights to fetch before they are needed, where it is these that take the time."""
        return Ahead(*map(weights_of, linears)) if len(x) <= FEW_ROWS else None
