"""Attention of the tokens behind the prompts of a batch: generated text, then actions."""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.model import Alpamayo
from ..core.rotary import decoder_rotary, rotate
from ..training.forward import Geometry, aligned, as_type


class Tail:
    """Keys of B prompts with room for generated tokens; attends one token a row at a time."""

    def __init__(self, model: Alpamayo, geometry: Geometry, k: Sequence[Tensor],
                 v: Sequence[Tensor], suffix: int, room: int):
        self.geometry, self.model = geometry, model
        self.size = self.length = geometry.slots + suffix
        self.k, self.v = ([torch.cat((t, t.new_zeros(*t.shape[:2], room, t.shape[3])), 2)
                           for t in tensors] for tensors in (k, v))
        position = geometry.start + suffix + torch.arange(room, device=model.device)
        self.cos, self.sin = decoder_rotary(position.expand(3, -1), model.config.text)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with one token a row."""
        at = self.length - self.size
        cos, sin = self.cos[at:at + 1], self.sin[at:at + 1]
        self.k[layer][:, :, self.length:self.length + 1] = rotate(k, cos, sin).to(v.dtype)
        self.v[layer][:, :, self.length:self.length + 1] = v
        end = self.length + 1
        grouped = rotate(q, cos, sin).to(v.dtype).reshape(len(q), k.shape[1], -1, k.shape[3])
        return F.scaled_dot_product_attention(
            grouped, self.k[layer][:, :, :end], self.v[layer][:, :, :end]).reshape(q.shape)


class ActionAttention:
    """
    Action tokens of K samples a row see their row's prompt and reasoning, and their own sample.

    As in `core.trajectories.ActionContext`: a last token that was never
    forwarded is not seen, but counts for the positions.
    """

    def __init__(self, tail: Tail, texts: Sequence[Sequence[int]], stops: Sequence[str],
                 samples: int):
        model, device = tail.model, tail.model.device
        self.tail, n = tail, model.config.action.n_waypoints
        counts = torch.tensor([len(ids) for ids in texts], device=device)
        forwarded = torch.tensor([stop == 'end_token' for stop in stops], device=device)
        first = tail.geometry.start + tail.size - tail.geometry.slots + counts
        position = (first[:, None] + torch.arange(n, device=device)).repeat(1, samples)
        cos, sin = decoder_rotary(position.flatten().expand(3, -1), model.config.expert)
        self.cos, self.sin = (a.view(len(texts), 1, samples * n, -1) for a in (cos, sin))
        seen = torch.arange(tail.length, device=device) < (
            tail.size + counts - 1 + forwarded.long())[:, None]
        own = torch.block_diag(*[torch.ones(n, n, device=device)] * samples).bool()
        mask = torch.cat((seen[:, None, None].expand(-1, 1, samples * n, -1),
                          own.expand(len(texts), 1, -1, -1)), -1)
        self.mask = as_type(aligned(mask), model.dtype)
        self.k, self.v = ([self._with_room(t, samples * n) for t in tensors]
                          for tensors in (tail.k, tail.v))

    def _with_room(self, prefix: Tensor, room: int) -> Tensor:
        """Copy of keys or values [B, kv, groups, end + room, d] as every query head sees them."""
        end, expert = self.tail.length, self.tail.model.config.expert
        groups = expert.num_attention_heads // prefix.shape[1]
        whole = prefix.new_empty(*prefix.shape[:2], groups, end + room, prefix.shape[3])
        whole[:, :, :, :end] = prefix[:, :, None, :end]
        return whole

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend`."""
        q, k = (rotate(x, self.cos, self.sin).to(v.dtype) for x in (q, k))
        for whole, own in ((self.k[layer], k), (self.v[layer], v)):
            whole[:, :, :, self.tail.length:] = own[:, :, None]
        return F.scaled_dot_product_attention(
            q, self.k[layer].flatten(1, 2), self.v[layer].flatten(1, 2), attn_mask=self.mask)
