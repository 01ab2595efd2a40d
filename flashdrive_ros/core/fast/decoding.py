"""
Text behind a prompt, token by token or drafted, in stages of static shape.

What a round needs of the one before it stays on the device; the host reads each
round's tokens once, to know whether the text has ended.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config import EngineConfig
from ..drafter import Drafter, Taps
from ..speculative import Draft, Generation
from .drafting import FastDrafter

if TYPE_CHECKING:
    from .window import FastStream


class Decoding:
    """
    Fills a `Generation` behind the tokens that a stream holds.

    The anchor, the newest token, is at slot `base` + `count` - 1; `count` tokens
    are known, and `draws[count]` chooses the next one.
    """

    def __init__(self, stream: FastStream, drafter: Drafter | None):
        self.stream, self.ops, model = stream, stream.ops, stream.model
        device, room = model.device, stream.cache.capacity
        self.drafter = drafter and FastDrafter(drafter, model, stream.ops)
        self.block_size = drafter.config.block_size if drafter else 1

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)
        self.anchor, self.base, self.count = integers(1), integers(), integers()
        self.draws = torch.zeros(room + self.block_size, device=device)
        self.sampling = torch.zeros(2, device=device)
        """Temperature and top_p."""
        self.allowed = torch.zeros(model.lm_head.weight.shape[0], dtype=torch.bool, device=device)
        self.hidden = torch.zeros_like(stream.hidden)
        self.context: Tensor | None = None
        self.result = integers(self.block_size + 2)
        self.read = torch.zeros(self.block_size + 2, dtype=torch.long,
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
        forced = ()
        if draft is not None:
            forced = tuple(draft.forced.items())
            self._keep_context(draft.context)
        stages, greedy = stream.stages, config.greedy
        stages.run(('first', greedy), lambda: self._first(greedy))
        if draft is None:
            row.take(self._tokens()[0])
        while not row.stop:
            if draft is None:
                stages.run(('step', greedy), lambda: self._step(greedy))
                row.take(self._tokens()[0])
                continue
            stages.run(('round', greedy, forced, accept),
                       lambda: self._round(greedy, forced, accept))
            anchor, *chosen, accepted = self._tokens()
            if not row.ids:  # the first token is read with the first round's
                row.take(anchor)
            row.commit(chosen, accepted)
        cached = max(len(row.ids) - 1, min(row.cached, len(row.ids)))
        if draft is not None and len(row.ids) == 1:
            cached = 1  # it was the anchor of a round that came to nothing
        stream.truncate(base + cached)

    def _keep_context(self, context: Tensor) -> None:
        if self.context is None or self.context.shape != context.shape:
            self.context = context.clone()
            self.stream.stages.forget('round')
        self.context.copy_(context)

    def _tokens(self) -> list[int]:
        """Wait for the last stage's result."""
        if self.read.is_pinned():
            torch.cuda.current_stream(self.result.device).synchronize()
        return self.read.tolist()

    def _finish(self, *values: Tensor) -> None:
        """Show the integers `values` to the host."""
        at = 0
        for value in values:
            self.result[at:at + len(value)] = value
            at += len(value)
        self.read.copy_(self.result, non_blocking=True)

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

    def _round(self, greedy: bool, forced: tuple, accept: int | None) -> None:
        """Stage: draft a block, verify it, accept its longest right beginning."""
        stream, steps = self.stream, torch.arange(self.block_size, device=self.anchor.device)
        block = self.drafter.propose(self.anchor, self.context, self.allowed, forced)
        taps = Taps(self.drafter.config)
        hidden = stream.behind(block, self.base + self.count - 1, taps)
        tokens = self._choose(hidden, steps, greedy)
        accepted = (block[1:] == tokens[:-1]).long().cumprod(0).sum(0, keepdim=True)
        if accept is not None:
            accepted = torch.full_like(accepted, accept)
        known = torch.cat((self.context, self.drafter.fuse(taps.chosen())[0]))
        newest = accepted + 1 + torch.arange(len(self.context), device=accepted.device)
        self.context.copy_(known[newest])
        self._finish(self.anchor, tokens, accepted)
        self.anchor.copy_(tokens[accepted])
        self.count.add_(accepted[0] + 1)
