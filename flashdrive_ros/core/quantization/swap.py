"""
Low-bit projections in the place of plain ones, and back.

The decoder's projections are replaced where they stand; heads, embeddings, the vision
tower and what the configuration keeps high stay as they are.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from ..config import CheckpointError, EngineConfig
from .activations import FP8, INT8
from .int4 import Int4Matrix
from .linear import QuantLinear
from .matrices import Fp8Matrix, Matrix

KINDS = ('fp8', 'w4a8', 'w4a16')
HIGH = ('language_model.layers.16.mlp.down_proj',)
"""Where the public models have their massive activations (spec `alpamayo.md` section 15)."""
PROJECTIONS = ('self_attn.qkv_proj', 'self_attn.o_proj', 'mlp.gate_up_proj', 'mlp.down_proj')


@dataclass(frozen=True)
class QuantizationConfig:
    """
    What is quantised, and how.

    kind    'fp8': weights e4m3 with a scale an output channel, activations e4m3 with a
            scale a token; 'w4a8': 4-bit weights in groups of 128, 8-bit activations (e4m3
            where the device has it, else int8); 'w4a16': 4-bit weights, plain activations
    expert  the action expert too, not the language model alone
    high    names of projections that stay plain; `*` stands for anything
    """

    kind: str
    expert: bool = False
    high: tuple[str, ...] = HIGH

    def __post_init__(self):
        """Refuse what is no kind."""
        if self.kind not in KINDS:
            raise CheckpointError(f'quantization is {self.kind!r}, expected one of {KINDS}')


def asked_for(config: EngineConfig) -> QuantizationConfig | None:
    """What the settings of an engine quantise; None: nothing."""
    if config.quantization == 'none':
        return None
    return QuantizationConfig(config.quantization, config.quantize_expert)


def target_names(model: nn.Module, config: QuantizationConfig) -> Iterator[str]:
    """Names of the projections that `config` quantises."""
    for decoder in ('language_model', *['expert'] * config.expert):
        for layer in range(len(model.get_submodule(decoder).layers)):
            for projection in PROJECTIONS:
                name = f'{decoder}.layers.{layer}.{projection}'
                if not any(fnmatchcase(name, pattern) for pattern in config.high):
                    yield name


def quantize(model: nn.Module, config: QuantizationConfig) -> dict[str, nn.Module]:
    """
    Replace the projections of `model` that `config` names; returns what stood there.

    Those that are quantised already stay.  Whoever drops the returned modules frees
    their memory; `restore` puts them back.
    """
    device = model.device
    originals = {}
    for name in list(target_names(model, config)):
        linear = model.get_submodule(name)
        if not isinstance(linear, QuantLinear):
            matrix = quantized(linear.weight.to(device), config.kind)
            originals[name] = replace(model, name, QuantLinear(matrix))
    return originals


def restore(model: nn.Module, originals: dict[str, nn.Module]) -> None:
    """Undo `quantize`."""
    for name, module in originals.items():
        model.set_submodule(name, module)


def replace(model: nn.Module, name: str, module: QuantLinear) -> nn.Module:
    """Put a projection in the place `name`, sealed; returns what stood there."""
    original = model.get_submodule(name)
    model.set_submodule(name, module)
    module.matrix.seal()
    return original


def empty(rows: int, columns: int, kind: str, device: torch.device) -> Matrix:
    """Weights [rows, columns] of a kind without any memory, for `device` later."""
    if kind == 'fp8':
        return Fp8Matrix(rows, columns, device='meta')
    return Int4Matrix(rows, columns, activation_dtype(kind, device), device='meta')


@torch.no_grad()
def quantized(weight: Tensor, kind: str) -> Matrix:
    """Plain weights [n, k] in the number type of `kind`."""
    if kind == 'fp8':
        return Fp8Matrix.quantized(weight)
    return Int4Matrix.quantized(weight, activation_dtype(kind, weight.device))


def activation_dtype(kind: str, device: torch.device) -> torch.dtype | None:
    """Type of the activations of `kind` on a device."""
    if kind == 'w4a16':
        return None
    return FP8 if has_fp8(device) else INT8


def check_device(kind: str, device: torch.device) -> None:
    """Refuse a device that can't multiply numbers of `kind`."""
    if device.type != 'cuda':
        return
    least = (8, 9) if kind == 'fp8' else (8, 0)
    found = torch.cuda.get_device_capability(device)
    if found < least:
        instead = ": use 'w4a16'" if found >= (8, 0) else ''
        raise CheckpointError(
            f'quantization {kind!r} needs compute capability {least[0]}.{least[1]}, '
            f'{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}{instead}')


def has_fp8(device: torch.device) -> bool:
    """Whether a device multiplies e4m3 numbers; a CPU emulates that."""
    return device.type != 'cuda' or torch.cuda.get_device_capability(device) >= (8, 9)
