"""
Text behind a prompt, token by token or drafted, in stages of static shape.

What a round needs of the one before it stays on the device; the host reads each
round's tokens once, to know whether the text has ended.
"""
from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config import EngineConfig
from ..drafter import Taps
from ..speculative import Draft, Generation
from .drafting import FastDrafter

if TYPE_CHECKING:
    from .window import FastStream

MAX_BLOCK = 64
"""Most tokens of a drafted block."""


class Decoding:
    """
    Fills a `Generation` behind the tokens that a stream holds.

    The anchor, the newest token, is at slot `base` + `count` - 1; `count` tokens
    are known, and `draws[count]` chooses the next one.
    """

    def __init__(self, stream: FastStream):
        self.stream, self.ops, model = stream, stream.ops, stream.model
        device, room = model.device, stream.cache.capacity
        self.drafters: dict[int, FastDrafter] = {}

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)
        self.anchor, self.base, self.count = integers(1), integers(), integers()
        self.draws = torch.zeros(room + MAX_BLOCK, device=device)
        self.sampling = torch.zeros(2, device=device)
        """Temperature and top_p."""
        self.allowed = torch.zeros(model.lm_head.weight.shape[0], dtype=torch.bool, device=device)
        self.hidden = torch.zeros_like(stream.hidden)
        self.result = integers(MAX_BLOCK + 2)
        self.read = torch.zeros(MAX_BLOCK + 2, dtype=torch.long,
                                pin_memory=device.type == 'cuda')

    def write(self, row: Generation, hidden: Tensor, config: EngineConfig, draws: Tensor,
              allowed: Tensor, draft: Draft | None = None, accept: int | None = None) -> None:
        """
        Fill `row` with the tokens behind the last hidden state `hidden` [hidden].

        As `reasoning.write`; `accept` proposals of every round count as right,
        whatever they are (for measurements).
        """
        stream, base = self.stream, self.stream.length
        self.base.fill_(base)
        self.draws[:len(draws)] = draws
        self.draws[len(draws):] = 0
        top_p = config.top_p if config.top_p < 1 else 2.0  # nothing is beyond it
        self.sampling.copy_(torch.tensor((config.temperature, top_p)))
        self.allowed.copy_(allowed)
        self.hidden.copy_(hidden)
        drafter = None if draft is None else self._prepare(draft)
        stages, greedy = stream.stages, config.greedy
        stages.run(('first', greedy), partial(self._first, greedy))
        if draft is None:
            row.take(self._tokens(1)[0])
        while not row.stop:
            if draft is None:
                stages.run(('step', greedy), partial(self._step, greedy))
                row.take(self._tokens(1)[0])
                continue
            stages.run(('round', greedy, id(draft.drafter), accept),
                       partial(self._round, drafter, greedy, accept))
            anchor, *chosen, accepted = self._tokens(draft.block_size + 2)
            if not row.ids:  # the first token is read with the first round's
                row.take(anchor)
            row.commit(chosen, accepted)
        cached = max(len(row.ids) - 1, min(row.cached, len(row.ids)))
        if draft is not None and len(row.ids) == 1:
            cached = 1  # it was the anchor of a round that came to nothing
        stream.truncate(base + cached)

    def prepare(self, greedy: bool, draft: Draft | None, accept: int | None) -> None:
        """Capture the stages of these settings."""
        stages = self.stream.stages
        self.base.fill_(self.stream.layout.size)
        self.allowed.fill_(True)
        self.sampling.fill_(1.0)
        self.count.fill_(1)
        stages.prepare(('first', greedy), partial(self._first, greedy))
        stages.prepare(('step', greedy), partial(self._step, greedy))
        if draft is not None:
            drafter = self._prepare(draft)
            self.count.fill_(1)
            stages.prepare(('round', greedy, id(draft.drafter), accept),
                           partial(self._round, drafter, greedy, accept))

    def _prepare(self, draft: Draft) -> FastDrafter:
        """Give a drafter its context for the first round."""
        key = id(draft.drafter)
        if key not in self.drafters:
            self.drafters[key] = FastDrafter(draft, self.stream.model, self.ops)
        self.drafters[key].context.copy_(draft.context)
        return self.drafters[key]

    def _tokens(self, count: int) -> list[int]:
        """Wait for the last stage's `count` results."""
        if self.read.is_pinned():
            torch.cuda.current_stream(self.result.device).synchronize()
        return self.read[:count].tolist()

    def _finish(self, *values: Tensor) -> None:
        """Show the integers `values` to the host."""
        at = 0
        for value in values:
            self.result[at:at + len(value)] = value
            at += len(value)
        self.read[:at].copy_(self.result[:at], non_blocking=True)

    def _choose(self, hidden: Tensor, steps: Tensor, greedy: bool) -> Tensor:
        """Tokens [n] after the states `hidden` [n, hidden], by the draws after `steps` [n]."""
        head = self.stream.model.lm_head
        if greedy:
            return self.ops.likeliest(head(hidden), self.allowed)
        return self.ops.sample(head(hidden), self.allowed, self.draws[self.count + steps],
                               self.sampling)

    def _first(self, greedy: bool) -> None:
        """Stage: the token behind the prompt becomes the anchor."""
        self.count.zero_()
        token = self._choose(self.hidden[None], self.count[None], greedy)
        self.anchor.copy_(token)
        self.count.fill_(1)
        self._finish(token)

    def _step(self, greedy: bool) -> None:
        """Stage: pass the anchor through the target and choose the next."""
        hidden = self.stream.behind(self.anchor, self.base + self.count - 1)
        token = self._choose(hidden, torch.zeros_like(self.anchor), greedy)
        self.anchor.copy_(token)
        self.count.add_(1)
        self._finish(token)

    def _round(self, drafter: FastDrafter, greedy: bool, accept: int | None) -> None:
        """Stage: draft a block, verify it, accept its longest right beginning."""
        stream = self.stream
        block = drafter.propose(self.anchor, self.allowed)
        steps = torch.arange(len(block), device=block.device)
        taps = Taps(drafter.config)
        hidden = stream.behind(block, self.base + self.count - 1, taps)
        tokens = self._choose(hidden, steps, greedy)
        accepted = (block[1:] == tokens[:-1]).long().cumprod(0).sum(0, keepdim=True)
        if accept is not None:
            accepted = torch.full_like(accepted, accept)
        drafter.advance(taps, accepted)
        self._finish(self.anchor, tokens, accepted)
        self.anchor.copy_(tokens[accepted])
        self.count.add_(accepted[0] + 1)
