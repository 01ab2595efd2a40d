"""
Texts of the model itself for many windows at once, with a cache of keys.

Every row has a prompt of its own length and ends on its own; the windows' keys are
shared with whatever else is computed behind them.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.model import Alpamayo
from ..core.rotary import decoder_rotary
from ..core.sampling import probabilities
from .forward import Geometry, Keys, aligned, as_type, attention, forward, turn

ASK_EVERY = 8
"""Steps between two looks at whether all rows have ended: a look waits for the device."""


class RowTails:
    """
    Keys and values of B windows and the texts behind them, one token a row at a time.

    `k` and `v` [B, kv, n, d] by layer hold the windows and what is behind them already, of
    which `length` [B] tokens count; `room` more may come.  `slot` [B] is the one that the next
    token of each row takes, `end` the slot after the last of all rows.
    """

    def __init__(self, geometry: Geometry, k: Sequence[Tensor], v: Sequence[Tensor],
                 length: Tensor, room: int):
        self.geometry = geometry
        self.size = self.end = k[0].shape[2]
        self.k, self.v = ([F.pad(t, (0, 0, 0, room)) for t in kind] for kind in (k, v))
        device = length.device
        self.slot = geometry.slots + length
        self.rows, self.columns = (torch.arange(n, device=device)
                                   for n in (len(length), self.size + room))
        position = geometry.start + self.columns - geometry.slots
        self.tables = decoder_rotary(position.expand(3, -1), geometry.text)

    def begin(self) -> None:
        """Prepare for one more token of every row."""
        self.end += 1
        self.cos, self.sin = (t[self.slot][:, None, None] for t in self.tables)
        self.mask = aligned(self.columns[:self.end] <= self.slot[:, None])[:, None, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; shapes as in `decoder.Attend` with one token a row."""
        keys, values = self.k[layer], self.v[layer]
        keys[self.rows, :, self.slot] = turn(k, self.cos, self.sin, keys.dtype)[:, :, 0]
        values[self.rows, :, self.slot] = v[:, :, 0].to(values.dtype)
        q = turn(q, self.cos, self.sin, keys.dtype)
        if self.mask.dtype != keys.dtype:
            self.mask = as_type(self.mask, keys.dtype)
        # heads of a group are like queries: no key is repeated
        grouped = q.view(len(q), keys.shape[1], -1, q.shape[-1])
        return attention(grouped, keys[:, :, :self.end], values[:, :, :self.end],
                         self.mask).view(q.shape)


@torch.no_grad()
def decode(model: Alpamayo, geometry: Geometry, keys: Keys, prompt_ids: Tensor,
           prompt_length: Tensor, room: int, last: Sequence[int], allowed: Tensor,
           pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """
    Continue prompts [B, n] behind windows with `keys` until one of the tokens `last`.

    `pick` takes logits [B, vocabulary] and gives tokens [B].  Returns ids [B, room]
    (0 behind the end) and their number [B].
    """
    behind = forward(model, geometry, None, (prompt_ids,), keys)
    tails = RowTails(geometry, behind.keys.k, behind.keys.v, prompt_length.long(), room)
    hidden = behind.hidden[tails.rows, prompt_length - 1]
    ids = prompt_ids.new_zeros(len(prompt_ids), room)
    count = torch.zeros_like(tails.slot)
    running = torch.ones_like(count, dtype=torch.bool)
    ends = torch.tensor(last, device=ids.device)
    for step in range(room):
        logits = model.lm_head(hidden).float().masked_fill(~allowed, -torch.inf)
        token = torch.where(running, pick(logits), 0).to(ids.dtype)
        ids[:, step] = token
        count += running
        running = running & ~torch.isin(token, ends)
        if step == room - 1 or ((step + 1) % ASK_EVERY == 0 and not running.any()):
            break
        tails.begin()
        hidden = model.language_model(model.embed_tokens(token[:, None]), tails)[:, 0]
        tails.slot += running
    return ids, count


def greedy(logits: Tensor) -> Tensor:
    """`pick` of the likeliest tokens."""
    return logits.argmax(-1)


def mixed_choice(greedy: Tensor, temperature: float, top_p: float,
                 generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """`pick` that takes the likeliest token in the rows `greedy` [B] and samples in others."""
    def pick(logits: Tensor) -> Tensor:
        drawn = torch.multinomial(probabilities(logits, temperature, top_p), 1,
                                  generator=generator)[:, 0]
        return torch.where(greedy, logits.argmax(-1), drawn)
    return pick
