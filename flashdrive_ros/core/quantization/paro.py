"""
ParoQuant checkpoints (`<name>-PARO`): 4-bit weights behind rotations.

Each quantised linear has its rotation (theta, pairs, channel_scales) and its weights, packed
as AWQ packs them or as the Marlin kernel for 8-bit activations reads them (spec
`alpamayo.md` sections 12 and 16).  The layout is told by the shape of `qweight`.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..config import CheckpointError
from .int4 import GROUP, Int4Matrix, Int4Weights
from .rotations import RotatedMatrix, Rotation

_KEY = re.compile(r'(?P<linear>.+?)(?:\.rotate_linear\.(?:rotation|qlinear))?\.'
                  r'(?P<tensor>theta|pairs|channel_scales|qweight|qzeros|scales|g_idx|'
                  r'g_idx_sort_indices|workspace|input_global_scale)')
NEEDED = ('theta', 'pairs', 'channel_scales', 'qweight', 'qzeros', 'scales')
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BYTE_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibbles of a Marlin word for 8-bit activations: the low ones of its bytes come first."""


def split_key(key: str) -> tuple[str, str] | None:
    """Name of the linear and of its tensor; None when `key` is of no quantised linear."""
    match = _KEY.fullmatch(key)
    return (match['linear'], match['tensor']) if match else None


def is_paro(keys: Iterable[str]) -> bool:
    """Whether a checkpoint with these keys is one of ParoQuant."""
    return any(key.endswith('.theta') and split_key(key) for key in keys)


def read_linear(name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int],
                activations: torch.dtype | None) -> RotatedMatrix:
    """
    One linear of `shape` (outputs n, inputs k) out of its stored `tensors` (see `NEEDED`).

    Raises `CheckpointError` naming the key, what was found and what was expected.
    """
    n, k = shape
    missing = [tensor for tensor in NEEDED if tensor not in tensors]
    if missing:
        raise CheckpointError(f'{name} lacks {", ".join(missing)}')
    if k % GROUP or n % 64:
        raise CheckpointError(f'{name} [{n}, {k}] is no multiple of 64 x {GROUP}')
    sets = len(tensors['theta'])
    _expect(name, tensors, {
        'theta': [(sets, k // 2)], 'pairs': [(sets, k)], 'channel_scales': [(1, k), (k,)],
        'qweight': [(k, n // 8), (k // 16, 2 * n)], 'qzeros': [(k // GROUP, n // 8)],
        'scales': [(k // GROUP, n)]})
    low, high = int(tensors['pairs'].min()), int(tensors['pairs'].max())
    if low < 0 or high >= GROUP:
        raise CheckpointError(f'{name}.pairs holds {low if low < 0 else high}, expected channels '
                              f'from 0 to {GROUP - 1}')
    unpack = _from_awq if len(tensors['qweight']) == k else _from_marlin
    rotation = Rotation.of_pairs(*(tensors[t] for t in ('theta', 'pairs', 'channel_scales')))
    return RotatedMatrix(rotation, Int4Matrix.of(unpack(tensors, n, k), k, activations))


def _expect(name: str, tensors: Mapping[str, Tensor], shapes: Mapping[str, list]) -> None:
    for tensor, allowed in shapes.items():
        found = tuple(tensors[tensor].shape)
        if found not in allowed:
            expected = ' or '.join(str(list(shape)) for shape in allowed)
            raise CheckpointError(f'{name}.{tensor} is {list(found)}, expected {expected}')


def nibbles(words: Tensor) -> Tensor:
    """The eight 4-bit numbers of int32 words [..., m], lowest first: uint8 [..., 8m]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & 15).to(torch.uint8).flatten(-2)


def _from_awq(tensors: Mapping[str, Tensor], n: int, k: int) -> Int4Weights:
    """`qweight` [k, n/8], `qzeros` [k/128, n/8], `scales` [k/128, n]."""
    codes, zeros = (_reordered(nibbles(tensors[t]), _inverse(_AWQ_ORDER))
                    for t in ('qweight', 'qzeros'))
    return Int4Weights(codes.T.contiguous(), tensors['scales'].half().T.contiguous(),
                       zeros.T.contiguous())


def _from_marlin(tensors: Mapping[str, Tensor], n: int, k: int) -> Int4Weights:
    """
    Marlin's fragments for 8-bit activations: tiles of 32 inputs x 16 outputs.

    Group scales are 16-bit integers in the fp16 container, times `input_global_scale`
    (plain fp16 where that is missing).
    """
    order = torch.tensor(marlin_weight_order(), device=tensors['qweight'].device)
    codes = nibbles(tensors['qweight']).view(-1, len(order))
    codes = torch.empty_like(codes).index_copy_(1, order, codes)
    codes = codes.view(k // 32, n // 16, 32, 16).permute(1, 3, 0, 2).reshape(n, k)
    scales = _reordered(tensors['scales'], _inverse(marlin_scale_order()))
    unit = tensors.get('input_global_scale')
    if unit is not None and unit.numel():
        scales = scales.view(torch.int16).float() * unit.float().flatten()[0]
    zeros = _reordered(nibbles(tensors['qzeros']), _inverse(marlin_zero_order()))
    return Int4Weights(codes.contiguous(), scales.half().T.contiguous(), zeros.T.contiguous())


def marlin_weight_order() -> list[int]:
    """Which number of two tiles (32 x 16, row by row) each nibble of 32 lanes holds."""
    order = []
    for lane in range(32):
        column, quarter = lane // 4, lane % 4
        rows = [4 * (quarter + 4 * half) + i for half in range(2) for i in range(4)]
        one = [16 * row + column + 8 * block for block in range(2) for row in rows]
        order += one + [512 + place for place in one]
    return [order[8 * (i // 8) + _BYTE_ORDER[i % 8]] for i in range(len(order))]


def marlin_scale_order() -> list[int]:
    """Which of 32 outputs each stored scale belongs to."""
    return [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]


def marlin_zero_order() -> list[int]:
    """Which of 64 outputs each stored zero point belongs to."""
    return [i + 8 * j for i in range(8) for j in range(8)]


def _reordered(values: Tensor, order: list[int]) -> Tensor:
    """Take the last axis, in pieces of the order's length, in that order."""
    pieces = values.unflatten(-1, (-1, len(order)))
    return pieces[..., torch.tensor(order, device=values.device)].flatten(-2)


def _inverse(order) -> list[int]:
    return sorted(range(len(order)), key=lambda i: order[i])
