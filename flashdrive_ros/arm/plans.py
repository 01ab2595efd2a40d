"""Plans of many looks at once: sub-task, coordinates one by one or in one draft, features."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import checkpoint
from ..core.drafter import Drafter, Taps, load_companion
from ..core.model import Alpamayo
from ..core.primitives import layouts
from ..core.primitives.acceptance import Schema
from ..core.tokenizer import Tokenizer
from ..training.decoding import decode, greedy
from ..training.forward import Geometry, encode, forward
from . import vlm
from .timing import WAYPOINTS

QUESTION, SUBTASK, TRAJECTORY, IMAGE = range(4)
"""Segments, as in PlanFeatures.msg."""
TEXT_ROOM, PATH_ROOM = 24, 80


@dataclass(frozen=True)
class Plans:
    """Features [B, K, hidden], their segments [B, K] (-1: none there), and texts [B]."""

    features: Tensor
    segments: Tensor
    texts: list[str]

    def keep(self, *segments: int) -> Plans:
        """Only these segments; others count as not there."""
        wanted = torch.isin(self.segments, torch.tensor(segments, device=self.segments.device))
        return Plans(self.features, torch.where(wanted, self.segments, -1), self.texts)


class Planner:
    """Asks the VLM; without `drafter` only autoregressive plans can be had."""

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, drafter: Drafter | None = None):
        self.model, self.tokenizer, self.drafter = model.eval(), tokenizer, drafter
        self.geometry = Geometry(model, tokenizer, (0, 1), (96, 96))
        self.schemas = {form: Schema(layouts.DECLARED[kind](WAYPOINTS), tokenizer, model.device)
                        for form, kind in vlm.KINDS.items()}
        self.device = model.device
        self.allowed = model.allowed_tokens(trajectory_tokens=True)
        self.end = tokenizer.id('answer_end')

    @torch.no_grad()
    def looks(self, pictures: Tensor, instructions: Sequence[str]) -> Plans:
        """States of images and question alone."""
        asked = [self.tokenizer.encode(vlm.asked(i, '2d3d')) for i in instructions]
        ids, length = self._padded(asked)
        found = forward(self.model, self.geometry, pictures.to(self.device), (ids,))
        seen = found.newest.flatten(1, 2)
        segments = torch.full((len(ids), seen.shape[1]), IMAGE, device=self.device)
        place = torch.arange(ids.shape[1], device=self.device)
        own = torch.where(place < length[:, None], QUESTION, -1)
        return Plans(torch.cat((seen, found.hidden), 1), torch.cat((segments, own), 1), [])

    @torch.no_grad()
    def plans(self, pictures: Tensor, instructions: Sequence[str], form: str,
              flash: bool) -> Plans:
        """Sub-task and path in `form`; with `flash` the path comes from one draft."""
        asked = [self.tokenizer.encode(vlm.asked(i, form)) for i in instructions]
        ids, length = self._padded(asked)
        encoded = encode(self.model, self.geometry, pictures.to(self.device))
        keys = forward(self.model, self.geometry, None, (), None, encoded).keys
        schema = self.schemas.get(form)
        last = (self.end,) if schema is None or not flash else (self.end, schema.start)
        said, count = decode(self.model, self.geometry, keys, ids, length,
                             PATH_ROOM if schema and not flash else TEXT_ROOM, last,
                             self.allowed, greedy)
        texts = [a + s[:n].tolist() for a, s, n in zip(asked, said, count)]
        if flash and schema is not None:
            texts = self._drafted(texts, encoded, schema)
        ids, _ = self._padded(texts)
        hidden = forward(self.model, self.geometry, None, (ids,), keys).hidden
        starts = {s.start for s in self.schemas.values()}
        segments = torch.full(ids.shape, -1, device=self.device)
        for row, (text, a) in enumerate(zip(texts, asked)):
            first = next((i for i in range(len(a), len(text)) if text[i] in starts), len(text))
            segments[row, :len(a)] = QUESTION
            segments[row, len(a):first] = SUBTASK
            segments[row, first:len(text)] = TRAJECTORY
        answers = [self.tokenizer.decode(t[len(a):]) for t, a in zip(texts, asked)]
        return Plans(hidden, segments, answers)

    def _drafted(self, texts: list[list[int]], encoded, schema: Schema) -> list[list[int]]:
        """`texts` that end with a start token, their blocks and ends behind them."""
        rows = [i for i, t in enumerate(texts) if t[-1] == schema.start]
        if not rows:
            return texts
        ids, length = self._padded([texts[i] for i in rows])
        logits = draft(self.model, self.drafter, self.geometry, tuple(
            e[:, rows] if e.ndim == 4 else e[rows] for e in encoded), ids, length - 1, schema)
        done = list(texts)
        for row, own in zip(rows, logits):
            symbols, _, _ = schema.accept(own, None)
            done[row] = texts[row][:-1] + schema.token_ids(symbols) + [self.end]
        return done

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids [B, N] and their numbers [B]."""
        tensors = [torch.tensor(r) for r in rows]
        return (torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.device),
                torch.tensor([len(r) for r in rows], device=self.device))


def planner_of(name: str, device: str = 'cpu') -> Planner:
    """Planner of the checkpoint `name` with its drafter."""
    model, tokenizer = checkpoint.load(name, torch.device(device), torch.float32)
    return Planner(model, tokenizer, load_companion(name, model, 'on'))


def draft(model: Alpamayo, drafter: Drafter, geometry: Geometry, encoded, ids: Tensor,
          anchor: Tensor, schema: Schema) -> Tensor:
    """Logits [B, L - 1, V] of blocks whose start tokens are `ids` [B, n] at `anchor` [B]."""
    taps = Taps(drafter.config)
    with torch.no_grad():
        forward(model, geometry, None, (ids,), None, encoded, taps)
        states = taps.chosen()
    context = drafter.fuse(states)
    n, size = context.shape[1], len(schema.template)
    slots = torch.arange(n, device=model.device)
    begin = geometry.slots + anchor[:, None]
    block = begin + torch.arange(size, device=model.device)
    seen = torch.cat((slots < begin, torch.ones_like(block, dtype=torch.bool)), 1)
    mask = torch.zeros(seen.shape, device=model.device).masked_fill(~seen, -torch.inf)
    mask = mask[:, None, None].expand(-1, -1, size, -1)
    start = torch.full_like(anchor, schema.start)
    x = drafter.block(model.embed_tokens(start), size, schema.kinds)
    positions = torch.cat((slots.expand(len(ids), -1), block), 1)
    return model.lm_head(drafter(x, context, positions, mask)[:, 1:])


def pictures_of(looks) -> Tensor:
    """Pictures of several `simulator.Observation`s."""
    return vlm.pictures(np.stack([o.main for o in looks]), np.stack([o.wrist for o in looks]))
