"""Writes behind a prompt: tokens that are decided, passes of the target and of the drafter."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..drafter import Drafter, Taps
from ..sampling import next_logits
from ..stream import PromptStream
from .acceptance import Schema
from .digits import FrameSchema


class Writer:
    """
    An answer in the making.

    `ids` are its tokens, `chances` their probabilities and `passes` the passes of drafter and
    target until each was decided; those that the target has not seen yet are passed through it
    when its opinion is needed.  `pick` chooses the n-th token from logits.
    """

    def __init__(self, stream: PromptStream, drafter: Drafter | None, allowed: Tensor,
                 pick: Callable[[Tensor, int], Tensor]):
        self.stream, self.drafter, self.allowed, self.pick = stream, drafter, allowed, pick
        self.model = stream.model
        self.ids: list[int] = []
        self.chances: list[float] = []
        self.passes: list[tuple[int, int]] = []
        self.ready: list[tuple[int, float]] = []
        self.draft_passes = self.target_passes = 0
        self.features: Tensor | None = None

    def begin(self, question_ids: Tensor) -> None:
        """Append the question; its pass is not counted as one of the answer."""
        self.prefix = self.stream.length
        self.hidden = self._extend(question_ids)[-1]
        self.base = self.stream.length
        self.target_passes = 0

    @property
    def room(self) -> int:
        """Tokens that an answer may have, given the cache."""
        return self.stream.room_behind(self.base)

    def push(self, ids: Sequence[int], chances: Sequence[float] | None = None) -> None:
        """Append tokens that are decided; certain ones without `chances`."""
        self.ids += ids
        self.chances += chances or [1.0] * len(ids)
        self.passes += [(self.draft_passes, self.target_passes)] * len(ids)

    def look(self) -> Tensor:
        """Pass what the target has not seen through it; its last hidden state [hidden]."""
        unseen = self.ids[self.stream.length - self.base:]
        if unseen:
            self.hidden = self._extend(torch.tensor(unseen, device=self.model.device))[-1]
        return self.hidden

    def rewind(self, count: int) -> None:
        """Forget what the target saw beyond the first `count` tokens, verified ones included."""
        self.ready = []
        self.stream.truncate(min(self.stream.length, self.base + count))
        if self.features is not None:
            self.features = self.features[:self.stream.length - self.prefix]

    def text(self, block: int) -> int:
        """Append the target's next token; drafts up to `block` - 1 of the next ones with it."""
        if not self.ready:
            unseen = len(self.ids) - (self.stream.length - self.base)
            if self.drafter is not None and unseen == 1 and block > 1:
                self._round(block)
            else:
                self.ready = [self._choose(self.look(), len(self.ids))]
        token, chance = self.ready.pop(0)
        self.push([token], [chance])
        return token

    def _choose(self, hidden: Tensor, at: int) -> tuple[int, float]:
        logits = next_logits(self.model, hidden, self.allowed)
        token = int(self.pick(logits, at))
        return token, float(logits.softmax(-1)[token])

    def _round(self, block: int) -> None:
        """Draft behind the last token and have the target verify; at least one token is ready."""
        proposals = self.draft(block).float().masked_fill(
            ~self.allowed, -torch.inf).argmax(-1)
        tokens = torch.cat((torch.tensor(self.ids[-1:], device=proposals.device), proposals))
        hidden = self._extend(tokens)
        for i, state in enumerate(hidden):
            self.ready.append(self._choose(state, len(self.ids) + i))
            if i == len(proposals) or self.ready[-1][0] != int(proposals[i]):
                break
        ready, self.hidden = self.ready, hidden[len(self.ready) - 1]
        self.rewind(len(self.ids) + len(ready) - 1)
        self.ready = ready

    def constrained(self, schema: Schema, written: Sequence[int]) -> tuple[int, float]:
        """The target's choice among the legal symbols after `written`, and its probability."""
        logits = self.model.lm_head(self.look()).float()
        legal = torch.from_numpy(schema.legal(written)).to(logits.device)
        choices = logits[schema.choices]
        at = int(self.pick(choices.masked_fill(~legal, -torch.inf), len(self.ids)))
        chance = float((choices[at] - logits.logsumexp(-1)).exp())
        return (at if at < len(choices) - 1 else -1), chance

    def draft(self, block: int, schema: Schema | FrameSchema | None = None) -> Tensor:
        """
        Logits [block - 1, vocabulary] of the drafter after the last token, in one pass.

        Text sees the last few tokens; primitives, which have a `schema`, all of the branch when
        the drafter was trained for it.
        """
        drafter, model = self.drafter, self.model
        self.draft_passes += 1
        at = self.base + len(self.ids) - 1
        context = self.features
        if drafter.config.window_context and schema is not None:
            context = torch.cat((self.stream.prompt_features()[:self.prefix], context))
        else:
            context = context[-drafter.config.context_len:]
        x = drafter.block(model.embed_tokens.weight[self.ids[-1:]], block,
                          None if schema is None else schema.kinds)
        positions = torch.arange(at - len(context), at + block, device=x.device)
        states = drafter(x, context[None].to(x.dtype), positions[None])[0, 1:]
        return model.lm_head(states)

    def _extend(self, ids: Tensor) -> Tensor:
        self.target_passes += 1
        if self.drafter is None:
            return self.stream.extend(ids)
        taps = Taps(self.drafter.config)
        hidden = self.stream.extend(ids, taps)
        fused = self.drafter.fuse(taps.chosen())[0]
        self.features = fused if self.features is None else torch.cat((self.features, fused))
        return hidden

