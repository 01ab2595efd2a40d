"""
What a drafter learns from: a frozen target's states, its own texts, and annotations.

One pass of the target over some windows serves several updates.  Texts are the
target's own samples, as they will be when the drafter is used; primitives are the
annotations, never what the target said (spec `vflash.md` section 1.3).
"""
from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from ..core.drafter import Attention, Drafter, Taps
from ..core.model import Alpamayo
from ..core.primitives.coordinates import BINS, NONE
from ..core.primitives.reading import Reader
from ..core.tokenizer import Tokenizer
from .blocks import Blocks, Branches, Packed, pack, primitive_blocks
from .decoding import decode, mixed_choice
from .forward import Geometry, Keys, aligned, as_type, attention, forward
from .losses import IGNORE, join
from .store import Asked, Batch

log = logging.getLogger(__name__)
PLAN, SAID = 0, 1
"""Branches with the target's own texts, when there are any; annotated answers come after them."""


@dataclass(frozen=True)
class Rooms:
    """
    Columns of prompts and questions, and the tokens that a reason and an answer may have.

    `own` is for answers of the target itself.
    """

    prompt: int
    question: int
    reason: int
    answer: int
    own: int


@dataclass(frozen=True)
class Material:
    """
    W windows that the target has seen.

    `prompt` [W, P, taps * hidden] and `behind` [W, N, taps * hidden] are its tapped states
    up to the last image and of the branches; `primitives` the annotated blocks.
    """

    prompt: Tensor
    behind: Tensor
    branches: Branches
    primitives: Blocks

    def __len__(self) -> int:
        return len(self.prompt)

    def rows(self, chosen: Tensor) -> Material:
        """Some of the windows."""
        return Material(self.prompt[chosen], self.behind[chosen], self.branches.rows(chosen),
                        self.primitives.rows(chosen))

    @property
    def states(self) -> Tensor:
        """Tapped states [W, P + N, taps * hidden] of the context."""
        return torch.cat((self.prompt, self.behind), 1)


class Target:
    """The frozen model whose tokens are to be proposed."""

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, geometry: Geometry,
                 drafter: Drafter):
        self.model, self.geometry, self.config = model.requires_grad_(False), geometry, \
            drafter.config
        self.reader = Reader(tokenizer)
        self.reason_end = tokenizer.id('traj_future_start')
        self.answer_end = tokenizer.id('answer_end')
        self.plain = model.allowed_tokens(trajectory_tokens=False)
        self.anything = model.allowed_tokens(trajectory_tokens=True)
        self.coordinates = torch.zeros_like(self.anything)
        """Mask over the vocabulary: tokens inside of primitives."""
        self.zero = tokenizer.id('0')
        """Id of the first of the numbers, which follow each other."""
        self.coordinates[self.zero:self.zero + BINS + 1] = True
        self.coordinates[tokenizer.id(NONE.strip('<|>'))] = True

    @torch.no_grad()
    def study(self, batch: Batch, asked: Asked, rooms: Rooms,
              pick: Callable[[Tensor], Tensor] | None) -> Material:
        """
        Look at windows, say something about them and read the annotated answers.

        `asked` [W, m, n] are questions with their answers; `pick` as in `decode`, None: the
        target says nothing itself.
        """
        model, geometry = self.model, self.geometry
        taps = Taps(self.config)
        window = forward(model, geometry, batch.images, taps=taps)
        joined, spoken = self._own_texts(batch, asked, rooms, pick, window.keys) if pick else (
            [], [])
        width = rooms.question + rooms.answer
        for m in range(asked.question_ids.shape[1]):
            question_ids, question_length, answer_ids, answer_length = (
                t[:, m] for t in (asked.question_ids, asked.question_length, asked.answer_ids,
                                  asked.answer_length))
            joined.append(join(question_ids, question_length, answer_ids, answer_length, width))
            spoken.append(question_length)
        read = Taps(self.config)
        forward(model, geometry, None, [j.ids for j in joined], window.keys, taps=read)
        firsts = torch.tensor([0] + [j.ids.shape[1] for j in joined]).cumsum(0).tolist()
        branches = Branches(torch.cat([j.ids for j in joined], 1), tuple(firsts[:-1]),
                            torch.stack([j.length for j in joined], 1).long(),
                            torch.stack(spoken, 1).long(), geometry.slots)
        return Material(torch.cat(taps.chosen(), -1), torch.cat(read.chosen(), -1), branches,
                        primitive_blocks(asked.answer_blocks, branches, 2 if pick else 0))

    def _own_texts(self, batch: Batch, asked: Asked, rooms: Rooms, pick, keys: Keys):
        """Prompt with reasoning and first question with answer, as the target itself goes on."""
        joined, spoken = [], []
        for ids, length, columns, room, last, allowed in (
                (batch.prompt_ids, batch.prompt_length, rooms.prompt, rooms.reason,
                 self.reason_end, self.plain),
                (asked.question_ids[:, 0], asked.question_length[:, 0], rooms.question,
                 rooms.own, self.answer_end, self.anything)):
            said, count = decode(self.model, self.geometry, keys, ids[:, :columns], length, room,
                                 [last], allowed, pick)
            joined.append(join(ids, length, said, count, columns + room))
            spoken.append(length)
        return joined, spoken


class DraftLoss(nn.Module):
    """
    Cross entropy of a drafter's proposals; the target is not part of the module.

    Of a primitive's coordinate, `near_share` of the label lies around its bin, falling by e in
    `near_bins` of them: bins are ordered, and a neighbour is nearly right.
    """

    def __init__(self, drafter: Drafter, target: Target, kind: str = 'plain',
                 text_weight: float = 1.0, primitive_weight: float = 1.0,
                 near_share: float = 0.0, near_bins: float = 16.0):
        super().__init__()
        self.drafter, self.kind = drafter, kind
        self.text_weight, self.primitive_weight = text_weight, primitive_weight
        self.near_share = near_share
        self.outside = (target,)  # a tuple hides it from the module's parameters
        bins = torch.arange(BINS + 1, device=drafter.fc.weight.device)
        near = torch.softmax(-(bins[:, None] - bins).abs() / near_bins, -1)
        self.register_buffer('near', near, persistent=False)

    def logits(self, material: Material, packed: Packed) -> Tensor:
        """Logits [W, Q, vocabulary] of a packed pass, those of pad tokens at -inf."""
        target, = self.outside
        drafter, model = self.drafter, target.model
        features = drafter.fuse([material.states])
        anchors = model.embed_tokens(packed.anchor).to(drafter.mask_embedding.dtype)
        x = torch.where(packed.is_anchor[..., None], anchors, drafter.masks(packed.kind))
        states = drafter(x, features, packed.positions, attend=attention_of(packed, self.kind))
        return model.lm_head(states).float().masked_fill(~target.anything, -torch.inf)

    def forward(self, material: Material, blocks: Blocks, room: int) -> dict[str, Tensor]:
        """Weighted 'loss' and its parts: losses of both kinds and shares of tokens right."""
        packed = pack(blocks, room, material.branches, self.drafter.config)
        logits = self.logits(material, packed)
        entropy = self._entropy(logits, packed)
        right = logits.argmax(-1) == packed.label
        loss, parts = 0.0, {}
        for name, chosen, weight in (('text', ~packed.primitive, self.text_weight),
                                     ('primitive', packed.primitive, self.primitive_weight)):
            weights = packed.weight * chosen
            learned = (packed.label != IGNORE) & chosen
            part = (entropy * weights).sum() / weights.sum().clamp(min=1e-6)
            loss = loss + weight * part
            parts[name] = part.detach()
            parts[f'{name}_right'] = (right & learned).sum() / learned.sum().clamp(min=1)
        return {'loss': loss, **parts}

    def _entropy(self, logits: Tensor, packed: Packed) -> Tensor:
        """Cross entropy [W, Q] with the labels; of no meaning where there is none."""
        zero = self.outside[0].zero
        label = torch.where(packed.label == IGNORE, zero, packed.label)
        chances = logits.log_softmax(-1)
        exact = -chances.gather(-1, label[..., None])[..., 0]
        if not self.near_share:
            return exact
        bins = label - zero
        ordered = packed.primitive & (bins >= 0) & (bins <= BINS)
        near = self.near[bins.clamp(0, BINS)] * chances[..., zero:zero + BINS + 1]
        return torch.where(ordered, torch.lerp(exact, -near.sum(-1), self.near_share), exact)


def attention_of(packed: Packed, kind: str) -> Attention:
    """Attention of a packed pass: 'plain' with a dense mask, 'flex' with a block-sparse one."""
    if kind == 'flex':
        return _flex(packed)
    masks = {torch.float32: aligned(packed.mask())}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if v.dtype not in masks:
            masks[v.dtype] = as_type(masks[torch.float32], v.dtype)
        return attention(q.to(v.dtype), k.to(v.dtype), v, masks[v.dtype])
    return attend


@lru_cache(maxsize=1)
def _compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention)


def _flex(packed: Packed) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    device = packed.block.device
    flex = _compiled_flex() if device.type == 'cuda' else flex_attention
    windows, queries = packed.block.shape
    mask = create_block_mask(lambda b, h, q, k: packed.sees(b, q, k), windows, None, queries,
                             packed.positions.shape[1], device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex(q.to(v.dtype).contiguous(), k.to(v.dtype).contiguous(), v.contiguous(),
                    block_mask=mask, enable_gqa=True)
    return attend


def best_attention(drafter: Drafter) -> str:
    """'flex' where it can be compiled for the drafter's device and heads, else 'plain'."""
    device, config = drafter.fc.weight.device, drafter.config
    if device.type != 'cuda':
        return 'plain'
    one = torch.ones(1, 64, dtype=torch.long, device=device)
    packed = Packed(one, one > 0, one, one.float(), one > 0, one, one, one * 0, one * 64, one > 0,
                    torch.arange(128, device=device)[None], 32)
    q, k = (torch.randn(1, heads, n, config.head_dim, dtype=torch.bfloat16, device=device,
                        requires_grad=True)
            for heads, n in ((config.num_attention_heads, 64), (config.num_key_value_heads, 128)))
    try:
        _flex(packed)(q, k, k).sum().backward()
        torch.cuda.synchronize(device)
    except Exception as error:  # whatever a compiler may say
        log.warning('attention is plain, FlexAttention fails here: %s', error)
        return 'plain'
    return 'flex'


def half_greedy(windows: int, temperature: float, top_p: float,
                generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """`pick` that is greedy in about half of the windows and samples in the others."""
    coin = torch.rand(windows, generator=generator, device=generator.device) < 0.5
    return mixed_choice(coin, temperature, top_p, generator)
