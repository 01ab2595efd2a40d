"""
Many windows at once through the modules of the engine, with gradients.

The slots of a window are those of the engine's prompt up to the last image, then
one or more branches: texts that all see the images and not each other (the plan,
a question).  Branches make several tasks of one expensive part.  A window either
is computed whole or, on top of the last one's keys, only where it is new: the
same rules as `core/stream.py`, which the tests compare it with.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import images
from ..core.attention import runs
from ..core.model import Alpamayo
from ..core.prompt import build_layout
from ..core.rotary import decoder_rotary, rotate
from ..core.streaming import computed_slots, new_blocks
from ..core.tokenizer import Tokenizer


class Geometry:
    """Slots, positions and ids of the part of the prompt that all windows share (P slots)."""

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, camera_ids: Sequence[int],
                 image_size: tuple[int, int]):
        config = model.config
        merged = config.vision.patch_size * config.vision.spatial_merge_size
        grid = image_size[0] // merged, image_size[1] // merged
        layout = build_layout(config, tokenizer, tuple(camera_ids), (grid,) * len(camera_ids))
        device = model.device
        self.layout, self.text, self.expert = layout, config.text, config.expert
        self.slots = layout.suffix
        self.patch_grid = tuple(n * config.vision.spatial_merge_size for n in grid)
        self.start = int(layout.positions[0, layout.suffix])
        self.ids = torch.from_numpy(layout.token_ids[:self.slots]).to(device)
        positions = torch.from_numpy(layout.positions[:, :self.slots]).to(device)
        self.cos, self.sin = decoder_rotary(positions, config.text)
        self.whole = _Part(layout, layout.frames, self.slots, device)
        self.newest = _Part(layout, 1, self.slots, device)
        source = torch.arange(self.slots)
        for view in layout.images:
            for (first, end), (next_first, next_end) in zip(view, view[1:]):
                source[first:end] = torch.arange(next_first, next_end)
        self.slide = source.to(device)

    def tail_rotary(self, lengths: Sequence[int], device) -> tuple[Tensor, Tensor]:
        """Cosine and sine [N, d] of branches that all begin after the last image."""
        position = torch.cat([self.start + torch.arange(n, device=device) for n in lengths])
        return decoder_rotary(position.expand(3, -1), self.text)

    def tail_mask(self, lengths: Sequence[int], device) -> Tensor:
        """What branch tokens see [N, P + N]: the images, and the past of their own branch."""
        own = torch.block_diag(*(torch.ones(n, n, device=device).tril() for n in lengths)).bool()
        return aligned(torch.cat((own.new_ones(len(own), self.slots), own), 1))


class _Part:
    """The prompt slots that a window computes, and where its new images go among them."""

    def __init__(self, layout, shift: int, size: int, device):
        slots = computed_slots(layout, shift)
        slots = slots[slots < size]
        image_slots = layout.image_token_slots(new_blocks(layout, shift))
        self.slots = torch.from_numpy(slots).to(device)
        self.runs = runs(slots)
        self.image_rows = torch.searchsorted(self.slots, torch.from_numpy(image_slots).to(device))


@dataclass(frozen=True)
class Keys:
    """
    Keys and values of a batch, by layer.

    `raw` [B, kv, P, d] are prompt keys before rotation; `k` [B, kv, P + N, d]
    rotated ones and `v` with the branches behind the prompt.
    """

    raw: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]


@dataclass(frozen=True)
class Forward:
    """
    Final hidden states [B, N, hidden] of the branches, and the keys.

    Of the window itself when images were given: `newest` [B, views, t, hidden] are the
    final hidden states of its newest images and `tokens`, alike, what came from the
    vision tower.
    """

    hidden: Tensor
    keys: Keys
    newest: Tensor | None = None
    tokens: Tensor | None = None


MASK_ALIGNMENT = 8
"""Rows of a mask begin at multiples of this, as the memory-efficient kernel wants them."""


def aligned(mask: Tensor) -> Tensor:
    """Additive mask (0 or -inf, float32) of a boolean one, its rows aligned in memory."""
    *rows, columns = mask.shape
    room = torch.zeros(*rows, -(-columns // MASK_ALIGNMENT) * MASK_ALIGNMENT, device=mask.device)
    return room[..., :columns].masked_fill_(~mask, -torch.inf)


def as_type(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`mask` in another dtype, its rows still aligned."""
    columns = mask.shape[-1]
    room = mask.new_empty(*mask.shape[:-1], -(-columns // MASK_ALIGNMENT) * MASK_ALIGNMENT,
                          dtype=dtype)
    return room[..., :columns].copy_(mask)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """
    Attention with an additive mask, or causal without one.

    Keys are repeated, since not every fast kernel knows groups of heads.
    """
    groups = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), attn_mask=mask,
        is_causal=mask is None)


def turn(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Rotate in the tables' precision, then cast."""
    return rotate(x, cos, sin).to(dtype)


class WindowAttention:
    """Attention of the computed prompt slots and of the branches; collects the keys."""

    def __init__(self, geometry: Geometry, part: _Part | None, lengths: Sequence[int],
                 past: Keys | None):
        device = geometry.cos.device
        self.geometry, self.part, self.past = geometry, part, past
        self.count = 0 if part is None else len(part.slots)
        self.mask = geometry.tail_mask(lengths, device) if lengths else None
        cos, sin = geometry.tail_rotary(lengths, device) if lengths else geometry.cos.new_empty(
            2, 0, geometry.cos.shape[-1])
        own = slice(0, 0) if part is None else part.slots
        self.cos, self.sin = (torch.cat((a[own], b)) for a, b in (
            (geometry.cos, cos), (geometry.sin, sin)))
        self.keys = Keys([], [], [])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend`."""
        n, geometry, keys = self.count, self.geometry, self.keys
        q = turn(q, self.cos, self.sin, v.dtype)
        tail = turn(k[:, :, n:], self.cos[n:], self.sin[n:], v.dtype)
        raw, values = k[:, :, :n].to(v.dtype), v[:, :, :n]
        if self.past is not None:
            old_raw, old_v = self.past.raw[layer], self.past.v[layer][:, :, :geometry.slots]
            if n:
                raw = old_raw.index_copy(2, self.part.slots, raw.to(old_raw.dtype))
                values = old_v.index_copy(2, self.part.slots, values.to(old_v.dtype))
            else:
                raw, values = old_raw, old_v
        rotated = turn(raw, geometry.cos, geometry.sin, v.dtype)
        outputs = [self._causal(q[:, :, a:b], rotated[:, :, :end], values[:, :, :end])
                   for a, b, end in (self.part.runs if n else ())]
        if self.mask is not None:
            rotated = torch.cat((rotated, tail), 2)
            values = torch.cat((values, v[:, :, n:]), 2)
            if self.mask.dtype != v.dtype:
                self.mask = as_type(self.mask, v.dtype)
            outputs.append(attention(q[:, :, n:], rotated, values, self.mask))
        keys.raw.append(raw)
        keys.k.append(rotated)
        keys.v.append(values)
        return torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]


    @staticmethod
    def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of a run of slots that ends where the keys end."""
        n, m = q.shape[2], k.shape[2]
        if n == m:
            return attention(q, k, v, None)
        mask = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
        return attention(q, k, v, as_type(aligned(mask), v.dtype))


def encode(model: Alpamayo, geometry: Geometry, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """
    Encode resized uint8 `pictures` [B, views, frames, 3, h, w].

    Returns tokens [B, views * frames * t, hidden] and deepstack features with
    the taps in front.
    """
    batch = len(pictures)
    patches = images.to_patches(pictures.flatten(0, 2), model.config.vision)
    tokens, deepstack = model.visual.encode(patches, geometry.patch_grid)
    return (tokens.reshape(batch, -1, tokens.shape[-1]),
            deepstack.reshape(len(deepstack), batch, -1, tokens.shape[-1]))


def forward(model: Alpamayo, geometry: Geometry, pictures: Tensor | None,
            branches: Sequence[Tensor] = (), past: Keys | None = None,
            encoded: tuple[Tensor, Tensor] | None = None, taps=None) -> Forward:
    """
    Compute a window of B samples, whole or on top of `past`.

    `pictures` uint8 [B, views, frames, 3, h, w]: all frames without `past`, the
    newest one (frames = 1) with it, None to only add `branches` (token ids
    [B, n] each) behind a window that is known.  `past` must have been slid.
    `encoded` is what `encode` gives for the pictures, where that is known; `taps` as in
    `Decoder.forward`.
    """
    part, pieces, deepstack, rows = None, [], None, None
    if pictures is not None:
        encoded = encode(model, geometry, pictures)
    if encoded is not None:
        part = geometry.whole if past is None else geometry.newest
        tokens, deepstack = encoded
        x = model.embed_tokens(geometry.ids[part.slots]).expand(len(tokens), -1, -1)
        rows = part.image_rows
        pieces.append(x.index_copy(1, rows, tokens.to(x.dtype)))
    pieces += [model.embed_tokens(ids) for ids in branches]
    lengths = [ids.shape[1] for ids in branches]
    attend = WindowAttention(geometry, part, lengths, past)
    hidden = model.language_model(torch.cat(pieces, 1), attend, deepstack, rows, taps)
    if encoded is None:
        return Forward(hidden, attend.keys)
    views, frames = len(geometry.layout.images), 1 if past is not None else geometry.layout.frames

    def of_newest(states):
        return states.unflatten(1, (views, frames, -1))[:, :, -1]
    return Forward(hidden[:, attend.count:], attend.keys, of_newest(hidden[:, rows]),
                   of_newest(tokens))


def slid(keys: Keys, geometry: Geometry) -> Keys:
    """Keys of the window 0.1 s later: every image block moves one place towards the past."""
    def move(tensors):
        return [t[:, :, :geometry.slots].index_select(2, geometry.slide) for t in tensors]
    return Keys(move(keys.raw), [], move(keys.v))


class ActionAttention:
    """
    Attention of action tokens to the window and the first branch up to `visible`, and each other.

    D draws of noise per window stand side by side and don't see each other;
    `visible` [B] counts the tokens of the first branch (`length` with padding).
    """

    def __init__(self, geometry: Geometry, keys: Keys, visible: Tensor, length: int, draws: int,
                 waypoints: int):
        self.keys, self.end = keys, geometry.slots + length
        device, batch = visible.device, len(visible)
        position = geometry.start + visible[:, None] + torch.arange(waypoints, device=device)
        position = position.repeat(1, draws)
        cos, sin = decoder_rotary(position.flatten().expand(3, -1), geometry.expert)
        self.cos, self.sin = (a.view(batch, 1, draws * waypoints, -1) for a in (cos, sin))
        seen = torch.arange(length, device=device) < visible[:, None]
        prefix = torch.cat((seen.new_ones(batch, geometry.slots), seen), 1)[:, None, None]
        own = torch.block_diag(*[torch.ones(waypoints, waypoints, device=device)] * draws).bool()
        mask = torch.cat((prefix.expand(-1, -1, draws * waypoints, -1),
                          own.expand(batch, 1, -1, -1)), -1)
        self.mask = aligned(mask)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend`."""
        q = turn(q, self.cos, self.sin, v.dtype)
        k = turn(k, self.cos, self.sin, v.dtype)
        if self.mask.dtype != v.dtype:
            self.mask = as_type(self.mask, v.dtype)
        return attention(q, torch.cat((self.keys.k[layer][:, :, :self.end].to(v.dtype), k), 2),
                         torch.cat((self.keys.v[layer][:, :, :self.end].to(v.dtype), v), 2),
                         self.mask)


def velocity(model: Alpamayo, attend: ActionAttention, x: Tensor, t: Tensor) -> Tensor:
    """Velocity [B, D, n, 2] of noisy controls `x` [B, D, n, 2] at times `t` [B, D], float32."""
    batch, draws, waypoints, _ = x.shape
    tokens = model.action_in_proj(x.flatten(0, 1), t.reshape(-1, 1), model.frequencies())
    tokens = tokens.view(batch, draws * waypoints, -1)
    out = model.action_out_proj(model.expert(tokens, attend)).float()
    return out.view(batch, draws, waypoints, 2)
