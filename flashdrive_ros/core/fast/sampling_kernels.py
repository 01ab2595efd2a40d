"""
Choice of tokens from logits without sorting them.

The nucleus is found as a threshold, four bits of the logit at a time: every pass
sums the probability of each of 16 digits, the next one knows from these in which
of them the threshold lies.  Equal logits at the threshold are kept in the order of
the vocabulary, as many as are needed.  Sums are in a fixed order: the same logits
give the same token.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Tokens that a program looks at."""


@triton.jit
def _load(logits, allowed, row, start, vocabulary, BLOCK: tl.constexpr):
    at = start + tl.arange(0, BLOCK)
    inside = at < vocabulary
    may = tl.load(allowed + at, mask=inside, other=0) != 0
    return tl.load(logits + row * vocabulary + at, mask=may, other=-float('inf')).to(tl.float32)


@triton.jit
def _largest(logits, allowed, part_max, part_index, vocabulary, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = _load(logits, allowed, row, block * BLOCK, vocabulary, BLOCK)
    at = block * BLOCK + tl.arange(0, BLOCK)
    largest = tl.max(x, 0)
    place = row * tl.num_programs(1) + block
    tl.store(part_max + place, largest)
    tl.store(part_index + place, tl.min(tl.where(x == largest, at, 2147483647), 0))


@triton.jit
def _first_largest(part_max, part_index, tokens, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCKS)
    values = tl.load(part_max + row * blocks + at, mask=at < blocks, other=-float('inf'))
    index = tl.load(part_index + row * blocks + at, mask=at < blocks, other=2147483647)
    best = tl.where(values == tl.max(values, 0), index, 2147483647)
    tl.store(tokens + row, tl.min(best, 0).to(tl.int64))


@triton.jit
def _weights(x, top, temperature):
    """Probabilities up to a factor, and the logits as integers of the same order."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0 is 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.exp((x - top) / temperature), (ordered ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def _top(part_max, row, blocks, BLOCKS: tl.constexpr):
    at = tl.arange(0, BLOCKS)
    return tl.max(tl.load(part_max + row * blocks + at, mask=at < blocks, other=-float('inf')), 0)


@triton.jit
def _narrow(part_mass, prefixes, masses, sampling, row, rows, blocks, level: tl.constexpr,
            BLOCKS: tl.constexpr, is_first):
    """
    Threshold's first `level` digits, and the mass above them, from the sums of the last pass.

    `masses` [level, rows, 2] holds the mass above and, at level 1, that of all.
    """
    at, digit = tl.arange(0, BLOCKS)[:, None], tl.arange(0, 16)
    place = ((level - 1) * rows + row) * blocks * 16
    mass = tl.sum(tl.load(part_mass + place + at * 16 + digit[None, :], mask=at < blocks,
                          other=0.0), 0)
    beyond = tl.sum(tl.where(digit[None, :] > digit[:, None], mass[None, :], 0.0), 1)
    before = ((level - 1) * rows + row) * 2
    if level == 1:
        prefix, above, total = tl.zeros((), tl.uint32), 0.0, tl.sum(mass, 0)
    else:
        prefix = tl.load(prefixes + (level - 1) * rows + row).to(tl.uint32, bitcast=True)
        above, total = tl.load(masses + before), tl.load(masses + before + 1)
    reached = (above + beyond + mass >= tl.load(sampling + 1) * total) & (mass > 0)
    chosen = tl.max(tl.where(reached, digit, -1), 0)
    lowest = tl.min(tl.where(mass > 0, digit, 15), 0)
    chosen = tl.where(chosen < 0, lowest, chosen)
    above += tl.sum(tl.where(digit == chosen, beyond, 0.0), 0)
    prefix = (prefix << 4) | chosen.to(tl.uint32)
    if is_first:
        after = (level * rows + row) * 2
        tl.store(prefixes + level * rows + row, prefix.to(tl.int32, bitcast=True))
        tl.store(masses + after, above)
        tl.store(masses + after + 1, total)
    return prefix, above, total


@triton.jit
def _mass_by_digit(logits, allowed, part_max, part_mass, prefixes, masses, sampling, rows,
                   vocabulary, blocks, level: tl.constexpr, BLOCK: tl.constexpr,
                   BLOCKS: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = _load(logits, allowed, row, block * BLOCK, vocabulary, BLOCK)
    weights, keys = _weights(x, _top(part_max, row, blocks, BLOCKS), tl.load(sampling))
    if level > 0:
        prefix, _, _ = _narrow(part_mass, prefixes, masses, sampling, row, rows, blocks, level,
                               BLOCKS, block == 0)
        weights = tl.where((keys >> (32 - 4 * level)) == prefix, weights, 0.0)
    digits = ((keys >> (28 - 4 * level)) & 15).to(tl.int32)
    place = part_mass + ((level * rows + row) * blocks + block) * 16
    for digit in tl.static_range(16):
        tl.store(place + digit, tl.sum(tl.where(digits == digit, weights, 0.0), 0))


@triton.jit
def _kept_by_block(logits, allowed, part_max, part_mass, part_kept, part_ties, prefixes, masses,
                   sampling, rows, vocabulary, blocks, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
                   BLOCKS: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = _load(logits, allowed, row, block * BLOCK, vocabulary, BLOCK)
    weights, keys = _weights(x, _top(part_max, row, blocks, BLOCKS), tl.load(sampling))
    prefix, _, _ = _narrow(part_mass, prefixes, masses, sampling, row, rows, blocks, LEVELS,
                           BLOCKS, block == 0)
    keys = keys >> (32 - 4 * LEVELS)
    place = row * blocks + block
    tl.store(part_kept + place, tl.sum(tl.where(keys > prefix, weights, 0.0), 0))
    tl.store(part_ties + place, tl.sum((keys == prefix).to(tl.int32), 0))


@triton.jit
def _pick(logits, allowed, part_max, part_kept, part_ties, prefixes, masses, sampling, draws,
          tokens, rows, vocabulary, blocks, LEVELS: tl.constexpr, BLOCK: tl.constexpr,
          BLOCKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, temperature = _top(part_max, row, blocks, BLOCKS), tl.load(sampling)
    prefix = tl.load(prefixes + LEVELS * rows + row).to(tl.uint32, bitcast=True)
    above = tl.load(masses + (LEVELS * rows + row) * 2)
    total = tl.load(masses + (LEVELS * rows + row) * 2 + 1)
    key = (prefix << (32 - 4 * LEVELS)).to(tl.int32, bitcast=True) ^ -2147483648
    logit = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tie = tl.exp((logit - top) / temperature)
    most = tl.minimum((tl.load(sampling + 1) * total - above) / tie, 1e9)
    most = tl.maximum(tl.ceil(most), 1.0).to(tl.int32)  # so many ties are kept
    at = tl.arange(0, BLOCKS)
    kept = tl.load(part_kept + row * blocks + at, mask=at < blocks, other=0.0)
    ties = tl.load(part_ties + row * blocks + at, mask=at < blocks, other=0)
    ties_before = tl.cumsum(ties, 0) - ties
    mass = kept + tl.minimum(tl.maximum(most - ties_before, 0), ties).to(tl.float32) * tie
    reached = tl.cumsum(mass, 0)
    wanted = tl.load(draws + row) * tl.sum(mass, 0)
    last = tl.max(tl.where(mass > 0, at, 0), 0)
    block = tl.minimum(tl.min(tl.where(reached > wanted, at, BLOCKS), 0), last)
    x = _load(logits, allowed, row, block * BLOCK, vocabulary, BLOCK)
    weights, keys = _weights(x, top, temperature)
    keys = keys >> (32 - 4 * LEVELS)
    is_tie = (keys == prefix).to(tl.int32)
    number = tl.sum(tl.where(at == block, ties_before, 0), 0) + tl.cumsum(is_tie, 0) - is_tie
    weights = tl.where((keys > prefix) | ((is_tie != 0) & (number < most)), weights, 0.0)
    before = tl.sum(tl.where(at == block, reached - mass, 0.0), 0)
    column = tl.arange(0, BLOCK)
    chosen = tl.min(tl.where((before + tl.cumsum(weights, 0) > wanted) & (weights > 0), column,
                             BLOCK), 0)
    chosen = tl.minimum(chosen, tl.max(tl.where(weights > 0, column, 0), 0))
    tl.store(tokens + row, (block * BLOCK + chosen).to(tl.int64))


def _maxima(logits: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """Largest logit and its token of every block, the number of blocks and that rounded up."""
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    part_max = torch.empty(rows, blocks, device=logits.device)
    part_index = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    _largest[rows, blocks](logits, allowed, part_max, part_index, vocabulary, BLOCK=BLOCK,
                           num_warps=8)
    return part_max, part_index, blocks, triton.next_power_of_2(blocks)


def likeliest(logits: Tensor, allowed: Tensor) -> Tensor:
    """See `reference.likeliest`."""
    part_max, part_index, blocks, padded = _maxima(logits, allowed)
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    _first_largest[len(logits),](part_max, part_index, tokens, blocks, BLOCKS=padded, num_warps=1)
    return tokens


def sample(logits: Tensor, allowed: Tensor, draws: Tensor, sampling: Tensor) -> Tensor:
    """See `reference.sample`."""
    rows, vocabulary = logits.shape
    device = logits.device
    levels = 4 if logits.dtype == torch.bfloat16 else 8
    part_max, _, blocks, padded = _maxima(logits, allowed)
    part_mass = torch.empty(levels, rows, blocks, 16, device=device)
    prefixes = torch.empty(levels + 1, rows, dtype=torch.int32, device=device)
    masses = torch.empty(levels + 1, rows, 2, device=device)
    for level in range(levels):
        _mass_by_digit[rows, blocks](
            logits, allowed, part_max, part_mass, prefixes, masses, sampling, rows, vocabulary,
            blocks, level=level, BLOCK=BLOCK, BLOCKS=padded, num_warps=8)
    part_kept = torch.empty(rows, blocks, device=device)
    part_ties = torch.empty(rows, blocks, dtype=torch.int32, device=device)
    _kept_by_block[rows, blocks](
        logits, allowed, part_max, part_mass, part_kept, part_ties, prefixes, masses, sampling,
        rows, vocabulary, blocks, LEVELS=levels, BLOCK=BLOCK, BLOCKS=padded, num_warps=8)
    tokens = torch.empty(rows, dtype=torch.long, device=device)
    _pick[rows,](logits, allowed, part_max, part_kept, part_ties, prefixes, masses, sampling,
                 draws, tokens, rows, vocabulary, blocks, LEVELS=levels, BLOCK=BLOCK,
                 BLOCKS=padded, num_warps=8)
    return tokens
