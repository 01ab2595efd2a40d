"""
Blocks that a drafter learns to fill, packed: all blocks of a window in one pass.

A window's context is its prompt up to the last image and, behind it, some branches
(texts that don't see each other).  Each block has an anchor in one branch, sees what
is before it there and itself, and no other block (spec `vflash.md` sections 1.3 and 3).
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.drafter import DrafterConfig
from .losses import IGNORE
from .questions import LAYOUTS

GAMMA = {8: 4.0, 10: 5.0, 16: 7.0}
"""Decay of the weights along a block of text, by its length."""


@dataclass(frozen=True)
class Branches:
    """
    R texts behind each of W windows, side by side.

    ids     [W, N] tokens        first   index [R] in N at which each branch begins
    length  [W, R] its tokens    spoken  [W, R] those before what was answered
    prefix  slots P of the window before the branches
    """

    ids: Tensor
    first: tuple[int, ...]
    length: Tensor
    spoken: Tensor
    prefix: int

    def rows(self, chosen: Tensor) -> Branches:
        """Some of the windows."""
        return Branches(self.ids[chosen], self.first, self.length[chosen], self.spoken[chosen],
                        self.prefix)

    def branch(self, number: int) -> Tensor:
        """Ids [W, n] of a branch."""
        ends = (*self.first[1:], self.ids.shape[1])
        return self.ids[:, self.first[number]:ends[number]]

    def slots(self) -> Tensor:
        """Slot [P + N] of every token of the context."""
        return _slots(self.prefix, self.first, self.ids.shape[1], self.ids.device)

    def columns(self) -> Tensor:
        """`first` as a tensor [R]."""
        return _columns(self.first, self.ids.device)


@lru_cache(maxsize=8)  # a copy to the device would wait for it
@torch.inference_mode(False)
def _slots(prefix: int, first: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    pieces = [torch.arange(prefix)] + [
        prefix + torch.arange(end - begin) for begin, end in zip(first, (*first[1:], width))]
    return torch.cat(pieces).to(device)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _columns(first: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(first, device=device)


@lru_cache(maxsize=2)
@torch.inference_mode(False)
def _kinds(device: torch.device) -> Tensor:
    """Kinds of the slots of every layout, -1 behind its end; the last row is that of text."""
    table = torch.full((len(LAYOUTS) + 1, max(layout.size for layout in LAYOUTS)), -1)
    for row, layout in zip(table, LAYOUTS):
        row[:layout.size] = torch.from_numpy(layout.kinds)
    return table.to(device)


@dataclass(frozen=True)
class Blocks:
    """
    K blocks of each of W windows: branch, anchor (index in the branch), size; all [W, K].

    `learned` tokens of the block are labels, the anchor counted; a size of 0 is no block.
    `layout` is an index in `questions.LAYOUTS`, or -1 for text.
    """

    branch: Tensor
    anchor: Tensor
    size: Tensor
    learned: Tensor
    layout: Tensor

    @classmethod
    def join(cls, several: Sequence[Blocks]) -> Blocks:
        """Blocks side by side."""
        return cls(*(torch.cat([getattr(b, name) for b in several], 1)
                     for name in cls.__dataclass_fields__))

    def take(self, index: Tensor) -> Blocks:
        """Blocks at `index` [W, k]."""
        return Blocks(*(getattr(self, n).gather(1, index) for n in self.__dataclass_fields__))

    def rows(self, chosen: Tensor) -> Blocks:
        """Those of some of the windows."""
        return Blocks(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def shuffled(self, generator: torch.Generator) -> Blocks:
        """In another order, for when not all of them have room."""
        drawn = torch.rand(self.size.shape, generator=generator, device=self.size.device)
        return self.take(drawn.argsort(1))


def primitive_blocks(found: Tensor, branches: Branches, first: int) -> Blocks:
    """
    One block of full size for every primitive `found` [W, m, K, 4] (`samples.BLOCK`).

    Their answers are the m branches from number `first` on.  An absent class is a block of
    which only the two tokens that say so are learned.
    """
    start, size, learned, layout = found.long().unbind(-1)
    answers = torch.arange(first, first + found.shape[1], device=found.device)
    anchor = start + branches.spoken[:, answers, None]
    return Blocks(*(t.flatten(1) for t in (
        answers[:, None].expand_as(start), anchor, size, learned, layout)))


def text_blocks(branches: Branches, number: int, size: int, weights: Tensor, count: int,
                generator: torch.Generator) -> Blocks:
    """Draw `count` anchors a window in a branch, as likely as `weights` [W, n] of its tokens."""
    lost = weights.sum(1, keepdim=True) == 0
    anchor = torch.multinomial(weights + lost, count, replacement=True, generator=generator)
    return blocks_at(branches, number, anchor, torch.where(lost, 0, size).expand_as(anchor))


def blocks_at(branches: Branches, number: int, anchor: Tensor, size: Tensor) -> Blocks:
    """Blocks of text at `anchor` [W, K] of a branch, learned as far as the text goes."""
    left = (branches.length[:, number, None] - anchor).clamp(min=0)
    return Blocks(torch.full_like(anchor, number), anchor, size, torch.minimum(size, left),
                  torch.full_like(anchor, -1))


def anchor_weights(branches: Branches, number: int, inside: Tensor | None = None,
                   inside_weight: float = 1.0) -> Tensor:
    """
    Weights [W, n] of a branch's tokens as anchors: answered ones with one after them.

    Those whose next token is one of `inside` (mask over the vocabulary) weigh `inside_weight`.
    """
    ids = branches.branch(number)
    at = torch.arange(ids.shape[1], device=ids.device)
    fits = (at >= branches.spoken[:, number, None]) & (at < branches.length[:, number, None] - 1)
    weights = fits.float()
    if inside is not None:
        following = inside[F.pad(ids[:, 1:], (0, 1)).long()]
        weights = torch.where(following, inside_weight * weights, weights)
    return weights


@dataclass(frozen=True)
class Packed:
    """
    Q tokens of W windows' blocks behind their context of S = P + N tokens.

    anchor     [W, Q] ids that stand at offset 0    is_anchor [W, Q]
    label      [W, Q] ids to be proposed (IGNORE where nothing is learned)
    weight     [W, Q]                               primitive [W, Q]
    kind       [W, Q] of its slot in a primitive, else -1
    block      [W, Q] number, each its own where there is no block
    first, end [W, Q] indexes of the context that it sees; `whole` [W, Q]: the prompt as well
    positions  [W, S + Q] slots                     prefix    P
    """

    anchor: Tensor
    is_anchor: Tensor
    label: Tensor
    weight: Tensor
    primitive: Tensor
    kind: Tensor
    block: Tensor
    first: Tensor
    end: Tensor
    whole: Tensor
    positions: Tensor
    prefix: int

    @property
    def context(self) -> int:
        """S."""
        return self.positions.shape[1] - self.block.shape[1]

    def sees(self, w, q, k):
        """Whether the query q of window w sees the key k (index tensors that broadcast)."""
        s, last = self.context, self.block.shape[1] - 1
        own = (k >= s) & (self.block[w, q] == self.block[w, (k - s).clamp(0, last)])
        text = (k >= self.first[w, q]) & (k < self.end[w, q])
        return own | text | (self.whole[w, q] & (k < self.prefix))

    def mask(self) -> Tensor:
        """What is seen, [W, 1, Q, S + Q]."""
        device = self.block.device
        w, q, k = (torch.arange(n, device=device) for n in (
            *self.block.shape, self.positions.shape[1]))
        return self.sees(w[:, None, None], q[:, None], k)[:, None]


def pack(blocks: Blocks, room: int, branches: Branches, config: DrafterConfig) -> Packed:
    """Lay the blocks of each window side by side into `room` tokens; others are left out."""
    device = branches.ids.device
    ends = blocks.size.cumsum(1)
    token = torch.arange(room, device=device).expand(len(ends), -1).contiguous()
    owner = torch.searchsorted(ends, token, right=True)
    exists = owner < ends.shape[1]
    owner = owner.clamp(max=ends.shape[1] - 1)
    own = Blocks(*(getattr(blocks, n).gather(1, owner) for n in Blocks.__dataclass_fields__))
    end = ends.gather(1, owner)
    offset = token - (end - own.size)
    exists &= end <= room
    offset = torch.where(exists, offset, 0)
    column = branches.columns()[own.branch] + own.anchor
    ids = branches.ids.long()
    width = ids.shape[1] - 1
    learned = exists & (offset > 0) & (offset < own.learned)
    label = torch.where(learned, ids.gather(1, (column + offset).clamp(max=width)), IGNORE)
    size = own.size.float()
    gamma = size / 2
    for length, value in GAMMA.items():
        gamma = torch.where(own.size == length, value, gamma)
    fading = torch.exp(-(offset - 1) / gamma.clamp(min=1))
    primitive = exists & (own.layout >= 0)
    weight = torch.where(primitive, 1.0, fading) * learned
    kinds = _kinds(device)
    kind = torch.where(primitive, kinds[own.layout, offset.clamp(max=kinds.shape[1] - 1)], -1)
    whole = primitive & config.window_context
    start = branches.prefix + column - own.anchor
    seen_end = branches.prefix + column
    first = torch.where(whole, start, torch.maximum(start, seen_end - config.context_len))
    context = branches.slots()
    slot = branches.prefix + own.anchor + offset
    return Packed(
        anchor=ids.gather(1, column), is_anchor=offset == 0, label=label, weight=weight,
        primitive=primitive, kind=kind,
        block=torch.where(exists, owner, ends.shape[1] + token), first=first,
        end=torch.where(exists, seen_end, first), whole=whole,
        positions=torch.cat((context.expand(len(ends), -1), slot), 1), prefix=branches.prefix)


def room_for(count: int, size: int, primitives: int) -> int:
    """Tokens of `count` blocks of text and of primitives, rounded up for the kernels."""
    return math.ceil((count * size + primitives) / 64) * 64
