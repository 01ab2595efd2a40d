"""Attention of the action tokens behind the prompts and reasonings of a batch."""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.model import Alpamayo
from ..core.rotary import decoder_rotary, rotate
from ..training.decoding import RowTails
from ..training.forward import aligned, as_type


class ActionAttention:
    """
    Action tokens of K samples a row see their row's prompt and reasoning, and their own sample.

    As in `core.trajectories.ActionContext`: a last token that was never
    forwarded is not seen, but counts for the positions.
    """

    def __init__(self, model: Alpamayo, tail: RowTails, texts: Sequence[Sequence[int]],
                 stops: Sequence[str], samples: int):
        device, n = model.device, model.config.action.n_waypoints
        self.end, self.config = tail.end, model.config.expert
        counts = torch.tensor([len(ids) for ids in texts], device=device)
        forwarded = torch.tensor([stop == 'end_token' for stop in stops], device=device)
        first = tail.geometry.start + tail.size - tail.geometry.slots + counts
        position = (first[:, None] + torch.arange(n, device=device)).repeat(1, samples)
        cos, sin = decoder_rotary(position.flatten().expand(3, -1), self.config)
        self.cos, self.sin = (a.view(len(texts), 1, samples * n, -1) for a in (cos, sin))
        seen = torch.arange(tail.end, device=device) < (
            tail.size + counts - 1 + forwarded.long())[:, None]
        own = torch.block_diag(*[torch.ones(n, n, device=device)] * samples).bool()
        mask = torch.cat((seen[:, None, None].expand(-1, 1, samples * n, -1),
                          own.expand(len(texts), 1, -1, -1)), -1)
        self.mask = as_type(aligned(mask), model.dtype)
        self.k, self.v = ([self._with_room(t, samples * n) for t in tensors]
                          for tensors in (tail.k, tail.v))

    def _with_room(self, prefix: Tensor, room: int) -> Tensor:
        """Copy of keys or values [B, kv, groups, end + room, d] as every query head sees them."""
        groups = self.config.num_attention_heads // prefix.shape[1]
        whole = prefix.new_empty(*prefix.shape[:2], groups, self.end + room, prefix.shape[3])
        whole[:, :, :, :self.end] = prefix[:, :, None, :self.end]
        return whole

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend`."""
        q, k = (rotate(x, self.cos, self.sin).to(v.dtype) for x in (q, k))
        for whole, own in ((self.k[layer], k), (self.v[layer], v)):
            whole[:, :, :, self.end:] = own[:, :, None]
        return F.scaled_dot_product_attention(
            q, self.k[layer].flatten(1, 2), self.v[layer].flatten(1, 2), attn_mask=self.mask)
